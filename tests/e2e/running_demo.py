"""A demo as a child process, and a look at its files and processes while it goes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MARK = "UNBROKEN_TEST_MARK"


class RunningDemo:
    def __init__(self, var_dir: Path, **environment: str) -> None:
        self.var_dir = var_dir
        self.mark = f"demo-{os.getpid()}-{time.monotonic_ns()}"
        self.log = var_dir / "demo-output.txt"
        inherited = {k: v for k, v in os.environ.items() if k != "DJANGO_SETTINGS_MODULE"}
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.demo"],
                cwd=ROOT,
                env={**inherited, "VAR_DIR": str(var_dir), MARK: self.mark, **environment},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def output(self) -> str:
        return self.log.read_text()

    def await_that(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 150
        while not condition():
            assert self.process.poll() is None, self.output()
            assert time.monotonic() < deadline, f"{what} did not come\n{self.output()}"
            time.sleep(0.05)

    def await_step(self, step: int) -> None:
        self.await_that(lambda: self.committed_step() >= step, f"step {step}")

    def committed_step(self) -> int:
        trace = self.var_dir / "demo" / "trace.jsonl"
        if not trace.exists():
            return 0
        recent = [json.loads(line) for line in trace.read_bytes().split(b"\n")[:-1][-60:]]
        return max((each["step"] for each in recent if each["what"] == "committed"), default=0)

    def kept(self, name: str) -> int:
        pid: int = json.loads((self.var_dir / "demo" / "pids.json").read_text())[name]
        return pid

    def marked(self, *words: str) -> list[int]:
        """Live processes of this demo whose command line has all the words."""
        found = []
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                environment = (folder / "environ").read_bytes()
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            is_ours = self.mark.encode() in environment and state != "Z"
            if is_ours and all(word in command for word in words):
                found.append(int(folder.name))
        return found

    def servers(self) -> dict[str, int]:
        """Pids of the embedded services, as their keeper wrote them down."""
        document = json.loads((self.var_dir / "services" / "state.json").read_text())
        pids: dict[str, int] = document["services"]
        return pids

    def interrupt(self) -> None:
        """Ctrl-C, as a terminal sends it: to the whole foreground group."""
        os.killpg(self.process.pid, signal.SIGINT)

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(60)
