"""An agent in its own process on a scripted node, against a real small service."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.agent.specs import load_specs
from runtime.health.policy import SHIPPED_THERMAL
from runtime.health.stub import SCENARIO_VARIABLE, StubGpu, write_scenario
from tests.runtime.service import TOKEN

ROOT = Path(__file__).resolve().parents[3]
COOL = [StubGpu("GPU-1", 45, serial="1651"), StubGpu("GPU-2", 50, serial="1652")]
USER = "nobody" if os.geteuid() == 0 else None


class Node:
    """One node: its files, and its agent's process once started."""

    def __init__(self, folder: Path, library: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.scenario = folder / "nvml.txt"
        self.link_log = folder / "link.jsonl"
        self.errors = folder / "agent.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.processes: list[subprocess.Popen[bytes]] = []
        self._library = library
        write_scenario(self.scenario, COOL)
        quick = SHIPPED_THERMAL.read_text(encoding="utf-8")
        quick = quick.replace("clear_after_seconds = 30", "clear_after_seconds = 1")
        quick = quick.replace("hold_seconds = 2\n", "hold_seconds = 0.2\n")
        (folder / "thermal.toml").write_text(quick, encoding="utf-8")
        user = f'user = "{USER}"\n' if USER else ""
        (folder / "specs.toml").write_text(
            f'[[spec]]\nname = "demo"\nargv = ["sleep", "600"]\n{user}'
            # The small coordinator lies in this checkout, which another account may not reach.
            '[[spec]]\nname = "own"\nargv = ["sleep", "600"]\n',
            encoding="utf-8",
        )

    def spec(self, name: str = "demo") -> str:
        """The digest of the spec."""
        specs = load_specs(self.folder / "specs.toml", allow_root=True)
        return {spec.name: digest for digest, spec in specs.items()}[name]

    def write_config(self, server: str | None) -> Path:
        address = f'server = "{server}"\n' if server else ""
        path = self.folder / "agent.toml"
        path.write_text(
            f'[agent]\ncluster = "c1"\nnode = "n1"\n{address}state_dir = "state"\n'
            'specs = "specs.toml"\nallow_root = true\n'
            '[health]\ninterval_seconds = 0.1\npolicy = "thermal.toml"\n'
            f'[nvml]\nlibrary_dir = "{self._library}"\n'
            f'environment = {{ {SCENARIO_VARIABLE} = "{self.scenario}" }}\n',
            encoding="utf-8",
        )
        return path

    def start(
        self, server: str | None, program: str = "tests.runtime.agent.program", **environment: str
    ) -> subprocess.Popen[bytes]:
        config = self.write_config(server)
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                [sys.executable, "-m", program, "--config", str(config)],
                cwd=ROOT,
                stderr=errors,
                env={
                    **os.environ,
                    "UNBROKEN_AGENT_TOKEN": TOKEN,
                    "LINK_LOG": str(self.link_log),
                    **environment,
                },
            )
        self.processes.append(self.process)
        return self.process

    def end(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(20)

    def link_entries(self, key: str) -> list[Any]:
        if not self.link_log.exists():
            return []
        lines = self.link_log.read_text(encoding="utf-8").splitlines()
        return [entry[key] for line in lines if key in (entry := json.loads(line))]

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = self.errors.read_text(encoding="utf-8").splitlines()
        entries = [json.loads(line) for line in lines if line.startswith("{")]
        return [entry for entry in entries if entry["event"] == event]


@pytest.fixture
def node(tmp_path: Path, nvml_library: Path) -> Iterator[Node]:
    made = Node(tmp_path, nvml_library)
    yield made
    for process in made.processes:
        if process.poll() is None:
            process.kill()
            process.wait()


def descendants(pid: int) -> set[int]:
    """Every living process below `pid`."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue
            if fields[0] != "Z":
                parents[int(folder.name)] = int(fields[1])
    found: set[int] = set()
    fresh = {pid}
    while fresh:
        fresh = {child for child, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found


def is_running(pid: int) -> bool:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] != "Z"
