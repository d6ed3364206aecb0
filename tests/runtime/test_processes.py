"""Processes tied to each other's life: with real ones, looked at the instant a command returned."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

from runtime.processes import await_group_gone, processes
from tests.runtime.waiting import wait_for

MARK = "UNBROKEN_TEST_MARK"


def start(script: str, mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, MARK: mark},
        stdout=subprocess.PIPE,
    )


def marked(mark: str) -> list[int]:
    """Processes with the mark that still run."""
    found = []
    for each in processes():
        try:
            environment = Path(f"/proc/{each.pid}/environ").read_bytes()
        except OSError:
            continue
        if f"{MARK}={mark}".encode() in environment and each.state not in "ZX":
            found.append(each.pid)
    return found


# An orphan in a session of its own that shrugs signals off, with a busy child, that nobody waits
# for: what a program struck while it starts leaves behind.
FAMILY = """
    import os, signal, subprocess, sys, time
    from runtime.processes import no_descendants_left

    LEAF = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    MIDDLE = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {LEAF!r}])"
    with no_descendants_left():
        for _ in range(3):
            subprocess.Popen([sys.executable, "-c", MIDDLE], start_new_session=True)
            subprocess.Popen([sys.executable, "-c", LEAF], start_new_session=True)
        print("started", flush=True)
        {end}
"""


def test_a_command_returns_after_everything_that_it_caused() -> None:
    for number, end in enumerate(("pass", "raise SystemExit(0)", "time.sleep(600)")):
        mark = f"family-{os.getpid()}-{number}"
        root = start(FAMILY.replace("{end}", end), mark)
        assert root.stdout is not None
        root.stdout.readline()
        if "sleep" in end:
            root.send_signal(signal.SIGINT)

        status = root.wait(30)

        assert marked(mark) == [], end
        assert status == (-signal.SIGINT if "sleep" in end else 0)


def test_the_tether_holds_against_kill_9() -> None:
    mark = f"tether-{os.getpid()}"
    parent = start(
        """
        import os, subprocess, sys, time
        tether = [sys.executable, "-m", "runtime.agent.tether", str(os.getpid())]
        subprocess.Popen([*tether, sys.executable, "-c", "print('up', flush=True); input()"],
                         stdin=subprocess.PIPE)
        time.sleep(600)
        """,
        mark,
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    assert len(marked(mark)) == 2

    parent.kill()
    parent.wait()

    wait_for(lambda: marked(mark) == [], what="the end of the child")


def test_a_program_whose_parent_is_gone_does_not_start() -> None:
    gone = start("pass", "gone")
    gone.wait()

    done = subprocess.run(
        [sys.executable, "-m", "runtime.agent.tether", str(gone.pid), "echo", "ran"],
        capture_output=True,
        check=False,
    )

    assert (done.returncode, done.stdout) == (1, b"")


def test_a_group_is_awaited_past_its_first_process() -> None:
    leaf = "import time; print(flush=True); time.sleep(600)"
    first = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import subprocess, sys; "
            f"child = subprocess.Popen([sys.executable, '-c', {leaf!r}]); print(child.pid)",
        ],
        start_new_session=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert first.stdout is not None
    said = {first.stdout.readline().strip(), first.stdout.readline().strip()} - {""}
    leaf_pid = int(said.pop())
    first.wait()
    assert not await_group_gone(first.pid, within_seconds=0.05)

    os.kill(leaf_pid, signal.SIGKILL)

    assert await_group_gone(first.pid)
    assert all(each.pid != leaf_pid or each.state in "ZX" for each in processes())
