"""A coordinator of a few lines: writes its endpoint and events, and waits to be ended."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from runtime.events import coordinator_source
from runtime.outbox import Outbox

options = dict(argument[2:].split("=", 1) for argument in sys.argv[1:])
folder = Path(options["folder"])
(folder / "argv.json").write_text(json.dumps(options), encoding="utf-8")
(folder / "pid").write_text(str(os.getpid()), encoding="ascii")
(folder / "endpoint").write_text(f"{options['host']}:4242\n", encoding="ascii")
assert os.environ["UNBROKEN_RUN_TOKEN"] == "ticket-1"
assert "UNBROKEN_AGENT_TOKEN" not in os.environ
with Outbox(folder / "outbox.db", coordinator_source(options["cluster"], options["run"])) as outbox:
    outbox.append("run.started", {"run": options["run"]}, key="started")
    if "over" in options:
        outbox.seal()
        sys.exit(0)
    outbox.append("run.progress", {"run": options["run"], "pid": os.getpid()})
    signal.pause()
