"""The coordinator's memory on disk: whole states, one line each, durable before they take effect.

A line is the CRC-32 of its body in eight hex digits, a space, the state as JSON. A torn last line
(a crash while writing) is dropped at the next start; the line before it holds.
"""

from __future__ import annotations

import errno
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
        # Unbuffered: what a full disk refused must not be written later, after its state is gone.
        self._file = path.open("ab", buffering=0)
        self._end_torn_line()
        _sync_folder(path)

    def _end_torn_line(self) -> None:
        """A line that a crash tore must not swallow the one that follows it."""
        with self._path.open("rb") as file:
            if self._size() == 0:
                return
            file.seek(-1, os.SEEK_END)
            torn = file.read(1) != b"\n"
        if torn:
            self._file.write(b"\n")

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
        whole = self._size()
        if whole + len(line) > COMPACT_BYTES:
            self._compact(line)
            return
        try:
            self._append(line)
        except OSError:
            self._file.truncate(whole)
            raise

    def _append(self, line: bytes) -> None:
        if self._file.write(line) != len(line):
            raise OSError(errno.ENOSPC, "the journal's disk took a part of a line only")
        os.fsync(self._file.fileno())

    def _size(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def _compact(self, line: bytes) -> None:
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        _sync_folder(self._path)
        self._file.close()
        self._file = self._path.open("ab", buffering=0)

    def close(self) -> None:
        self._file.close()


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _whole(line: bytes) -> bool:
    if not line.endswith(b"\n") or len(line) < 10:
        return False
    try:
        return int(line[:8], 16) == zlib.crc32(line[9:-1])
    except ValueError:
        return False
