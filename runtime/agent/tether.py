"""Ties a program to the life of the process that starts it, then becomes that program.

`python -m runtime.agent.tether PARENT_PID PROGRAM [ARGUMENT ...]`: the kernel kills the program
when its parent dies, kill -9 included. It watches nothing itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent_pid, program = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The parent may have died before the kernel was told.
    if os.getppid() != parent_pid:
        sys.exit(1)
    try:
        os.execvp(program[0], program)  # noqa: S606  (an argv list of our own making)
    except OSError as error:
        sys.exit(f"cannot start {program[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
