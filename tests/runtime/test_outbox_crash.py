"""The outbox of a writer that is killed at any moment, and of one that runs out of disk."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import threading
from pathlib import Path

from runtime.outbox import Outbox

SOURCE = "/clusters/c1/nodes/n1/agent"
# Appends for ever; a line on stdout is the proof that an append has returned.
WRITER = """
import sys
from runtime.outbox import Outbox
box = Outbox(sys.argv[1], sys.argv[2])
n = 0
while True:
    event = box.append("run.progress", {"run": "r1", "n": n}, key=f"{sys.argv[3]}-{n}")
    print(event["sequence"], event["id"], flush=True)
    n += 1
"""
FILLER = """
import json, sys
from runtime.outbox import Outbox, OutboxFullError
box = Outbox(sys.argv[1], sys.argv[2])
stored = box.head()
try:
    while True:
        box.append("run.progress", {"run": "r1", "text": "x" * 4000})
        stored += 1
except OutboxFullError as error:
    print(json.dumps({"stored": stored, "head": box.head(), "error": str(error)}))
"""


def kill_after(process: subprocess.Popen[str], delay_seconds: float) -> None:
    timer = threading.Timer(delay_seconds, process.send_signal, [signal.SIGKILL])
    timer.start()
    timer.join()


def test_kill_at_any_moment_loses_nothing_and_leaves_no_hole(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    seen: dict[int, str] = {}
    chance = random.Random(20260501)

    # The delays reach from inside the interpreter's start to the middle of many appends.
    for incarnation in range(24):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), SOURCE, f"w{incarnation // 2}"],
            stdout=subprocess.PIPE,
            text=True,
        )
        killer = threading.Thread(target=kill_after, args=(process, chance.uniform(0.05, 0.45)))
        killer.start()
        output, _ = process.communicate()
        killer.join()
        assert process.returncode == -signal.SIGKILL
        whole_lines = output[: output.rfind("\n") + 1].splitlines()
        for line in whole_lines:
            sequence, event_id = line.split()
            # A key repeated by the next incarnation gives the event that was already there.
            assert seen.setdefault(int(sequence), event_id) == event_id

    with Outbox(path, SOURCE) as outbox:
        events = outbox.pending(limit=1_000_000)
    assert len(seen) > 100
    assert [event["sequence"] for event in events] == [str(n + 1) for n in range(len(events))]
    assert [event["type"] for event in events].count("source.opened") == 1
    stored = {int(event["sequence"]): event["id"] for event in events}
    assert seen.items() <= stored.items()


def test_a_full_disk_gives_a_clear_error_and_nothing_half_written(tmp_path: Path) -> None:
    path = tmp_path / "outbox.db"
    limit = 300_000

    result = subprocess.run(
        [sys.executable, "-c", FILLER, str(path), SOURCE],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )

    report = json.loads(result.stdout)
    assert report["error"].startswith(f"cannot write the outbox {path}: ")
    assert report["head"] == report["stored"] > 10
    with Outbox(path, SOURCE) as outbox:
        events = outbox.pending()
        assert [event["sequence"] for event in events] == [
            str(n + 1) for n in range(report["stored"])
        ]
        appended = outbox.append("run.progress", {"run": "r1"})
        assert appended["sequence"] == str(report["stored"] + 1)
