"""Kept programs: started again when they die, ended with everything they started."""

from __future__ import annotations

import os
import pwd
import signal
import sys
from pathlib import Path

from runtime.agent.children import KeptProgram
from tests.runtime.agent.conftest import is_running
from tests.runtime.waiting import wait_for

ME = pwd.getpwuid(os.geteuid()).pw_name


def kept(folder: Path, program: str) -> KeptProgram:
    argv = [sys.executable, "-c", program, str(folder)]
    return KeptProgram("small", argv, dict(os.environ), folder / "log", ME)


def tick_until(child: KeptProgram, state: str) -> None:
    def reached() -> bool:
        child.tick()
        return child.state == state

    wait_for(reached)


def test_what_ends_well_is_not_started_again(tmp_path: Path) -> None:
    child = kept(tmp_path, "print('done', flush=True)")
    child.start()

    tick_until(child, "finished")

    assert (tmp_path / "log").read_text() == "done\n"


def test_what_will_fail_again_is_given_up(tmp_path: Path) -> None:
    for code in (2, 3):
        child = kept(tmp_path, f"raise SystemExit({code})")
        child.start()
        tick_until(child, "failed")


def test_what_dies_is_started_again_later_and_later(tmp_path: Path) -> None:
    program = "import sys; open(sys.argv[1] + '/starts', 'a').write('x'); sys.exit(1)"
    child = kept(tmp_path, program)
    child.start()

    def starts() -> int:
        child.tick()
        path = tmp_path / "starts"
        return len(path.read_text()) if path.exists() else 0

    wait_for(lambda: starts() == 3)
    tick_until(child, "restarting")
    child.stop(1.0)
    assert starts() == 3


def test_stop_ends_stubborn_programs_and_their_children(tmp_path: Path) -> None:
    program = (
        "import os, signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "inner = subprocess.Popen(['sleep', '600'])\n"
        "open(sys.argv[1] + '/pids.new', 'w').write(f'{os.getpid()} {inner.pid}')\n"
        "os.rename(sys.argv[1] + '/pids.new', sys.argv[1] + '/pids')\n"
        "time.sleep(600)\n"
    )
    child = kept(tmp_path, program)
    child.start()
    wait_for(lambda: (tmp_path / "pids").exists())
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert pids[0] == child.pid

    child.stop(0.2)

    wait_for(lambda: not any(map(is_running, pids)))


def test_a_killed_program_takes_its_children_along(tmp_path: Path) -> None:
    program = (
        "import subprocess, sys, time\n"
        "inner = subprocess.Popen(['sleep', '600'])\n"
        "open(sys.argv[1] + '/pid', 'a').write(f'{inner.pid}\\n')\n"
        "time.sleep(600)\n"
    )
    child = kept(tmp_path, program)
    child.start()
    wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith("\n"))
    first = int((tmp_path / "pid").read_text())
    assert child.pid is not None
    os.kill(child.pid, signal.SIGKILL)

    tick_until(child, "restarting")

    wait_for(lambda: not is_running(first))
    child.stop(0.2)
