"""The keys by which a new process group finds its members: kept for one epoch only."""

from __future__ import annotations

import asyncio


class Rendezvous:
    """A key-value store for one epoch at a time; values are text (base64 of the peer's bytes)."""

    def __init__(self) -> None:
        self._epoch = 0
        self._values: dict[str, str] = {}
        self._changed = asyncio.Event()

    def open(self, epoch: int) -> None:
        """Starts an epoch; everything of the one before is gone and its waiters are refused."""
        if epoch != self._epoch:
            self._epoch = epoch
            self._values = {}
            self._wake()

    def set(self, epoch: int, key: str, value: str) -> bool:
        """False when the epoch is not the current one."""
        if epoch != self._epoch:
            return False
        self._values[key] = value
        self._wake()
        return True

    async def get(self, epoch: int, keys: list[str]) -> list[str] | None:
        """Waits for all keys; None when the epoch is over."""
        while epoch == self._epoch:
            if all(key in self._values for key in keys):
                return [self._values[key] for key in keys]
            await self._changed.wait()
        return None

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
