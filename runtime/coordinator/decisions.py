"""The coordinator's rule: (state, message) → (state, actions); pure.

Nothing here reads a clock, a socket or a file: instants come in with the message.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any, Final

from runtime.coordinator import reports
from runtime.coordinator.epochs import USER_ERROR_LIMIT, Turn
from runtime.coordinator.model import (
    Action,
    Message,
    Phase,
    Refuse,
    Role,
    SendNode,
    State,
    Worker,
)

# A worker beats ten times a second from its own thread; after five missed its node has a look.
SILENT_SECONDS: Final = 0.5
# A process seen stopped (T) or in uninterruptible sleep (D) this long, and silent, hangs.
STOPPED_SECONDS: Final = 0.4
PROBE_EVERY_SECONDS: Final = 0.1
# A closed socket alone proves nothing: the worker may reconnect. Its node's word usually comes in
# milliseconds; without one, and without a reconnect, it is fenced after this.
LOST_SECONDS: Final = 2.0
# A gap between two ticks this long means that the coordinator itself did not run.
OWN_PAUSE_SECONDS: Final = 1.0
PROGRESS_SECONDS: Final = 2.0


def decide(state: State, message: Message) -> tuple[State, list[Action]]:
    """Applies one message; the given state is left as it was."""
    turn = Turn(copy.deepcopy(state), message.now)
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
    if state.phase == Phase.FINISHED:
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
    if body.get("ready"):
        on_ready(turn, body)
    if known.role == Role.MEMBER:
        _resume(turn, known, body)


def _resume(turn: Turn, worker: Worker, body: dict[str, Any]) -> None:
    """A member reconnected: what it missed while the line was down is said again."""
    state = turn.state
    if state.phase == Phase.UNWINDING and not worker.boundary:
        turn.tell(worker, {"op": "abort", "epoch": state.epoch})
    if state.phase == Phase.TRAINING:
        turn.tell(worker, {"op": "go", "epoch": state.epoch})
    if state.phase == Phase.PAUSING and worker.pause_reply is None:
        turn.tell(worker, {"op": "pause", "epoch": state.epoch})
    if body.get("boundary_epoch") == state.epoch and not worker.boundary:
        on_boundary(turn, {**body, "epoch": state.epoch})
    elif body.get("joined_epoch") == state.epoch and state.phase == Phase.REGROUPING:
        on_joined(turn, {**body, "epoch": state.epoch})
    elif state.phase == Phase.REGROUPING and body.get("epoch", 0) < state.epoch:
        # The epoch's order was lost with the line; break that epoch, a new one follows.
        turn.unwind(f"{worker.name} did not hear of it")
        worker.boundary = True
        worker.committed_step = body.get("committed_step")
        turn.decide()


def on_ready(turn: Turn, body: dict[str, Any]) -> None:
    """A worker has warmed up and can take a rank; its plan must be that of the run."""
    state = turn.state
    worker = _worker(turn, body)
    if worker is None or worker.role != Role.STARTING:
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
    if turn.state.phase in (Phase.TRAINING, Phase.PAUSING):
        # Who is to blame shows in a moment; a line without a culprit is a fault of the fabric.
        cause = {"kind": "fabric", "code": None, "detail": str(body.get("error", ""))[:200]}
        turn.record(worker, turn.state.rank_of(worker.name), cause, "worker")
    turn.unwind(f"a collective failed on {worker.name}")


def on_boundary(turn: Turn, body: dict[str, Any]) -> None:
    """A rank's training thread stands still, with or without a state of the run."""
    state = turn.state
    worker = _worker(turn, body)
    if worker is None or worker.role != Role.MEMBER or body["epoch"] != state.epoch:
        return
    worker.boundary = True
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
    worker.received = body.get("received")
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


def on_exited(turn: Turn, body: dict[str, Any]) -> None:
    """A node saw the process of a slot end."""
    state = turn.state
    worker = state.workers.get(body["worker"])
    if worker is None:
        if state.incarnations.get(body["slot"], 0) <= body["incarnation"]:
            _start_failed(turn, body)
        return
    status = body["status"]
    if worker.role == Role.RETIRING:
        _source_left(turn, worker, status)
        return
    if worker.role == Role.MEMBER and status > 0:
        step = str(worker.committed_step)
        state.user_errors[step] = state.user_errors.get(step, 0) + 1
        if state.user_errors[step] >= USER_ERROR_LIMIT:
            turn.log(f"the script raised {state.user_errors[step]} times after step {step}")
            turn.stop("failed", "system")
            return
    kind = "user_error" if status > 0 else "process_exit"
    detail = f"exit status {status}" if status >= 0 else f"killed by signal {-status}"
    turn.fail(worker, {"kind": kind, "code": status, "detail": detail}, "agent")


def _source_left(turn: Turn, worker: Worker, status: int) -> None:
    """The source of a planned move ended: after the move as it should, during it a failure."""
    state = turn.state
    worker.role = Role.GONE
    turn.refill(worker.slot, worker.node)
    if state.phase != Phase.REGROUPING or state.recovery is None:
        return
    pairs = state.recovery.replaced.items()
    rank = next((int(rank) for rank, pair in pairs if pair[0] == worker.name), None)
    cause = {"kind": "process_exit", "code": status, "detail": "the source of a move ended"}
    turn.record(worker, rank, cause, "agent")
    turn.unwind(f"{worker.name} ended while its state was being moved")


def _start_failed(turn: Turn, body: dict[str, Any]) -> None:
    """A process ended before it said hello: the script does not even start."""
    key = f"start/{body['slot']}"
    turn.state.user_errors[key] = turn.state.user_errors.get(key, 0) + 1
    if turn.state.user_errors[key] > USER_ERROR_LIMIT:
        turn.log(f"slot {body['slot']} cannot start: exit status {body['status']}")
        if turn.state.phase == Phase.GATHERING:
            turn.stop("failed", "system")
        return
    turn.state.incarnations[body["slot"]] = max(
        turn.state.incarnations.get(body["slot"], 0), body["incarnation"]
    )
    turn.refill(body["slot"], body["node"])


def on_node(turn: Turn, body: dict[str, Any]) -> None:
    """A node registers: its slots, and which processes live in them."""
    state = turn.state
    alive = {entry["worker"] for entry in body["alive"]}
    busy = {entry["slot"] for entry in body["alive"]}
    for worker in list(state.workers.values()):
        if worker.node == body["node"] and worker.role != Role.GONE and worker.name not in alive:
            cause = {"kind": "process_exit", "code": None, "detail": "its node no longer has it"}
            turn.fail(worker, cause, "agent")
    for slot in body["slots"]:
        if slot not in busy and not _has_live(state, slot):
            turn.refill(slot, body["node"])


def _has_live(state: State, slot: str) -> bool:
    return any(
        worker.slot == slot and worker.role != Role.GONE for worker in state.workers.values()
    )


def on_probe(turn: Turn, body: dict[str, Any]) -> None:
    """A node looked at a silent process: only a stopped or stuck one is a hang."""
    worker = turn.state.workers.get(body["worker"])
    if worker is None or worker.role == Role.GONE:
        return
    if body["state"] not in ("T", "t", "D"):
        worker.stopped_at = None
        return
    worker.stopped_at = worker.stopped_at if worker.stopped_at is not None else turn.now
    if turn.now - worker.stopped_at >= STOPPED_SECONDS:
        silent = turn.now - worker.last_seen
        detail = f"process state {body['state']}, silent for {silent:.2f} s"
        turn.fail(worker, {"kind": "hang", "code": None, "detail": detail}, "coordinator")


def on_pause_reply(turn: Turn, body: dict[str, Any]) -> None:
    worker = _worker(turn, body)
    if worker is None or turn.state.phase != Phase.PAUSING:
        return
    if worker.role == Role.MEMBER and body["epoch"] == turn.state.epoch:
        worker.pause_reply = body["step"]
        turn.agree_on_boundary()


def on_migrate(turn: Turn, body: dict[str, Any]) -> None:
    """Asked by hand or by a schedule: move one rank away from where it is."""
    name = turn.state.ranks.get(str(body["rank"]))
    if name is not None and turn.state.workers[name].role == Role.MEMBER:
        turn.ask_move(turn.state.workers[name], body["reason"], suspect=False)


def on_finding(turn: Turn, body: dict[str, Any]) -> None:
    """An agent's health finding: ranks leave a failing node while its memory can be read."""
    finding = body["finding"]
    if finding["state"] == "cleared" or finding["severity"] not in ("failing", "failed"):
        return
    if finding["memory"] != "readable":
        return
    for worker in list(turn.state.workers.values()):
        if worker.node != body["node"]:
            continue
        if worker.role == Role.MEMBER:
            turn.ask_move(worker, finding["check"], suspect=True)
    if body["node"] not in turn.state.suspect_nodes:
        turn.state.suspect_nodes.append(body["node"])


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


def on_tick(turn: Turn, _body: dict[str, Any]) -> None:
    """Time passed: who is silent is looked at, who stayed lost is fenced."""
    state = turn.state
    gap = turn.now - state.last_tick
    first, state.last_tick = state.last_tick == 0.0, turn.now
    if gap > OWN_PAUSE_SECONDS or first:
        # We did not run ourselves, so silence in that time says nothing about anybody.
        for worker in state.workers.values():
            worker.last_seen = turn.now
            worker.stopped_at = None
            worker.lost_at = turn.now if worker.lost_at is not None else None
        return
    for worker in list(state.workers.values()):
        if worker.role == Role.GONE:
            continue
        if worker.lost_at is not None and turn.now - worker.lost_at >= LOST_SECONDS:
            cause = {"kind": "process_exit", "code": None, "detail": "its socket closed"}
            turn.fail(worker, cause, "coordinator")
        elif turn.now - worker.last_seen >= SILENT_SECONDS:
            last = worker.probed_at or 0.0
            if turn.now - last >= PROBE_EVERY_SECONDS:
                worker.probed_at = turn.now
                turn.actions.append(
                    SendNode(worker.node, {"op": "probe", "name": worker.name, "pid": worker.pid})
                )


def on_restarted(turn: Turn, _body: dict[str, Any]) -> None:
    """The coordinator came back from its journal: nobody is connected, everybody gets time."""
    for worker in turn.state.workers.values():
        if worker.role != Role.GONE:
            worker.connected = False
            worker.lost_at = turn.now
            worker.last_seen = turn.now
            worker.stopped_at = worker.probed_at = None
    turn.state.last_tick = 0.0
    turn.state.progress_at = turn.now
    for move in turn.state.moves:
        move.asked_at = turn.now


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
    "exited": on_exited,
    "node": on_node,
    "probe": on_probe,
    "pause_reply": on_pause_reply,
    "migrate": on_migrate,
    "finding": on_finding,
    "finished": on_finished,
    "cancel": on_cancel,
    "tick": on_tick,
    "restarted": on_restarted,
}
