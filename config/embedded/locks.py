"""File locks that the kernel drops when their holder dies; waiting is always bounded."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config.embedded.errors import EmbeddedError

POLL_SECONDS = 0.02


def open_lock(path: Path) -> int:
    """A descriptor of its own, so of its own lock; not handed to programs we start."""
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def try_lock(descriptor: int, *, exclusive: bool) -> bool:
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def lock_within(descriptor: int, path: Path, *, exclusive: bool, timeout_seconds: float) -> None:
    """Raises EmbeddedError when another process keeps the lock past the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while not try_lock(descriptor, exclusive=exclusive):
        if time.monotonic() > deadline:
            raise EmbeddedError(f"{path} has been locked for {timeout_seconds:.0f} s by another")
        time.sleep(POLL_SECONDS)


@contextmanager
def locked(path: Path, *, timeout_seconds: float) -> Iterator[None]:
    descriptor = open_lock(path)
    try:
        lock_within(descriptor, path, exclusive=True, timeout_seconds=timeout_seconds)
        yield
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a living process holds the lock exclusively."""
    descriptor = open_lock(path)
    try:
        return not try_lock(descriptor, exclusive=False)
    finally:
        os.close(descriptor)
