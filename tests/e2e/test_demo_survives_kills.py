"""`make demo` while its own servers are killed: nothing is lost, nothing counts twice."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MARK = "UNBROKEN_TEST_MARK"


class RunningDemo:
    """A demo as a child process, with a look at its files while it goes."""

    def __init__(self, var_dir: Path) -> None:
        self.var_dir = var_dir
        self.mark = f"demo-{os.getpid()}-{time.monotonic_ns()}"
        self.log = var_dir / "demo-output.txt"
        environment = {**os.environ, "VAR_DIR": str(var_dir), "ONCE": "1", MARK: self.mark}
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.demo"],
                cwd=ROOT,
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def await_step(self, step: int) -> None:
        self.await_that(lambda: self.committed_step() >= step, f"step {step}")

    def await_that(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + 150
        while not condition():
            assert self.process.poll() is None, self.log.read_text()
            assert time.monotonic() < deadline, f"{what} did not come\n{self.log.read_text()}"
            time.sleep(0.05)

    def committed_step(self) -> int:
        trace = self.var_dir / "demo" / "trace.jsonl"
        if not trace.exists():
            return 0
        last = 0
        for line in trace.read_bytes().split(b"\n")[:-1][-60:]:
            record = json.loads(line)
            if record["what"] == "committed":
                last = max(last, record["step"])
        return last

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
            if (
                self.mark.encode() in environment
                and state != "Z"
                and all(word in command for word in words)
            ):
                found.append(int(folder.name))
        return found

    def postmaster(self) -> int:
        """PostgreSQL runs in a clean environment, so it is found by its pid file."""
        folders = [self.var_dir, *Path("/tmp").glob("unbroken-*")]
        files = [path for folder in folders for path in folder.glob("**/postmaster.pid")]
        newest = max(files, key=lambda path: path.stat().st_mtime)
        return int(newest.read_text().split()[0])

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            self.process.wait(60)


@pytest.fixture
def demo(tmp_path: Path):
    running = RunningDemo(tmp_path)
    yield running
    running.end()


@pytest.mark.slow
@pytest.mark.timeout(420)
def test_killed_servers_lose_no_event_and_count_none_twice(demo: RunningDemo):
    killed = {}

    def kill(name: str, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        killed[name] = pid

    demo.await_step(4)
    kill("web", demo.kept("web"))
    demo.await_step(14)
    kill("celery", demo.kept("celery"))
    demo.await_step(28)
    (coordinator,) = demo.marked("runtime", "coordinator", "--folder")
    kill("coordinator", coordinator)
    demo.await_step(42)
    kill("postgres", demo.postmaster())
    demo.process.wait(240)

    output = demo.log.read_text()
    assert demo.process.returncode == 0, output
    result = json.loads((demo.var_dir / "demo.json").read_text())
    assert set(killed) == {"web", "celery", "coordinator", "postgres"}
    assert (result["equal"], result["losses_equal"], result["samples_equal"]) == (True, True, True)
    assert [facts(each) for each in result["incidents"]] == [
        ("process_exit", "replica_rebuild", "zero_loss", 0),
        ("hang", "replica_rebuild", "zero_loss", 0),
        ("thermal", "live_migration", "planned, no failure", 0),
        ("process_exit", "checkpoint_rollback", "rollback", lost(result["incidents"][3])),
    ]
    year = result["year"]
    assert (year["counted"], year["zero_loss"], year["rollback"]) == (3, 2, 1)
    assert year["pending"] == year["excluded"] == 0
    assert_same_events(demo.var_dir, result["run"])
    assert demo.marked() == []


def facts(incident: dict[str, Any]) -> tuple[str, str, str, int]:
    return (
        incident["cause"],
        incident["mode"],
        incident["verdict"],
        incident["lost_steps"],
    )


def lost(rollback: dict[str, Any]) -> int:
    steps: int = rollback["committed_step"] + 1 - rollback["resumed_step"]
    assert steps == rollback["recomputed_steps"] > 0
    return steps


QUERY = """
import json, sys
from fleet.models import Event
from fleet.tenancy import every_tenant
with every_tenant():
    rows = Event.objects.filter(source__in=json.loads(sys.argv[1])).order_by('source', 'sequence')
    print(json.dumps([[row.source, row.event_id, row.body_sha256] for row in rows]))
"""


def assert_same_events(var_dir: Path, run: str) -> None:
    """Every event of every outbox is in the log once, with its very bytes, and no other is."""
    expected = []
    for path in sorted((var_dir / "demo").glob("**/outbox.db")):
        with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
            for (body,) in database.execute("SELECT body FROM events"):
                event = json.loads(body)
                digest = hashlib.sha256(body if isinstance(body, bytes) else body.encode())
                entry = (event["source"], int(event["sequence"]), event["id"])
                expected.append((*entry, digest.hexdigest()))
    sources = sorted({entry[0] for entry in expected})
    assert f"/clusters/demo/runs/{run}/coordinator" in sources
    for source in sources:
        numbers = sorted(entry[1] for entry in expected if entry[0] == source)
        assert numbers == list(range(1, len(numbers) + 1))
    script = var_dir / "query.py"
    script.write_text("import django; django.setup()\n" + QUERY)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(sources)],
        cwd=ROOT,
        env={
            **os.environ,
            "VAR_DIR": str(var_dir),
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "PYTHONPATH": str(ROOT),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = [tuple(row) for row in json.loads(done.stdout.splitlines()[-1])]
    assert sorted(found) == sorted((source, event, sha) for source, _, event, sha in expected)
