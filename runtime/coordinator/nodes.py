"""What the rule makes of a node's words and of the time that passes; pure."""

from __future__ import annotations

from typing import Any, Final

from runtime.coordinator.epochs import Turn
from runtime.coordinator.model import Phase, Role, SendNode, State, Worker

# A script that raises at the same step on this many fresh processes has a fault of its own.
USER_ERROR_LIMIT: Final = 2
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


def on_exited(turn: Turn, body: dict[str, Any]) -> None:
    """A node saw the process of a slot end."""
    state = turn.state
    worker = state.workers.get(body["worker"])
    if worker is None:
        if state.incarnations.get(body["slot"], 0) <= body["incarnation"]:
            _start_failed(turn, body)
        return
    if worker.role == Role.GONE:
        return
    if state.phase == Phase.FINISHED:
        worker.role = Role.GONE  # as it should, whatever its status
        return
    status = body["status"]
    if worker.role == Role.STARTING:
        worker.role = Role.GONE
        _start_failed(turn, body)
        return
    if worker.role == Role.RETIRING and not turn.is_source(worker):
        worker.role = Role.GONE
        turn.refill(worker.slot, worker.node)
        return
    is_members = worker.role == Role.MEMBER and state.phase != Phase.FINISHED
    kind = "user_error" if status > 0 or (status == 0 and is_members) else "process_exit"
    detail = f"exit status {status}" if status >= 0 else f"killed by signal {-status}"
    if status == 0 and is_members:
        detail = (
            "the script ended before its last step: let the loop over run.steps() end by itself"
        )
    cause = {"kind": kind, "code": status, "detail": detail}
    if is_members and status >= 0 and _is_users_fault(turn, worker):
        turn.record(worker, state.rank_of(worker.name), cause, "agent")
        worker.role = Role.GONE
        turn.stop("failed", "system")
        return
    turn.fail(worker, cause, "agent")


def _is_users_fault(turn: Turn, worker: Worker) -> bool:
    """Whether exceptions after the same committed step have ended enough processes."""
    errors, step = turn.state.user_errors, str(worker.committed_step)
    errors[step] = errors.get(step, 0) + 1
    if errors[step] < USER_ERROR_LIMIT:
        return False
    turn.log(f"the script ended {errors[step]} times after step {step}")
    return True


def _start_failed(turn: Turn, body: dict[str, Any]) -> None:
    """A process ended before it was ready: the script may not be able to start at all."""
    state, slot = turn.state, body["slot"]
    key = f"start/{slot}"
    state.user_errors[key] = state.user_errors.get(key, 0) + 1
    if state.user_errors[key] > USER_ERROR_LIMIT:
        turn.log(f"slot {slot} cannot start: exit status {body['status']}")
        if state.phase == Phase.GATHERING:
            turn.stop("failed", "system")
        return
    state.incarnations[slot] = max(state.incarnations.get(slot, 0), body["incarnation"])
    turn.refill(slot, body["node"])


def on_node(turn: Turn, body: dict[str, Any]) -> None:
    """A node registers: its slots, and which processes live in them."""
    state, node = turn.state, body["node"]
    alive = {entry["worker"] for entry in body["alive"]}
    before = dict(state.incarnations)
    for worker in list(state.workers.values()):
        if worker.node == node and worker.role != Role.GONE and worker.name not in alive:
            cause = {"kind": "process_exit", "code": None, "detail": "its node no longer has it"}
            turn.fail(worker, cause, "agent")
    busy = set()
    for entry in body["alive"]:
        if _is_fenced(state, entry):
            # The order to end it was lost with the node's line; a hung one would stay for ever.
            kill = {"op": "kill", "slot": entry["slot"], "name": entry["worker"]}
            turn.actions.append(SendNode(node, kill))
        else:
            busy.add(entry["slot"])
    for slot in body["slots"]:
        asked = state.incarnations.get(slot, 0) > before.get(slot, 0)
        if slot not in busy and not asked and not _has_live(state, slot):
            turn.refill(slot, node)


def _is_fenced(state: State, entry: dict[str, Any]) -> bool:
    worker = state.workers.get(entry["worker"])
    if worker is not None:
        return worker.role == Role.GONE
    return bool(entry["incarnation"] < state.incarnations.get(entry["slot"], 0))


def _has_live(state: State, slot: str) -> bool:
    return any(
        worker.slot == slot and worker.role != Role.GONE for worker in state.workers.values()
    )


def on_probe(turn: Turn, body: dict[str, Any]) -> None:
    """A node looked at a silent process: only a stopped or stuck one is a hang."""
    worker = turn.state.workers.get(body["worker"])
    if worker is None or worker.role == Role.GONE:
        return
    if body["state"] not in ("T", "D"):
        worker.stopped_at = None
        return
    worker.stopped_at = worker.stopped_at if worker.stopped_at is not None else turn.now
    if turn.now - worker.stopped_at >= STOPPED_SECONDS:
        silent = turn.now - worker.last_seen
        detail = f"process state {body['state']}, silent for {silent:.2f} s"
        turn.fail(worker, {"kind": "hang", "code": None, "detail": detail}, "coordinator")


def on_finding(turn: Turn, body: dict[str, Any]) -> None:
    """An agent's health finding: ranks leave a failing node while its memory can be read."""
    finding = body["finding"]
    if finding["state"] == "cleared" or finding["severity"] not in ("failing", "failed"):
        return
    if finding["memory"] != "readable":
        return
    if body["node"] not in turn.state.suspect_nodes:
        turn.state.suspect_nodes.append(body["node"])
    for worker in list(turn.state.workers.values()):
        if worker.node == body["node"] and worker.role == Role.MEMBER:
            turn.ask_move(worker, finding["check"], suspect=True)


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
    state = turn.state
    for worker in state.workers.values():
        if worker.role != Role.GONE:
            worker.connected = False
            worker.lost_at = turn.now
            worker.last_seen = turn.now
            worker.stopped_at = worker.probed_at = None
    state.last_tick = 0.0
    state.progress_at = turn.now
    for move in state.moves:
        move.asked_at = turn.now
    # After a restart of the host its clock begins anew: no instant may lie in the future.
    for failure in state.failures:
        failure.detected_at = min(failure.detected_at, turn.now)
        failure.last_seen = min(failure.last_seen, failure.detected_at)
    if (recovery := state.recovery) is not None:
        recovery.decided_at = min(recovery.decided_at, turn.now)
        recovery.detected_at = min(recovery.detected_at, recovery.decided_at)
        recovery.began_at = min(recovery.began_at, recovery.detected_at)
