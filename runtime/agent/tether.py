"""Ties a program to the life of the process that starts it, then becomes that program.

`python -m runtime.agent.tether PARENT_PID PROGRAM [ARGUMENT ...]`: the kernel kills the program
when its parent dies, kill -9 included. It watches nothing itself.
"""

from __future__ import annotations

import os
import sys

from runtime.processes import die_with_parent


def main() -> None:
    parent_pid, program = int(sys.argv[1]), sys.argv[2:]
    if not die_with_parent(parent_pid):
        sys.exit(1)
    try:
        os.execvp(program[0], program)  # noqa: S606  (an argv list of our own making)
    except OSError as error:
        sys.exit(f"cannot start {program[0]}: {error.strerror}")


if __name__ == "__main__":
    main()
