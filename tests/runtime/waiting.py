"""Waiting for a condition with a deadline, for tests of real processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_for(condition: Callable[[], T], timeout_seconds: float = 10.0, what: str = "") -> T:
    """The first true value of `condition`; AssertionError after the timeout."""
    deadline = time.monotonic() + timeout_seconds
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {timeout_seconds} s: {what or condition}")
        time.sleep(0.02)
