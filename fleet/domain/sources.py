"""What the names of sources mean, and which of them a token may speak for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

_SOURCE: Final = re.compile(r"/clusters/([^/]+)/(nodes|runs)/([^/]+)/(agent|coordinator|witness)")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a source speaks from; `kind` is nodes or runs, `role` who speaks there."""

    cluster: str
    kind: str
    name: str
    role: str


def place_of(source: str) -> Place | None:
    """None for a source that is not shaped as the wire says."""
    match = _SOURCE.fullmatch(source)
    return Place(*match.groups()) if match else None


@dataclass(frozen=True, slots=True)
class Binding:
    """What a token is bound to. A node speaks for itself and for the runs it coordinates."""

    patterns: tuple[str, ...] = ()
    cluster: str | None = None
    node: str | None = None

    def covers(self, source: str, coordinated_runs: Iterable[str] = ()) -> bool:
        place = place_of(source)
        if place is None or (self.cluster is not None and place.cluster != self.cluster):
            return False
        if any(_matches(source, pattern) for pattern in self.patterns):
            return True
        if self.node is None:
            return False
        if place.kind == "nodes":
            return place.name == self.node and place.role == "agent"
        return place.role == "coordinator" and place.name in set(coordinated_runs)


def _matches(source: str, pattern: str) -> bool:
    if pattern.endswith("*"):
        return source.startswith(pattern[:-1])
    return source == pattern
