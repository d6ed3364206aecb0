"""The drill's own witness: an append-only file that the training script writes, not the runtime."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any


class Trace:
    """One line of JSON a record, each written by a single O_APPEND write."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._attempts: dict[int, int] = {}

    def attempt(self, step: int) -> int:
        """Counts how often this process has begun the step."""
        self._attempts[step] = self._attempts.get(step, 0) + 1
        return self._attempts[step]

    def write(self, what: str, *, rank: int, step: int, epoch: int, **more: Any) -> None:
        record = {
            "t": time.monotonic(),
            "pid": os.getpid(),
            "slot": os.environ.get("UNBROKEN_SLOT", ""),
            "what": what,
            "rank": rank,
            "step": step,
            "epoch": epoch,
            "attempt": self._attempts.get(step, 0),
            **more,
        }
        os.write(self._descriptor, json.dumps(record).encode() + b"\n")
