"""`make demo` while its own servers are killed: nothing is lost, nothing counts twice."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.running_demo import ROOT, RunningDemo


@pytest.fixture
def demo(tmp_path: Path):
    running = RunningDemo(tmp_path, ONCE="1")
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
    kill("postgres", demo.servers()["postgres"])
    demo.process.wait(240)

    output = demo.output()
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
