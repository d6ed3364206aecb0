"""The replaceable process group: its holder never changes, what is inside it does.

A collective that fails does not raise: the group remembers the error, fills the output with zeros
of the right shape, and `commit` finds the step void.
"""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Callable
from typing import Any, Protocol

import torch
import torch.distributed as dist

from runtime.errors import StepVoid
from runtime.worker import points
from runtime.worker.sockets import break_connected, open_sockets
from runtime.worker.store import EpochStore

# Never reached in a sound run: what ends a blocked collective is the abort, not this.
_GLOO_TIMEOUT = dt.timedelta(hours=24)
# How often a waiting thread looks up, and how long after the break it still believes in an answer:
# ten times what a sound Gloo needs to raise once its sockets are shut (10-20 ms).
_GLANCE_SECONDS = 0.05
_GIVE_UP_SECONDS = 0.2


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
        work, self._work = self._work, None  # a work holds the group's sockets open
        if work is None:
            return False
        if self._group.wait_for(work):
            return True
        self._output.zero_()
        return False


class ReplaceableGroup:
    """Collectives of one run over Gloo, rebuilt in place for each epoch.

    `own_sockets` names the runtime's sockets, which a break must leave alone.
    """

    def __init__(
        self, own_sockets: Callable[[], frozenset[str]], interface: str = "127.0.0.1"
    ) -> None:
        self._own_sockets = own_sockets
        self._interface = interface
        self._inner: Any = None  # a ProcessGroupGloo, whose methods the stubs do not have
        self._error: BaseException | None = None
        self._broken_at = 0.0
        self._lock = threading.Lock()
        self._before: frozenset[str] = frozenset()
        self._sockets: set[str] = set()  # those of the inner group
        self._store: EpochStore | None = None
        self._building = False
        self._stuck: list[dist.Work] = []
        self._given_up: list[tuple[Any, list[dist.Work]]] = []
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

    # -- an epoch's group -----------------------------------------------------------------------

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
        try:
            inner = self._construct(store, rank, size)
        finally:
            self._building = False
            store.close()
        with self._lock:
            if self._error is not None:
                raise StepVoid(f"epoch {epoch} broke while its group was built")
            self._inner = inner
            self._sockets = set(open_sockets()) - self._before - self._own_sockets()
            self.detached = False
            self.epoch, self.rank, self.size = epoch, rank, size

    def _construct(self, store: EpochStore, rank: int, size: int) -> Any:
        """In a thread of its own: a member that dies in between can leave the others waiting."""
        made: list[Any] = []
        failed: list[BaseException] = []
        done = threading.Event()

        def make() -> None:
            gloo: Any = dist.ProcessGroupGloo  # its options are not in the stubs
            options = gloo._Options()
            options._devices = [gloo.create_device(hostname=self._interface)]
            options._timeout = _GLOO_TIMEOUT
            try:
                made.append(gloo(store, rank, size, options))
            except (RuntimeError, StepVoid) as error:
                # Told to the caller only: by now another epoch's group may be in place.
                failed.append(error)
            finally:
                done.set()

        threading.Thread(target=make, name="group-build", daemon=True).start()
        while not done.wait(_GLANCE_SECONDS):
            if self._is_hopeless():
                break
        if not made:
            error = failed[0] if failed else StepVoid("its members did not all come")
            self.break_up(error)
            raise StepVoid(f"the group could not be formed: {self._error}")
        return made.pop()

    def break_up(self, error: BaseException) -> None:
        """From any thread: what blocks in this group raises soon; later calls are no-ops.

        Breaking our own sockets also lets the error reach the other ranks.
        """
        with self._lock:
            if self._error is None:
                self._error, self._broken_at = error, time.monotonic()
            if self._building and self._store is not None:
                self._store.close()
            if self._building:
                break_connected(set(open_sockets()) - self._before - self._own_sockets())
            elif self._inner is not None:
                break_connected(self._sockets)

    def drop(self) -> None:
        """Lets go of the inner group, which closes its sockets; the training thread calls this."""
        with self._lock:
            inner, self._inner = self._inner, None
            stuck, self._stuck = self._stuck, []
            self._store = None
            self._given_up = [
                each for each in self._given_up if not all(w.is_completed() for w in each[1])
            ]
            if stuck:
                self._given_up.append((inner, stuck))

    # -- collectives ----------------------------------------------------------------------------

    def wait_for(self, work: dist.Work) -> bool:
        """Whether the collective succeeded; gives up on one that a broken group leaves behind.

        Gloo can lose the wake-up of a receive whose peer died in the middle of its message (seen
        with torch 2.13, once in about ten kills of a ring neighbour under load): its thread then
        waits for the whole timeout. Such a group is kept aside: its destructor would wait too.
        """
        while True:
            try:
                work.wait(dt.timedelta(seconds=_GLANCE_SECONDS))
            except RuntimeError:
                if work.is_completed():
                    return self._verdict(work)  # it may have ended well just after the glance
                if self._is_hopeless():
                    self._stuck.append(work)
                    return False
            else:
                return True

    def _verdict(self, work: dist.Work) -> bool:
        try:
            work.wait()
        except RuntimeError as error:
            self.break_up(error)
            return False
        return True

    def _is_hopeless(self) -> bool:
        since = time.monotonic() - self._broken_at
        return self._error is not None and since > _GIVE_UP_SECONDS

    def all_reduce(self, tensor: torch.Tensor) -> Pending:
        """Sums in place over all ranks, asynchronously. Detached (a spare warming up): a no-op."""
        if self.detached:
            return Pending(self, None, tensor)
        inner = self._inner
        if inner is None or self.broken:
            return Pending(self, None, tensor)
        try:
            work = inner.allreduce(tensor)
        except RuntimeError as error:
            self.break_up(error)
            return Pending(self, None, tensor)
        points.reach("collective")
        return Pending(self, work, tensor)

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
            work = inner.allgather(gathered, [mine])
        except RuntimeError as error:
            self.break_up(error)
            raise StepVoid(f"the first collective of epoch {self.epoch} failed") from error
        if not self.wait_for(work):
            raise StepVoid(f"the first collective of epoch {self.epoch} failed: {self._error}")
        return [bytes(each.tolist()).decode().strip() for each in gathered[0]]
