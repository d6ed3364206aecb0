"""`python -m runtime coordinator`: one run's coordinator as a process of its own."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

from runtime.coordinator.model import Config
from runtime.coordinator.server import read_token, run_server
from runtime.processes import die_with_parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--folder", type=Path, required=True, help="journal, outbox, endpoint")
    parser.add_argument("--run", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--spares", type=int, required=True)
    parser.add_argument("--contract", default=None)
    parser.add_argument("--checkpoint-every", type=int, default=0, metavar="STEPS")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0)


def main(arguments: argparse.Namespace) -> int:
    # It belongs to the one who started it: launcher or agent.
    if not die_with_parent(os.getppid(), signal.SIGTERM):
        return 1
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    config = Config(
        run=arguments.run,
        cluster=arguments.cluster,
        world_size=arguments.ranks,
        spares=arguments.spares,
        contract=arguments.contract,
        checkpoint_every_steps=arguments.checkpoint_every or None,
    )
    token = read_token()
    outcome = run_server(arguments.folder, config, token, arguments.host, arguments.port)
    # 3: it did its work, and a restart would change nothing.
    return 0 if outcome in ("completed", "parked") else 3
