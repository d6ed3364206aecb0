"""This process's place in the run: epoch, rank and whose state; it trains nothing itself."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path
from typing import Any

from runtime.errors import CheckpointInvalid, StepVoid, TransferFailed, UsageError
from runtime.worker import checkpoint, points
from runtime.worker.group import ReplaceableGroup
from runtime.worker.link import Identity, Link, leave
from runtime.worker.sockets import inode_of
from runtime.worker.state import Snapshot, StateBook
from runtime.worker.store import EpochStore
from runtime.worker.transfer import Donor, receive


class Membership:
    """Follows the coordinator's orders from epoch to epoch; used by the training thread."""

    def __init__(self, identity: Identity, book: StateBook) -> None:
        self.book = book
        self.group = ReplaceableGroup(self._own_sockets)
        self.committed_step = 0
        self._identity = identity
        self._holds = False  # whether this process holds a whole state of the run
        self._initial: Snapshot | None = None
        self._proof: dict[str, Any] | None = None  # of what it was given since it last trained
        self._donor = Donor(identity.token)
        self._link = Link(identity, self._donor.endpoint, self._abort)
        self._save_every = int(os.environ.get("UNBROKEN_CHECKPOINT_EVERY", "0"))
        folder = os.environ.get("UNBROKEN_CHECKPOINTS", "")
        self._saver = checkpoint.Saver(Path(folder), self._saved) if folder else None
        self._link.start()

    @property
    def broken(self) -> bool:
        return self.group.broken

    # -- before the first rank ------------------------------------------------------------------

    def remember_initial(self) -> None:
        self._initial = self.book.capture(0).clone()

    def restore_initial(self) -> None:
        assert self._initial is not None  # noqa: S101 - remember_initial came first
        self.committed_step = self.book.apply(self._initial.clone())

    def ready(self, plan: str, framework: str) -> None:
        self._link.say_ready(plan, framework)

    # -- within an epoch ------------------------------------------------------------------------

    def may_begin(self, step: int) -> bool:
        """Waits out a pause that is being agreed on; False when a new epoch has to come first."""
        link, inbox = self._link, self._link.inbox
        with link.changed:
            while True:
                if self.group.broken or inbox.aborted_epoch >= self.group.epoch:
                    return False
                if inbox.stop is not None:
                    self._stop(inbox.stop)
                if inbox.hold_at is None or step <= inbox.hold_at:
                    inbox.running_step = step
                    return True
                if inbox.hold_is_final:
                    return False
                link.changed.wait()

    def committed(self, seconds: list[float], samples: int | None, tokens: int | None) -> None:
        """The step counts: says so, and saves a checkpoint where one is due.

        `samples` and `tokens` are those of one step of the whole run, None where not known.
        """
        self.committed_step += 1
        points.reach("committed")
        facts = self._link.facts
        facts.committed_step = self.committed_step
        facts.step_seconds = median = statistics.median(seconds[-20:])
        facts.samples_per_second = samples / median if samples is not None else None
        facts.tokens_per_second = tokens / median if tokens is not None else None
        del seconds[:-100]
        self._link.say_beat()
        due = self._save_every and self.committed_step % self._save_every == 0
        if due and self._saver is not None and self.group.rank == 0:
            self._saver.begin(self.book.capture(self.committed_step).clone(), self.group.epoch)

    def say_void(self) -> None:
        error = str(self.group.error or "the epoch was ended")
        self._link.send({"op": "void", "epoch": self.group.epoch, "error": error})

    def _saved(self, entry: dict[str, Any]) -> None:
        facts = self._link.facts
        facts.saved = [*facts.saved, entry][-checkpoint.KEEP :]
        self._link.send({"op": "saved", **entry})

    def _abort(self, epoch: int, reason: str) -> None:
        """From the link's thread: breaks whatever the training thread blocks in."""
        if epoch >= self.group.epoch:
            self.group.break_up(StepVoid(reason))

    def _own_sockets(self) -> frozenset[str]:
        return self._link.inodes() | {inode_of(self._donor.listener)}

    # -- between epochs -------------------------------------------------------------------------

    def regroup(self) -> None:
        """Stands still, follows orders, and returns once this process trains in a new epoch."""
        self.group.drop()
        self._link.facts.finished = False
        if self._holds:
            self._donor.offer(self.group.epoch, self.book.capture(self.committed_step))
        if self.group.epoch:
            self._link.say_boundary(self.group.epoch, self.committed_step if self._holds else None)
        while True:
            order = self._wait_for_order()
            try:
                self._enter(order)
                return
            except (StepVoid, TransferFailed) as error:
                self._give_up(order, error)
            except CheckpointInvalid as error:
                self._link.send({"op": "bad_checkpoint", "path": order["checkpoint"]["path"]})
                self._give_up(order, error)

    def _give_up(self, order: dict[str, Any], error: Exception) -> None:
        self.group.drop()
        self._link.send({"op": "void", "epoch": order["epoch"], "error": str(error)})
        self._link.say_boundary(order["epoch"], self.committed_step if self._holds else None)

    def _wait_for_order(self) -> dict[str, Any]:
        link, inbox = self._link, self._link.inbox
        with link.changed:
            while True:
                if inbox.stop is not None:
                    self._stop(inbox.stop)
                if inbox.retire:
                    leave(0)
                if inbox.order is not None:
                    order, inbox.order = inbox.order, None
                    self.group.epoch = order["epoch"]
                    # In this order: the link's thread may beat in between.
                    if order["source"] != "own":
                        link.facts.committed_step = None
                    link.facts.epoch = order["epoch"]
                    link.facts.boundary_epoch = link.facts.joined_epoch = None
                    return order
                link.changed.wait()

    def _stop(self, outcome: str) -> None:
        if self._saver is not None:
            self._saver.wait()
        if outcome == "parked":
            points.reach("parked")
        leave(0 if outcome in ("completed", "parked") else 1)

    def _enter(self, order: dict[str, Any]) -> None:
        epoch, rank, size = order["epoch"], order["rank"], order["world_size"]
        self._take_state(order)
        points.reach("building")
        self.group.build(
            self._store(epoch), epoch, rank, size, lambda: self._link.inbox.aborted_epoch >= epoch
        )
        points.reach("comparing")
        self._compare(order)
        self._link.say_joined(epoch, self.committed_step, self._proof)
        points.reach("joined")
        self._wait_for_go(epoch)
        self._donor.withdraw()
        self._proof = None

    def _take_state(self, order: dict[str, Any]) -> None:
        """Makes this process hold the state of the order's step; the donor side starts here too."""
        facts = {key: order[key] for key in ("rank", "epoch", "source")}
        points.reach("taking_state", step=order["committed_step"] + 1, **facts)
        began = time.monotonic()
        match order["source"]:
            case "own":
                pass
            case "peers":
                self._donor.withdraw()
                received = receive(order["donors"], self._identity.token, order["epoch"])
                self._adopt(received.snapshot)
                self._note(received.digest, received.bytes, began, received.sources)
            case "checkpoint":
                entry = order["checkpoint"]
                snapshot = checkpoint.load(Path(entry["path"]), entry["digest"])
                self._adopt(snapshot)
                self._note(entry["digest"], snapshot.nbytes, began, [])
            case "initial":
                self.restore_initial()
                self._holds = True
                self._note(self.book.capture(0).digest(), 0, began, [])
        if self.committed_step != order["committed_step"]:
            raise TransferFailed(f"holds step {self.committed_step}, not {order['committed_step']}")
        self._holds = True
        self._donor.offer(order["epoch"] - 1, self.book.capture(self.committed_step))
        self._link.facts.committed_step = self.committed_step

    def _note(self, digest: str, size: int, began: float, sources: list[str]) -> None:
        """The evidence of a movement; it stays true where the epoch breaks before it trains."""
        seconds = time.monotonic() - began
        self._proof = {"bytes": size, "seconds": seconds, "digest": digest, "sources": sources}

    def _adopt(self, snapshot: Snapshot) -> None:
        # What arrived is whole and verified; until here the old state stood untouched.
        points.reach("applying")
        self.committed_step = self.book.apply(snapshot)
        self._holds = True

    def _store(self, epoch: int) -> EpochStore:
        identity = self._identity
        while True:
            try:
                return EpochStore(identity.endpoint, identity.token, identity.name, epoch)
            except OSError:
                # The coordinator is away; its line comes back before any order can.
                if self._link.inbox.aborted_epoch >= epoch:
                    raise StepVoid(f"epoch {epoch} ended") from None
                time.sleep(0.05)

    def _compare(self, order: dict[str, Any]) -> None:
        """The epoch's first collective: every rank shows the state it starts from."""
        text = f"step {self.committed_step}"
        if order["committed_step"] == 0:
            text = self.book.capture(0).digest()
        shown = self.group.gather_text(text)
        if len(set(shown)) > 1:
            odd = [rank for rank, each in enumerate(shown) if each != shown[0]]
            raise UsageError(
                f"ranks {odd} start from another state than rank 0: build the model and the "
                "optimizer after torch.manual_seed with the same seed on every rank"
            )

    def _wait_for_go(self, epoch: int) -> None:
        link, inbox = self._link, self._link.inbox
        with link.changed:
            while inbox.go_epoch < epoch:
                if inbox.aborted_epoch >= epoch or self.group.broken:
                    raise StepVoid(f"epoch {epoch} ended before it began")
                if inbox.stop is not None:
                    self._stop(inbox.stop)
                link.changed.wait()
            inbox.running_step = self.committed_step

    # -- the end --------------------------------------------------------------------------------

    def finish(self) -> bool:
        """No step is left: True once all ranks say so; False when a new epoch comes first."""
        link, inbox, epoch = self._link, self._link.inbox, self.group.epoch
        link.facts.finished = True
        link.send({"op": "finished", "epoch": epoch, "committed_step": self.committed_step})
        with link.changed:
            while inbox.stop is None:
                if inbox.aborted_epoch >= epoch or inbox.hold_is_final:
                    link.facts.finished = False
                    return False
                link.changed.wait()
        if self._saver is not None:
            self._saver.wait()
        if inbox.stop != "completed":
            leave(1)
        return True
