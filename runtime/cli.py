"""`python -m runtime …`: one subcommand a room; errors are one clear line and a non-zero exit."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from typing import Final

# Imported when asked for, so that `--help` and the agent start at once.
COMMANDS: Final = {
    "launch": ("runtime.launch", "run a training script on this host, with hot spares"),
    "drill": ("runtime.drill.command", "a small real training with faults, proven bit-identical"),
    "coordinator": ("runtime.coordinator.command", "the coordinator of one run"),
    "agent": ("runtime.agent.daemon", "the daemon on a training node"),
}


def main(argv: Sequence[str] | None = None) -> int:
    from runtime.errors import FailoverError

    argv = list(sys.argv[1:] if argv is None else argv)
    parser = argparse.ArgumentParser(prog="python -m runtime")
    choices = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    wanted = argv[0] if argv else ""
    for name, (module, text) in COMMANDS.items():
        sub = choices.add_parser(name, help=text, description=text)
        if name == wanted:
            importlib.import_module(module).add_arguments(sub)
    arguments = parser.parse_args(argv)
    try:
        status: int = importlib.import_module(COMMANDS[arguments.command][0]).main(arguments)
    except FailoverError as error:
        print(f"unbroken {arguments.command}: {error}", file=sys.stderr)
        # 75 is EX_TEMPFAIL: whoever keeps this program running may start it again.
        return 75 if error.retryable else 2
    except KeyboardInterrupt:
        return 130
    return status
