"""The replaceable process group: its holder never changes, what is inside it does.

A collective that fails does not raise: the group remembers the error, fills the output with zeros
of the right shape, and `commit` finds the step void.
"""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from runtime.errors import StepVoid
from runtime.worker.sockets import break_connected, open_sockets
from runtime.worker.store import EpochStore

# Never reached in a sound run: what ends a blocked collective is the abort, not this.
_GLOO_TIMEOUT = dt.timedelta(hours=24)


class Sum(Protocol):
    """One sum under way; `wait` says whether it gave the right result."""

    def wait(self) -> bool: ...


class Pending:
    """One collective under way; `wait` returns whether it gave the right result."""

    def __init__(self, group: ReplaceableGroup, work: dist.Work | None, output: torch.Tensor):
        self._group = group
        self._work = work
        self._output = output

    def wait(self) -> bool:
        if self._work is None:
            return False
        try:
            self._work.wait()
        except RuntimeError as error:
            self._group.note(error)
            self._output.zero_()
            return False
        finally:
            self._work = None  # the work holds the group's sockets open
        return not self._group.broken


class ReplaceableGroup:
    """Collectives of one run over Gloo, rebuilt in place for each epoch."""

    def __init__(self, interface: str = "127.0.0.1") -> None:
        self._interface = interface
        self._inner: Any = None  # a ProcessGroupGloo, whose methods the stubs do not have
        self._error: BaseException | None = None
        self._lock = threading.Lock()
        self._before: frozenset[str] = frozenset()
        self._store: EpochStore | None = None
        self._building = False
        self.detached = True
        self.epoch = 0
        self.rank = 0
        self.size = 1

    @property
    def broken(self) -> bool:
        return self._error is not None

    @property
    def error(self) -> BaseException | None:
        return self._error

    def note(self, error: BaseException) -> None:
        with self._lock:
            self._error = self._error or error

    def build(
        self, store: EpochStore, epoch: int, rank: int, size: int, is_over: Callable[[], bool]
    ) -> None:
        """Builds the epoch's group; StepVoid when the epoch broke meanwhile."""
        with self._lock:
            self._store = store
            self._before = frozenset(open_sockets())
            self._error = None
            if is_over():  # an abort that came before this line found nothing to break
                store.close()
                raise StepVoid(f"epoch {epoch} ended before its group was built")
            self._building = True
        gloo: Any = dist.ProcessGroupGloo  # its options are not in the stubs
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname=self._interface)]
        options._timeout = _GLOO_TIMEOUT
        try:
            inner = gloo(store, rank, size, options)
        except (RuntimeError, StepVoid) as error:
            self.note(error)
            raise StepVoid(f"epoch {epoch} could not form its group: {error}") from error
        finally:
            store.close()
        with self._lock:
            self._building = False
            if self._error is not None:
                raise StepVoid(f"epoch {epoch} broke while its group was built")
            self._inner = inner
            self.detached = False
            self.epoch, self.rank, self.size = epoch, rank, size

    def abort(self, reason: str, ours: frozenset[str]) -> None:
        """From any thread: what blocks in this group raises soon; later calls are no-ops."""
        with self._lock:
            self._error = self._error or StepVoid(reason)
            if self._store is not None and self._building:
                self._store.close()
            if self._inner is not None or self._building:
                break_connected(ours, self._before)

    def drop(self) -> None:
        """Lets go of the inner group, which closes its sockets; the training thread calls this."""
        with self._lock:
            self._inner = None
            self._store = None

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Sums in place over all ranks, asynchronously. Detached (a spare warming up): a no-op."""
        if self.detached:
            return Pending(self, None, tensor)
        inner = self._inner
        if inner is None or self.broken:
            return Pending(self, None, tensor)
        try:
            return Pending(self, inner.allreduce(tensor), tensor)
        except RuntimeError as error:
            self.note(error)
            return Pending(self, None, tensor)

    def gather_text(self, text: str) -> list[str]:
        """Every rank's 64-character text, by rank; StepVoid when the epoch breaks under it."""
        mine = torch.frombuffer(bytearray(text.encode().ljust(64)), dtype=torch.uint8)
        inner = self._inner
        if inner is None:
            raise StepVoid("no group")
        if self.size == 1:
            return [text]
        gathered = [[torch.empty_like(mine) for _ in range(self.size)]]
        try:
            inner.allgather(gathered, [mine]).wait()
        except RuntimeError as error:
            self.note(error)
            raise StepVoid(f"the first collective of epoch {self.epoch} failed") from error
        return [bytes(each.tolist()).decode().strip() for each in gathered[0]]
