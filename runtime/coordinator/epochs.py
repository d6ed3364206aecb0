"""Which way out: how the next epoch of a broken, paused or new run is decided; pure."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.coordinator import reports
from runtime.coordinator.model import (
    Action,
    Failure,
    Log,
    Move,
    Phase,
    Recovery,
    Role,
    SendNode,
    SendWorker,
    State,
    Stop,
    Worker,
)

# A script that raises at the same step on this many fresh processes has a fault of its own.
USER_ERROR_LIMIT = 2


class Turn:
    """One application of a message: the state being changed and the actions it asks for."""

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.actions: list[Action] = []

    def log(self, text: str) -> None:
        self.actions.append(Log(text))

    def tell(self, worker: Worker, message: dict[str, object]) -> None:
        if worker.connected:
            self.actions.append(SendWorker(worker.name, dict(message)))

    # -- failures ---------------------------------------------------------------------------

    def fail(self, worker: Worker, cause: Mapping[str, object], detector: str) -> None:
        """A worker is lost for good: fence it, break its epoch if a member, refill its slot."""
        if worker.role == Role.GONE:
            return
        was_member = worker.role == Role.MEMBER
        rank = self.state.rank_of(worker.name)
        worker.role = Role.GONE
        if self.state.phase == Phase.FINISHED:
            return
        self.log(f"worker {worker.name} is lost: {cause['kind']}, {cause['detail']}")
        self.actions.append(
            SendNode(worker.node, {"op": "kill", "slot": worker.slot, "name": worker.name})
        )
        self.refill(worker.slot, worker.node)
        if not was_member:
            return
        self.record(worker, rank, cause, detector)
        self.unwind(f"rank {rank} was lost")
        self.decide()

    def record(
        self, worker: Worker, rank: int | None, cause: Mapping[str, object], detector: str
    ) -> None:
        state = self.state
        # A broken collective names no culprit; once the culprit is known, that suspicion goes.
        state.failures = [
            earlier
            for earlier in state.failures
            if earlier.cause["kind"] != "fabric" or earlier.epoch != state.epoch
        ]
        state.failure_count += 1
        state.failures.append(
            Failure(
                failure_id=f"{state.config.run}-f{state.failure_count:04d}",
                epoch=state.epoch,
                rank=rank,
                worker=worker.name,
                node=worker.node,
                cause=dict(cause),
                detector=detector,
                detected_at=self.now,
                last_seen=worker.last_seen,
            )
        )

    def unwind(self, why: str) -> None:
        """Breaks the epoch under its members; each of them comes to a boundary and says so."""
        state = self.state
        if state.phase not in (Phase.TRAINING, Phase.PAUSING, Phase.REGROUPING):
            return
        self.log(f"epoch {state.epoch} is broken: {why}")
        if state.phase == Phase.REGROUPING:
            for worker in state.members():
                worker.boundary = False
        state.phase = Phase.UNWINDING
        for worker in state.members():
            worker.pause_reply = None
            self.tell(worker, {"op": "abort", "epoch": state.epoch})

    def refill(self, slot: str, node: str) -> None:
        """Asks for a fresh process in the slot, unless its hardware is suspect."""
        state = self.state
        if state.phase == Phase.FINISHED or node in state.suspect_nodes:
            return
        state.incarnations[slot] = state.incarnations.get(slot, 0) + 1
        self.actions.append(
            SendNode(node, {"op": "spawn", "slot": slot, "incarnation": state.incarnations[slot]})
        )

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

    def seat(self, rank: int, worker: Worker) -> None:
        worker.role = Role.MEMBER
        worker.boundary = True
        worker.committed_step = None
        worker.received = None
        self.state.ranks[str(rank)] = worker.name

    def next_epoch(self) -> None:
        """After a failure: rebuild from survivors, else from a checkpoint."""
        state = self.state
        members = state.members()
        if any(not worker.boundary for worker in members):
            return
        holders = [worker for worker in members if worker.committed_step is not None]
        missing = [
            rank
            for rank, name in sorted(state.ranks.items(), key=lambda item: int(item[0]))
            if state.workers[name].role != Role.MEMBER
        ]
        spares = state.ready_spares()
        if len(spares) < len(missing):
            self.log(f"waiting for {len(missing) - len(spares)} more spare(s)")
            return
        replaced: dict[str, list[str]] = {}
        for rank, spare in zip(missing, spares, strict=False):
            replaced[rank] = [state.ranks[rank], spare.name]
            self.seat(int(rank), spare)
        best = max((worker.committed_step or 0 for worker in holders), default=None)
        committed = max(state.highest_step, best or 0) if best is None else best
        # What a live member was known to have committed may not be talked away by its death.
        for failure in state.failures:
            if not failure.reported:
                reports.failed(state, failure, committed)
        if best is None:
            self.roll_back(committed, replaced)
            return
        donors = [worker for worker in holders if worker.committed_step == best]
        for worker in state.members():
            if worker.committed_step is not None and worker.committed_step < best:
                replaced.setdefault(str(state.rank_of(worker.name)), [worker.name, worker.name])
        mode = "replica_rebuild" if replaced else "live_migration"
        state_source = "replica" if replaced else "source_memory"
        self.begin_recovery(mode, state_source, best, best + 1, replaced)
        self.issue(source="peers", donors=donors, committed_step=best)

    def roll_back(self, committed: int, replaced: dict[str, list[str]]) -> None:
        state = self.state
        newest = state.checkpoints[-1] if state.checkpoints else None
        step = int(newest["step"]) if newest else 0
        self.log(f"no copy of the state lives: back to step {step} from {committed}")
        self.begin_recovery("checkpoint_rollback", "checkpoint", committed, step + 1, replaced)
        for worker in state.members():
            worker.committed_step = None
        source = "checkpoint" if newest else "initial"
        self.issue(source=source, donors=[], committed_step=step, checkpoint=newest)

    def begin_recovery(
        self,
        mode: str,
        state_source: str,
        committed: int,
        resumed: int,
        replaced: dict[str, list[str]],
    ) -> None:
        state = self.state
        failures = state.failures
        earlier = state.recovery
        for rank, pair in (earlier.replaced if earlier else {}).items():
            # A recovery that broke under way: the rank came from where it was before both.
            if rank in replaced:
                replaced[rank] = [pair[0], replaced[rank][1]]
            elif state.workers[pair[1]].role == Role.MEMBER:
                replaced[rank] = pair
        first = min((failure.detected_at for failure in failures), default=self.now)
        began = min((failure.last_seen for failure in failures), default=first)
        state.recovery = Recovery(
            from_epoch=state.epoch,
            mode=mode,
            state_source=state_source,
            committed_step=committed,
            resumed_step=resumed,
            began_at=min(began, first),
            detected_at=first,
            decided_at=self.now,
            failure_ids=[failure.failure_id for failure in failures],
            replaced=replaced,
        )

    def issue(
        self,
        *,
        source: str,
        donors: list[Worker],
        committed_step: int,
        checkpoint: dict[str, object] | None = None,
    ) -> None:
        """Tells every member its rank in the next epoch and where its state comes from."""
        state = self.state
        state.epoch += 1
        state.phase = Phase.REGROUPING
        offered = [
            {"name": donor.name, "endpoint": donor.transfer}
            for donor in donors
            if donor.role in (Role.MEMBER, Role.RETIRING)
        ]
        for rank, name in sorted(state.ranks.items(), key=lambda item: int(item[0])):
            worker = state.workers[name]
            holds = worker.committed_step == committed_step and source in ("peers", "initial")
            worker.joined = False
            worker.finished = False
            worker.boundary = False
            worker.pause_reply = None
            self.tell(
                worker,
                {
                    "op": "epoch",
                    "epoch": state.epoch,
                    "rank": int(rank),
                    "world_size": state.config.world_size,
                    "committed_step": committed_step,
                    "source": "own" if holds else source,
                    "donors": offered,
                    "checkpoint": checkpoint,
                },
            )
        state.highest_step = state.committed_step = committed_step
        state.progress_step = min(state.progress_step, committed_step)
        self.log(f"epoch {state.epoch} issued at step {committed_step}, state from {source}")

    def joined(self) -> None:
        """Every member stands in the new epoch with the same state: training goes on."""
        state = self.state
        state.phase = Phase.TRAINING
        recovery, state.recovery = state.recovery, None
        state.failures = []
        if recovery is not None:
            reports.recovered(state, recovery, self.now)
            self.log(
                f"epoch {state.epoch} trains on from step {recovery.resumed_step} "
                f"({recovery.mode}, {self.now - recovery.began_at:.3f} s)"
            )
        for worker in state.workers.values():
            if worker.role == Role.MEMBER:
                self.tell(worker, {"op": "go", "epoch": state.epoch})
            elif worker.role == Role.RETIRING:
                self.tell(worker, {"op": "retire"})
        self.decide()

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

    def agree_on_boundary(self) -> None:
        """All members have named the boundary they stop at: the latest of them holds for all."""
        members = self.state.members()
        replies = [worker.pause_reply for worker in members if worker.pause_reply is not None]
        if len(replies) == self.state.config.world_size:
            for worker in members:
                self.tell(
                    worker,
                    {"op": "pause_at", "epoch": self.state.epoch, "step": max(replies)},
                )

    def planned_epoch(self) -> None:
        state = self.state
        members = state.members()
        if any(not worker.boundary for worker in members):
            return
        moves = self.wanted_moves()
        replaced: dict[str, list[str]] = {}
        donors = []
        committed = max(worker.committed_step or 0 for worker in members)
        for move, spare in zip(moves, state.ready_spares(), strict=False):
            old = state.workers[move.worker]
            rank = state.rank_of(old.name)
            assert rank is not None  # noqa: S101 - wanted_moves keeps members only
            old.role = Role.RETIRING
            replaced[str(rank)] = [old.name, spare.name]
            self.seat(rank, spare)
            donors.append(old)
        self.begin_recovery("live_migration", "source_memory", committed, committed + 1, replaced)
        if state.recovery is not None and moves:
            state.recovery.reason = moves[0].reason
            state.recovery.began_at = state.recovery.detected_at = self.now
        state.moves = [move for move in state.moves if move not in moves]
        self.issue(source="peers", donors=donors, committed_step=committed)

    # -- the end ----------------------------------------------------------------------------

    def stop(self, outcome: str, by: str) -> None:
        state = self.state
        state.phase = Phase.FINISHED
        state.outcome = outcome
        reports.finished(state, outcome, by)
        for worker in state.workers.values():
            if worker.role != Role.GONE:
                self.tell(worker, {"op": "stop", "outcome": outcome})
        self.log(f"the run is {outcome} at step {state.committed_step}")
        self.actions.append(Stop(outcome))
