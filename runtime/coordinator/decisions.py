"""The coordinator's rule: (state, message) → (state, actions); pure.

Nothing here reads a clock, a socket or a file: instants come in with the message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from runtime.coordinator import nodes, reports
from runtime.coordinator.epochs import Turn
from runtime.coordinator.model import Action, Message, Phase, Refuse, Role, State, Worker

PROGRESS_SECONDS: Final = 2.0


def decide(state: State, message: Message) -> tuple[State, list[Action]]:
    """Applies one message; the given state is left as it was."""
    turn = Turn(state.copy(), message.now)
    handler = HANDLERS.get(message.kind)
    if handler is None:
        turn.actions.append(Refuse(f"unknown message {message.kind!r}"))
    else:
        handler(turn, message.body)
    return turn.state, turn.actions


def _worker(turn: Turn, body: dict[str, Any]) -> Worker | None:
    worker = turn.state.workers.get(body["worker"])
    if worker is None or worker.role == Role.GONE:
        return None
    worker.last_seen = turn.now
    worker.stopped_at = None
    return worker


def on_hello(turn: Turn, body: dict[str, Any]) -> None:
    """A worker's first word on a connection, its first ever or after the coordinator came back."""
    state = turn.state
    name = body["worker"]
    known = state.workers.get(name)
    if known is not None and known.role == Role.GONE:
        turn.actions.append(Refuse("fenced: this incarnation was replaced"))
        return
    if body["incarnation"] < state.incarnations.get(body["slot"], 0):
        turn.actions.append(Refuse("fenced: a newer incarnation has this slot"))
        return
    if state.phase == Phase.FINISHED and known is None:
        turn.actions.append(Refuse(f"the run is over: {state.outcome}"))
        return
    state.incarnations[body["slot"]] = body["incarnation"]
    if known is None:
        known = Worker(
            name=name,
            slot=body["slot"],
            incarnation=body["incarnation"],
            node=body["node"],
            pid=body["pid"],
        )
        state.workers[name] = known
    known.connected = True
    known.lost_at = None
    known.last_seen = turn.now
    known.transfer = body["transfer"]
    turn.tell(known, {"op": "welcome", "run": state.config.run, "epoch": state.epoch})
    was_member = known.role == Role.MEMBER
    if body.get("ready"):
        on_ready(turn, body)
    if was_member:
        _resume(turn, known, body)
    if state.phase == Phase.FINISHED:
        # It was away when the run ended; its script may have something to do after its loop.
        turn.tell(known, {"op": "stop", "outcome": state.outcome})
    elif known.role == Role.RETIRING and not turn.is_source(known):
        turn.tell(known, {"op": "retire"})
    else:
        turn.decide()  # a spare that came back may be what the run waits for


def _resume(turn: Turn, worker: Worker, body: dict[str, Any]) -> None:
    """A member reconnected: what was lost with its line, either way, is made up for."""
    state = turn.state
    if body.get("boundary_epoch") == state.epoch:
        if not worker.boundary:
            on_boundary(turn, {**body, "epoch": state.epoch})
    elif body.get("joined_epoch") == state.epoch:
        if state.phase == Phase.REGROUPING:
            on_joined(turn, {**body, "epoch": state.epoch})
    elif body.get("epoch", 0) < state.epoch and not worker.boundary:
        # The epoch's order was lost: it stands where it stood when that was decided.
        turn.unwind(f"{worker.name} did not hear of it")
        turn.tell(worker, {"op": "abort", "epoch": state.epoch})  # in case it hears of it yet
        worker.boundary = True
        worker.committed_step = body.get("committed_step")
        turn.decide()
    if state.phase == Phase.UNWINDING and not worker.boundary:
        turn.tell(worker, {"op": "abort", "epoch": state.epoch})
    elif state.phase == Phase.TRAINING:
        turn.tell(worker, {"op": "go", "epoch": state.epoch})
    elif state.phase == Phase.PAUSING and not worker.boundary:
        turn.tell(worker, {"op": "go", "epoch": state.epoch})
        if worker.pause_reply is None:
            turn.tell(worker, {"op": "pause", "epoch": state.epoch})
        elif (step := turn.agreed_boundary()) is not None:
            turn.tell(worker, {"op": "pause_at", "epoch": state.epoch, "step": step})


def on_ready(turn: Turn, body: dict[str, Any]) -> None:
    """A worker has warmed up and can take a rank; its plan must be that of the run."""
    state = turn.state
    worker = _worker(turn, body)
    if worker is None or worker.role != Role.STARTING or state.phase == Phase.FINISHED:
        return
    plan = body["plan"]
    if state.plan and plan != state.plan:
        turn.actions.append(
            Refuse(
                "refused: the reduction plan or the numerics (torch build, threads, flags) differ "
                "from those of the run; start this worker with the same model and environment"
            )
        )
        return
    state.plan = state.plan or plan
    worker.plan = plan
    worker.role = Role.SPARE
    state.user_errors.pop(f"start/{worker.slot}", None)
    if not state.started:
        state.started = True
        reports.started(state, body.get("framework", ""), body.get("gpu_model"))
    turn.log(f"{worker.name} is ready")
    turn.decide()


def on_beat(turn: Turn, body: dict[str, Any]) -> None:
    """A sign of life, and how far this rank is."""
    state = turn.state
    worker = _worker(turn, body)
    if worker is None or worker.role != Role.MEMBER or body.get("epoch") != state.epoch:
        return
    step = body.get("committed_step")
    if step is None:
        return
    worker.committed_step = max(step, worker.committed_step or 0)
    state.highest_step = max(state.highest_step, step)
    if state.phase not in (Phase.TRAINING, Phase.PAUSING):
        return
    everywhere = min(member.committed_step or 0 for member in state.members())
    state.committed_step = max(state.committed_step, everywhere)
    if everywhere > state.progress_step and turn.now - state.progress_at >= PROGRESS_SECONDS:
        state.progress_at, state.progress_step = turn.now, everywhere
        reports.progressed(state, everywhere, body)


def on_void(turn: Turn, body: dict[str, Any]) -> None:
    """A collective failed under a rank while nobody is known to be lost."""
    worker = _worker(turn, body)
    if worker is None or worker.role != Role.MEMBER or body["epoch"] != turn.state.epoch:
        return
    _broke(turn, worker, str(body.get("error", "")))


def _broke(turn: Turn, worker: Worker, error: str) -> None:
    if turn.state.phase in (Phase.TRAINING, Phase.PAUSING):
        # Who is to blame shows in a moment; a line without a culprit is a fault of the fabric.
        cause = {"kind": "fabric", "code": None, "detail": error[:200]}
        turn.record(worker, turn.state.rank_of(worker.name), cause, "worker")
    turn.unwind(f"a collective failed on {worker.name}")


def on_boundary(turn: Turn, body: dict[str, Any]) -> None:
    """A rank's training thread stands still, with or without a state of the run."""
    state = turn.state
    worker = _worker(turn, body)
    if worker is None or worker.role != Role.MEMBER or body["epoch"] != state.epoch:
        return
    if state.phase in (Phase.TRAINING, Phase.REGROUPING) or (
        state.phase == Phase.PAUSING and turn.agreed_boundary() is None
    ):
        _broke(turn, worker, "its word of what failed was lost with its line")
    worker.boundary = True
    worker.finished = False  # what it finished, it has to confirm in the epoch to come
    worker.committed_step = body.get("committed_step")
    if worker.committed_step is not None:
        state.highest_step = max(state.highest_step, worker.committed_step)
    turn.decide()


def on_joined(turn: Turn, body: dict[str, Any]) -> None:
    state = turn.state
    worker = _worker(turn, body)
    if worker is None or worker.role != Role.MEMBER or body["epoch"] != state.epoch:
        return
    worker.joined = True
    worker.received = body.get("received") or worker.received
    worker.committed_step = body["committed_step"]
    members = state.members()
    if state.phase == Phase.REGROUPING and all(member.joined for member in members):
        turn.joined()


def on_bad_checkpoint(turn: Turn, body: dict[str, Any]) -> None:
    """A rank found that a checkpoint's digest is not that of its manifest: an older one serves."""
    state = turn.state
    state.checkpoints = [each for each in state.checkpoints if each["path"] != body["path"]]
    turn.log(f"checkpoint {body['path']} is not valid and will not be used")


def on_saved(turn: Turn, body: dict[str, Any]) -> None:
    state = turn.state
    worker = _worker(turn, body)
    if worker is None or worker.role != Role.MEMBER:
        return
    entry = {key: body[key] for key in ("step", "path", "digest")}
    if entry not in state.checkpoints:
        state.checkpoints = [*state.checkpoints, entry][-2:]


def on_lost(turn: Turn, body: dict[str, Any]) -> None:
    """The socket of a worker closed."""
    worker = turn.state.workers.get(body["worker"])
    if worker is not None and worker.role != Role.GONE:
        worker.connected = False
        worker.lost_at = turn.now


def on_pause_reply(turn: Turn, body: dict[str, Any]) -> None:
    worker = _worker(turn, body)
    if worker is None or turn.state.phase != Phase.PAUSING:
        return
    if worker.role == Role.MEMBER and body["epoch"] == turn.state.epoch:
        worker.pause_reply = body["step"]
        turn.tell_boundary()


def on_migrate(turn: Turn, body: dict[str, Any]) -> None:
    """Asked by hand or by a schedule: move one rank away from where it is."""
    state = turn.state
    name = state.ranks.get(str(body["rank"]))
    if state.phase == Phase.FINISHED:
        turn.actions.append(Refuse(f"the run is over: {state.outcome}"))
    elif name is None:
        turn.actions.append(Refuse(f"rank {body['rank']} is held by nobody in this run"))
    elif state.workers[name].role != Role.MEMBER:
        turn.actions.append(Refuse(f"rank {body['rank']} was lost and is being replaced"))
    else:
        turn.ask_move(state.workers[name], body["reason"], suspect=False)


def on_finished(turn: Turn, body: dict[str, Any]) -> None:
    """A rank has no more steps; the run ends when all of them say so in one epoch."""
    state = turn.state
    worker = _worker(turn, body)
    if worker is None or worker.role != Role.MEMBER or body["epoch"] != state.epoch:
        return
    worker.finished = True
    worker.committed_step = body["committed_step"]
    members = state.members()
    if len(members) == state.config.world_size and all(each.finished for each in members):
        state.committed_step = body["committed_step"]
        turn.stop("completed", "system")


def on_cancel(turn: Turn, body: dict[str, Any]) -> None:
    if turn.state.phase != Phase.FINISHED:
        turn.stop("cancelled", body.get("by", "customer"))


HANDLERS: Final[dict[str, Callable[[Turn, dict[str, Any]], None]]] = {
    "hello": on_hello,
    "ready": on_ready,
    "beat": on_beat,
    "void": on_void,
    "boundary": on_boundary,
    "joined": on_joined,
    "bad_checkpoint": on_bad_checkpoint,
    "saved": on_saved,
    "lost": on_lost,
    "exited": nodes.on_exited,
    "node": nodes.on_node,
    "probe": nodes.on_probe,
    "pause_reply": on_pause_reply,
    "migrate": on_migrate,
    "finding": nodes.on_finding,
    "finished": on_finished,
    "cancel": on_cancel,
    "tick": nodes.on_tick,
    "restarted": nodes.on_restarted,
}
