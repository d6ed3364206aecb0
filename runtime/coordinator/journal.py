"""The coordinator's memory on disk: whole states, one line each, durable before they take effect.

A line is the CRC-32 of its body in eight hex digits, a space, the state as JSON. A torn last line
(a crash while writing) is dropped at the next start; the line before it holds.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path

from runtime.coordinator.model import State

COMPACT_BYTES = 4 << 20


class Journal:
    """Append-only file of states; `write` returns when the state is on the disk."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab")

    @staticmethod
    def read(path: Path) -> State | None:
        """The last whole state; None where there is no journal yet."""
        if not path.exists():
            return None
        last = None
        with path.open("rb") as lines:
            for line in lines:
                if _whole(line):
                    last = line
        return State.from_json(json.loads(last[9:])) if last else None

    def write(self, state: State) -> None:
        """Raises OSError when the disk refuses; what stood before is still whole then."""
        body = json.dumps(state.to_json(), separators=(",", ":")).encode()
        line = b"%08x " % zlib.crc32(body) + body + b"\n"
        if self._file.tell() + len(line) > COMPACT_BYTES:
            self._compact(line)
            return
        self._file.write(line)
        self._file.flush()
        os.fsync(self._file.fileno())

    def _compact(self, line: bytes) -> None:
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        self._file.close()
        self._file = self._path.open("ab")

    def close(self) -> None:
        self._file.close()


def _whole(line: bytes) -> bool:
    if not line.endswith(b"\n") or len(line) < 10:
        return False
    try:
        return int(line[:8], 16) == zlib.crc32(line[9:-1])
    except ValueError:
        return False
