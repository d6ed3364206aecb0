"""Ties the lives of processes together: die with a parent, leave no descendant behind.

Standard library only and quick to import: the smallest programs of the house begin with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final, NamedTuple

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36
_LOOK_SECONDS: Final = 0.005
# The kernel may hold a killed process for a while: much memory to free, a disk that does not
# answer. One held longer is reported and not waited for.
END_SECONDS: Final = 20.0

_libc = ctypes.CDLL(None, use_errno=True)


class Process(NamedTuple):
    pid: int
    parent: int
    group: int
    state: str  # as in `man 5 proc`


def die_with_parent(parent_pid: int, number: signal.Signals = signal.SIGKILL) -> bool:
    """Asks the kernel for the signal when the parent ends, `kill -9` included; False where it has
    ended already. Strictly: when the parent's *thread* that started us ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    return os.getppid() == parent_pid


def adopt_orphans() -> None:
    """From now on a descendant whose parent ends becomes our child: none can leave our sight."""
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextlib.contextmanager
def no_descendants_left() -> Iterator[None]:
    """When the block is left, however that is, every process it has caused is gone, orphans and
    such as were never waited for too. For a command's `main`: it ends *all* children of this
    process."""
    adopt_orphans()
    try:
        yield
    finally:
        # It takes milliseconds, and a second Ctrl-C would leave processes behind.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        if stuck := end_children():
            print(f"the kernel holds the killed processes {stuck}", file=sys.stderr)


def end_children(
    spared: Collection[int | None] = (), within_seconds: float = END_SECONDS
) -> list[int]:
    """SIGKILL to every child until none is left; returns the pids that would not go in time."""
    deadline = time.monotonic() + within_seconds
    while left := [each.pid for each in processes() if each.parent == os.getpid()]:
        left = [pid for pid in left if pid not in spared]
        if not left or time.monotonic() > deadline:
            return left
        for pid in left:
            # Ours and not reaped, so its number is nobody else's.
            os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        # What the dead have left to us shows at the next look.
        time.sleep(_LOOK_SECONDS)
    return []


def await_group_gone(group: int, within_seconds: float = END_SECONDS) -> bool:
    """Until no process of the group runs any more; False when that takes longer."""
    deadline = time.monotonic() + within_seconds
    while any(each.group == group and each.state not in "ZX" for each in processes()):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_SECONDS)
    return True


def processes() -> Iterator[Process]:
    """Every process that can be seen from here, threads and our own self not apart."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                text = (folder / "stat").read_text()
            except OSError:
                continue  # it ended meanwhile
            # The name may hold spaces and parentheses; nothing after it does.
            state, parent, group, *_ = text.rpartition(")")[2].split()
            yield Process(int(folder.name), int(parent), int(group), state)
