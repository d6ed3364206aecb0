"""An agent as a process, with a link that starts real small workers: `python -m … --config FILE`.

Its workers and its coordinator are programs of a few lines, so that what is tested is the agent.
"""

from __future__ import annotations

import argparse
import json
import os
import pwd
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.agent.daemon import add_arguments, main
from runtime.agent.specs import RunSpec

COORDINATOR = Path(__file__).with_name("small_coordinator.py")


class SmallLink:
    """Starts one process a slot and writes what it is told to `link.jsonl` beside the spec."""

    def __init__(
        self,
        *,
        run: str,
        endpoint: str,
        ticket: str,
        node: str,
        slots: int,
        spec: RunSpec,
        folder: Path,
    ) -> None:
        self.run, self.endpoint, self.ticket, self.node = run, endpoint, ticket, node
        self.slots, self.spec, self.folder = slots, spec, folder
        self.workers: list[subprocess.Popen[bytes]] = []

    def write(self, **entry: Any) -> None:
        with Path(os.environ["LINK_LOG"]).open("a", encoding="utf-8") as file:
            file.write(json.dumps({"run": self.run, **entry}) + "\n")

    def start(self) -> None:
        if self.endpoint.endswith(":1"):
            raise ConnectionRefusedError("nobody listens on port 1")
        account = pwd.getpwnam(self.spec.user)
        for _slot in range(self.slots):
            self.workers.append(
                subprocess.Popen(
                    self.spec.argv,
                    env={**os.environ, **self.spec.environment},
                    user=account.pw_uid if os.geteuid() == 0 else None,
                )
            )
        self.write(started=[worker.pid for worker in self.workers], endpoint=self.endpoint)

    def stop(self) -> None:
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.write(stopped=len(self.workers))

    def is_alive(self) -> bool:
        return any(worker.poll() is None for worker in self.workers)

    def report_finding(self, finding: Mapping[str, Any]) -> None:
        self.write(finding=finding)

    def status(self) -> Mapping[str, Any]:
        return {
            "run": self.run,
            "epoch": 7,
            "committed_step": 41,
            "workers": [{"pid": worker.pid} for worker in self.workers],
        }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    sys.exit(main(parser.parse_args(), SmallLink, (sys.executable, str(COORDINATOR))))
