"""What an order from the service means on this node: an action or a refusal; pure, no I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from runtime.events import parse_time

OrderState = Literal["acknowledged", "completed", "refused", "failed", "expired"]
Role = Literal["coordinator", "worker"]
FINAL_STATES: Final = frozenset({"completed", "refused", "failed", "expired"})
_RUN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_ENDPOINT: Final = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]):[0-9]{1,5}")
_OPTION: Final = re.compile(r"[a-z][a-z0-9_]*")


class OrderError(Exception):
    """An order of the wrong shape."""


@dataclass(frozen=True, slots=True)
class Order:
    """As the service sent it; `deadline_us` in microseconds since the epoch, None for none."""

    order_id: str
    kind: str
    payload: Mapping[str, Any]
    deadline_us: int | None


@dataclass(frozen=True, slots=True)
class Assignment:
    """A run's role on this node, as ordered; also what the agent remembers over a restart."""

    run: str
    role: Role
    epoch: int
    slots: int
    endpoint: str | None
    ticket: str = field(repr=False)
    spec: str
    options: Mapping[str, Any]
    # what delivers the events of the run's coordinator; None: the agent's own token
    events_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Start:
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class StopRun:
    """`role` None: everything of the run on this node."""

    run: str
    role: Role | None


@dataclass(frozen=True, slots=True)
class Check:
    """Do a health round now."""


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing to do: it is as the order wants it."""

    detail: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Not done, and why; `state` is what the service hears."""

    detail: str
    state: OrderState = "refused"


@dataclass(frozen=True, slots=True)
class Repeat:
    """The order is known: nothing to do but to report its state once more."""


Action = Start | StopRun | Check | Done | Refuse | Repeat


def parse_order(entry: object) -> Order:
    """Raises OrderError."""
    if not isinstance(entry, dict):
        raise OrderError(f"an order must be an object, not {entry!r}")
    order_id, kind, payload = entry.get("id"), entry.get("kind"), entry.get("payload", {})
    if not isinstance(order_id, str) or not order_id:
        raise OrderError(f"an order needs an id, not {order_id!r}")
    if not isinstance(kind, str) or not isinstance(payload, dict):
        raise OrderError(f"order {order_id}: kind must be a text and payload an object")
    deadline = entry.get("deadline")
    try:
        deadline_us = None if deadline is None else parse_time(deadline)
    except (ValueError, TypeError) as error:
        raise OrderError(f"order {order_id}: deadline: {error}") from error
    return Order(order_id, kind, payload, deadline_us)


def decide(
    order: Order,
    *,
    now_us: int,
    known: Collection[str],
    specs: Collection[str],
    running: Mapping[tuple[str, Role], int],
) -> Action:
    """`known`: ids of orders taken before. `specs`: digests allowed here. `running`: (run, role)
    to its epoch."""
    if order.order_id in known:
        return Repeat()
    if order.deadline_us is not None and now_us > order.deadline_us:
        return Refuse("its deadline has passed", "expired")
    try:
        if order.kind == "start_worker":
            return _start(_assignment(order.payload), specs, running)
        if order.kind == "stop_worker":
            return StopRun(_run(order.payload), _optional_role(order.payload))
        if order.kind == "run_check":
            return Check()
    except OrderError as error:
        return Refuse(str(error))
    return Refuse(f"this agent does not do {order.kind!r}")


def _start(
    assignment: Assignment, specs: Collection[str], running: Mapping[tuple[str, Role], int]
) -> Action:
    if assignment.spec not in specs:
        return Refuse(f"spec {assignment.spec} is not on this node's allow-list")
    epoch = running.get((assignment.run, assignment.role))
    if epoch == assignment.epoch:
        return Done(f"the run is here as {assignment.role} in epoch {epoch} already")
    if epoch is not None and assignment.epoch < epoch:
        return Refuse(f"epoch {assignment.epoch} is over, the run is here in epoch {epoch}")
    return Start(assignment)


def _assignment(payload: Mapping[str, Any]) -> Assignment:
    role = _optional_role(payload)
    if role is None:
        raise OrderError("role must be coordinator or worker, and is missing")
    endpoint = payload.get("endpoint")
    if endpoint is not None and not (isinstance(endpoint, str) and _ENDPOINT.fullmatch(endpoint)):
        raise OrderError(f"endpoint must be host:port, not {endpoint!r}")
    if role == "worker" and endpoint is None:
        raise OrderError("a worker needs the endpoint of its coordinator")
    options = payload.get("options") or {}
    if not isinstance(options, dict) or not all(_OPTION.fullmatch(key) for key in options):
        raise OrderError("options must be an object with names such as checkpoint_every")
    return Assignment(
        run=_run(payload),
        role=role,
        epoch=_whole(payload, "epoch", 0),
        slots=_whole(payload, "slots", 0 if role == "coordinator" else 1),
        endpoint=endpoint,
        ticket=_text(payload, "ticket"),
        spec=_text(payload, "spec"),
        options=options,
        events_token=None
        if payload.get("events_token") is None
        else _text(payload, "events_token"),
    )


def _run(payload: Mapping[str, Any]) -> str:
    run = payload.get("run")
    if not isinstance(run, str) or not _RUN.fullmatch(run):
        raise OrderError(f"run must be letters, digits, dots and dashes, not {run!r}")
    return run


def _optional_role(payload: Mapping[str, Any]) -> Role | None:
    match payload.get("role"):
        case None:
            return None
        case "coordinator":
            return "coordinator"
        case "worker":
            return "worker"
        case other:
            raise OrderError(f"role must be coordinator or worker, not {other!r}")


def _whole(payload: Mapping[str, Any], key: str, lowest: int) -> int:
    value = payload.get(key, lowest)
    if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
        raise OrderError(f"{key} must be a whole number from {lowest}, not {value!r}")
    return value


def _text(payload: Mapping[str, Any], key: str) -> str:
    value = payload.get(key)
    if not isinstance(value, str) or not value:
        raise OrderError(f"{key} must be a text, not {value!r}")
    return value
