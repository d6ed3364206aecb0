"""The single acts of the rule: what a message's handling may do to the state and ask for; pure."""

from __future__ import annotations

from collections.abc import Mapping

from runtime.coordinator.model import (
    Action,
    Failure,
    Log,
    Phase,
    Role,
    SendNode,
    SendWorker,
    State,
    Worker,
    by_rank,
)


class Acts:
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

    def record(
        self, worker: Worker, rank: int | None, cause: Mapping[str, object], detector: str
    ) -> None:
        """Remembers a failure of the epoch; it is reported once its committed step is known."""
        state = self.state
        # A broken collective names no culprit; once the culprit is known, that suspicion goes.
        state.failures = [
            earlier
            for earlier in state.failures
            if earlier.reported or earlier.cause["kind"] != "fabric" or earlier.epoch != state.epoch
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

    def seat(self, rank: int, worker: Worker) -> None:
        worker.role = Role.MEMBER
        worker.boundary = True
        worker.committed_step = None
        worker.received = None
        self.state.ranks[str(rank)] = worker.name

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
        offered = [{"name": donor.name, "endpoint": donor.transfer} for donor in donors]
        for rank, name in sorted(state.ranks.items(), key=by_rank):
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
