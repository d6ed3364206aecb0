"""What the agent needs of the object that ties its node to a run; `node_link` has the real one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from runtime.agent.specs import RunSpec


class NodeLink(Protocol):
    """Registers this node with a run's coordinator, and starts and kills workers as it asks."""

    def start(self) -> None: ...

    def stop(self) -> None:
        """End every worker of the run on this node; returns when none is left."""

    def is_alive(self) -> bool: ...

    def report_finding(self, finding: Mapping[str, Any]) -> None:
        """Hand a health finding to the coordinator, with the fleet service or without it."""

    def status(self) -> Mapping[str, Any]:
        """{"run", "epoch", "committed_step", "workers": [...]}"""


class MakeNodeLink(Protocol):
    """`slots` is how many workers this node gives; `endpoint` the coordinator's host:port.

    `folder` is where this node keeps what belongs to the run."""

    def __call__(
        self,
        *,
        run: str,
        endpoint: str,
        ticket: str,
        node: str,
        slots: int,
        spec: RunSpec,
        folder: Path,
    ) -> NodeLink: ...
