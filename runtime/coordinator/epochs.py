"""Which way out: how the next epoch of a broken, paused or new run is decided; pure."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.coordinator import reports
from runtime.coordinator.acts import Acts
from runtime.coordinator.model import (
    Move,
    Phase,
    Recovery,
    Role,
    SendNode,
    Stop,
    Worker,
    by_rank,
)


class Turn(Acts):
    """The acts of one message, and the decisions that follow from them."""

    # -- failures ---------------------------------------------------------------------------

    def fail(self, worker: Worker, cause: Mapping[str, object], detector: str) -> None:
        """A worker is lost for good: fence it, break its epoch if a member, refill its slot."""
        if worker.role == Role.GONE:
            return
        state = self.state
        was_member, was_source = worker.role == Role.MEMBER, self.is_source(worker)
        worker.role = Role.GONE
        # Also after the end: a process that hangs there would keep everybody waiting.
        self.actions.append(
            SendNode(worker.node, {"op": "kill", "slot": worker.slot, "name": worker.name})
        )
        if state.phase == Phase.FINISHED:
            return
        self.log(f"worker {worker.name} is lost: {cause['kind']}, {cause['detail']}")
        self.refill(worker.slot, worker.node)
        if was_member:
            rank = state.rank_of(worker.name)
            self.record(worker, rank, cause, detector)
            self.unwind(f"rank {rank} was lost")
        elif was_source:
            self.record(worker, self.moved_rank(worker), cause, detector)
            self.unwind(f"{worker.name} was lost while its state was being moved")
        self.decide()

    def is_source(self, worker: Worker) -> bool:
        """Whether this is the source of a planned move whose state has not all arrived yet."""
        return worker.role == Role.RETIRING and worker.committed_step is not None

    def moved_rank(self, source: Worker) -> int | None:
        replaced = self.state.recovery.replaced if self.state.recovery is not None else {}
        return next((int(rank) for rank, pair in replaced.items() if pair[0] == source.name), None)

    # -- the next epoch ---------------------------------------------------------------------

    def decide(self) -> None:
        """Issues the next epoch as soon as what it needs is there; else waits, without limit."""
        state = self.state
        if state.phase == Phase.GATHERING:
            self.first_epoch()
        elif state.phase == Phase.UNWINDING:
            self.next_epoch()
        elif state.phase == Phase.PAUSING:
            self.planned_epoch()
        elif state.phase == Phase.TRAINING:
            self.start_move()

    def first_epoch(self) -> None:
        state = self.state
        ready = sorted(state.ready_spares(), key=lambda worker: (worker.slot, worker.incarnation))
        if len(ready) < state.config.world_size:
            return
        for rank, worker in enumerate(ready[: state.config.world_size]):
            self.seat(rank, worker)
            worker.committed_step = 0
        self.issue(source="initial", donors=[], committed_step=0)

    def next_epoch(self) -> None:
        """After a failure: rebuild from survivors, else from a checkpoint."""
        state = self.state
        members = state.members()
        if any(not worker.boundary for worker in members):
            return
        # The source of a move that broke under way stands still and holds its state as before.
        sources = [worker for worker in state.workers.values() if self.is_source(worker)]
        holders = [worker for worker in members if worker.committed_step is not None] + sources
        best = max((worker.committed_step or 0 for worker in holders), default=None)
        known = self.known_step()
        if best is None and max(known, state.highest_step) == 0:
            best = 0  # nothing was committed yet: every process can make step 0 itself
        committed = max(known, state.highest_step if best is None else best)
        for failure in state.failures:
            if not failure.reported:
                reports.failed(state, failure, committed)
        replaced = self.fill_ranks()
        if replaced is None:
            return
        if best is None:
            self.roll_back(committed, replaced)
            return
        donors = [worker for worker in holders if worker.committed_step == best]
        for worker in state.members():
            if worker.committed_step is not None and worker.committed_step < best:
                replaced.setdefault(str(state.rank_of(worker.name)), [worker.name, worker.name])
        self.begin_recovery(committed, best, replaced)
        if state.recovery is not None and state.recovery.reason:
            donors = sources or donors  # still the planned move, so still from its source
        self.issue(source="peers" if donors else "initial", donors=donors, committed_step=best)

    def known_step(self) -> int:
        """What this recovery has said was committed; the death of who held it does not undo it."""
        state = self.state
        said = [failure.committed_step for failure in state.failures if failure.reported]
        if state.recovery is not None:
            said.append(state.recovery.committed_step)
        return max(said, default=0)

    def fill_ranks(self) -> dict[str, list[str]] | None:
        """Seats a spare in each empty rank, rank → [old, new]; None while there are too few."""
        state = self.state
        missing = [
            rank
            for rank, name in sorted(state.ranks.items(), key=by_rank)
            if state.workers[name].role != Role.MEMBER
        ]
        spares = state.ready_spares()
        if len(spares) < len(missing):
            self.log(f"waiting for {len(missing) - len(spares)} more spare(s)")
            return None
        replaced: dict[str, list[str]] = {}
        for rank, spare in zip(missing, spares, strict=False):
            replaced[rank] = [state.ranks[rank], spare.name]
            self.seat(int(rank), spare)
        return replaced

    def roll_back(self, committed: int, replaced: dict[str, list[str]]) -> None:
        state = self.state
        newest = state.checkpoints[-1] if state.checkpoints else None
        step = int(newest["step"]) if newest else 0
        # A rank may have saved a step and died before anybody else had committed it.
        committed = max(committed, step)
        self.log(f"no copy of the state lives: back to step {step} from {committed}")
        self.begin_recovery(committed, step, replaced, from_checkpoint=True)
        for worker in state.members():
            worker.committed_step = None
        source = "checkpoint" if newest else "initial"
        self.issue(source=source, donors=[], committed_step=step, checkpoint=newest)

    def begin_recovery(
        self,
        committed: int,
        restored: int,
        replaced: dict[str, list[str]],
        *,
        from_checkpoint: bool = False,
    ) -> None:
        """Notes the way out; one that broke under way goes on in it, and hides nothing of it."""
        state = self.state
        failures, earlier = state.failures, state.recovery
        if not failures and earlier is None:
            return  # an epoch in which nobody had trained yet is formed again; nothing was lost
        if earlier is not None:
            self.add_earlier_moves(earlier, replaced)
        reason = earlier.reason if earlier is not None and not failures else ""
        if from_checkpoint or (earlier is not None and earlier.mode == "checkpoint_rollback"):
            mode, state_source = "checkpoint_rollback", "checkpoint"
        elif replaced and not reason:
            mode, state_source = "replica_rebuild", "replica"
        else:
            mode, state_source = "live_migration", "source_memory"
        # A movement belongs to the failures of its from_epoch; an epoch that broke before anybody
        # trained in it, and lost nobody, has none.
        before = earlier.from_epoch if earlier else state.epoch
        first = min(
            (failure.detected_at for failure in failures),
            default=earlier.detected_at if earlier else self.now,
        )
        began = min((failure.last_seen for failure in failures), default=first)
        state.recovery = Recovery(
            from_epoch=max((failure.epoch for failure in failures), default=before),
            mode=mode,
            state_source=state_source,
            committed_step=committed,
            resumed_step=restored + 1,
            began_at=min(began, first),
            detected_at=first,
            decided_at=self.now,
            failure_ids=[failure.failure_id for failure in failures],
            replaced=replaced,
            reason=reason,
        )

    def add_earlier_moves(self, earlier: Recovery, replaced: dict[str, list[str]]) -> None:
        """What the broken recovery had moved counts: a rank came from where it was before both."""
        for rank, (old, new) in earlier.replaced.items():
            holder = self.state.workers[new]
            # One that lagged, and whose sources died before it had received, was not moved.
            moved = old != new or holder.committed_step == earlier.resumed_step - 1
            if rank in replaced:
                replaced[rank] = [old, replaced[rank][1]]
            elif moved and holder.role == Role.MEMBER:
                replaced[rank] = [old, new]

    def joined(self) -> None:
        """Every member stands in the new epoch with the same state: training goes on."""
        state = self.state
        state.phase = Phase.TRAINING
        recovery, state.recovery = state.recovery, None
        state.failures = []
        if recovery is not None:
            reports.recovered(state, recovery, self.now)
            state.lost_seconds += self.now - recovery.began_at
            self.log(
                f"epoch {state.epoch} trains on from step {recovery.resumed_step} "
                f"({recovery.mode}, {self.now - recovery.began_at:.3f} s)"
            )
        for worker in state.workers.values():
            if worker.role == Role.MEMBER:
                worker.received = None
                self.tell(worker, {"op": "go", "epoch": state.epoch})
            elif worker.role == Role.RETIRING:
                worker.committed_step = None  # what it holds is the past from now on
                self.tell(worker, {"op": "retire"})
        self.forget_the_dead()
        self.decide()

    def forget_the_dead(self) -> None:
        """A long run replaces many; the slot's newest incarnation is enough to fence them."""
        state = self.state
        state.workers = {
            name: worker
            for name, worker in state.workers.items()
            if worker.role != Role.GONE
            or worker.incarnation >= state.incarnations.get(worker.slot, 0)
        }

    # -- planned moves ----------------------------------------------------------------------

    def ask_move(self, worker: Worker, reason: str, *, suspect: bool) -> None:
        state = self.state
        if suspect and worker.node not in state.suspect_nodes:
            state.suspect_nodes.append(worker.node)
        if all(move.worker != worker.name for move in state.moves):
            state.moves.append(Move(worker.name, reason, self.now, suspect))
            self.log(f"{worker.name} is to be moved: {reason}")
        self.decide()

    def wanted_moves(self) -> list[Move]:
        state = self.state
        state.moves = [
            move
            for move in state.moves
            if move.worker in state.workers and state.workers[move.worker].role == Role.MEMBER
        ]
        return state.moves[: len(state.ready_spares())]

    def start_move(self) -> None:
        if self.wanted_moves():
            self.state.phase = Phase.PAUSING
            for worker in self.state.members():
                worker.pause_reply = None
                self.tell(worker, {"op": "pause", "epoch": self.state.epoch})

    def agreed_boundary(self) -> int | None:
        """The latest of the boundaries that all members have named; None while one is missing."""
        replies = [worker.pause_reply for worker in self.state.members()]
        if len(replies) < self.state.config.world_size:
            return None
        named = [reply for reply in replies if reply is not None]
        return max(named) if len(named) == len(replies) else None

    def tell_boundary(self) -> None:
        """All members stop at the same boundary, which is the latest that one of them named."""
        if (step := self.agreed_boundary()) is not None:
            for worker in self.state.members():
                self.tell(worker, {"op": "pause_at", "epoch": self.state.epoch, "step": step})

    def planned_epoch(self) -> None:
        state = self.state
        members = state.members()
        if any(not worker.boundary for worker in members):
            return
        committed = max(worker.committed_step or 0 for worker in members)
        behind = [worker for worker in members if worker.committed_step != committed]
        if behind:
            # Its last step became void, and its word of that was lost with its line.
            cause = {"kind": "fabric", "code": None, "detail": "its last step became void"}
            self.record(behind[0], state.rank_of(behind[0].name), cause, "coordinator")
            state.phase = Phase.UNWINDING
            self.next_epoch()
            return
        moves = self.wanted_moves()
        replaced: dict[str, list[str]] = {}
        donors = []
        for move, spare in zip(moves, state.ready_spares(), strict=False):
            old = state.workers[move.worker]
            rank = state.rank_of(old.name)
            assert rank is not None  # noqa: S101 - wanted_moves keeps members only
            old.role = Role.RETIRING
            replaced[str(rank)] = [old.name, spare.name]
            self.seat(rank, spare)
            donors.append(old)
        if moves:
            self.begin_move(committed, replaced, moves[0].reason)
        else:
            self.log("the spare for the move is gone: the same members go on")
        state.moves = [move for move in state.moves if move not in moves]
        self.issue(source="peers", donors=donors, committed_step=committed)

    def begin_move(self, committed: int, replaced: dict[str, list[str]], reason: str) -> None:
        self.state.recovery = Recovery(
            from_epoch=self.state.epoch,
            mode="live_migration",
            state_source="source_memory",
            committed_step=committed,
            resumed_step=committed + 1,
            began_at=self.now,
            detected_at=self.now,
            decided_at=self.now,
            failure_ids=[],
            replaced=replaced,
            reason=reason,
        )

    # -- the end ----------------------------------------------------------------------------

    def stop(self, outcome: str, by: str) -> None:
        """Ends the run, once; what had failed until then is reported even so."""
        state = self.state
        if state.phase == Phase.FINISHED:
            return
        state.phase = Phase.FINISHED
        state.outcome = outcome
        for failure in state.failures:
            if not failure.reported:
                reports.failed(state, failure, max(self.known_step(), state.highest_step))
        reports.finished(state, outcome, by)
        for worker in state.workers.values():
            if worker.role != Role.GONE:
                self.tell(worker, {"op": "stop", "outcome": outcome})
        self.log(f"the run is {outcome} at step {state.committed_step}")
        self.actions.append(Stop(outcome))
