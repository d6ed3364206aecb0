"""Orders as pure decisions: what is started, what is refused, what is repeated."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.agent.orders import (
    Action,
    Assignment,
    Check,
    Done,
    OrderError,
    Refuse,
    Repeat,
    Role,
    Start,
    StopRun,
    decide,
    parse_order,
)

NOON = "2026-05-01T12:00:00Z"
NOON_US = 1_777_636_800_000_000
SPEC = "a" * 64
PAYLOAD = {
    "run": "r1",
    "role": "worker",
    "slots": 2,
    "epoch": 3,
    "endpoint": "10.0.0.1:4000",
    "ticket": "t",
    "spec": SPEC,
    "options": {"ranks": 4},
}
START = Start(Assignment("r1", "worker", 3, 2, "10.0.0.1:4000", "t", SPEC, {"ranks": 4}))


def judge(
    kind: str = "start_worker",
    *,
    now_us: int = NOON_US,
    known: tuple[str, ...] = (),
    running: dict[tuple[str, Role], int] | None = None,
    **changes: Any,
) -> Action:
    payload = {key: value for key, value in (PAYLOAD | changes).items() if value != "absent"}
    order = parse_order({"id": "o1", "kind": kind, "payload": payload, "deadline": NOON})
    return decide(order, now_us=now_us, known=known, specs={SPEC}, running=running or {})


def test_an_allowed_start() -> None:
    assert judge() == START


def test_the_deadline_is_the_last_instant() -> None:
    assert judge(now_us=NOON_US) == START
    assert judge(now_us=NOON_US + 1) == Refuse("its deadline has passed", "expired")


def test_a_known_order_is_never_done_twice() -> None:
    assert judge(known=("o1",)) == Repeat()
    assert judge(known=("o1",), now_us=NOON_US + 1) == Repeat()


@pytest.mark.parametrize(
    ("running", "action"),
    [
        ({("r1", "worker"): 2}, START),
        ({("r1", "worker"): 3}, Done("the run is here as worker in epoch 3 already")),
        ({("r1", "worker"): 4}, Refuse("epoch 3 is over, the run is here in epoch 4")),
        ({("r1", "coordinator"): 4, ("r2", "worker"): 9}, START),
    ],
)
def test_epochs_only_go_up(running: dict[tuple[str, Role], int], action: Action) -> None:
    assert judge(running=running) == action


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"spec": "b" * 64}, f"spec {'b' * 64} is not on this node's allow-list"),
        ({"spec": None}, "spec must be a text, not None"),
        ({"run": "../../etc"}, "run must be letters, digits, dots and dashes, not '../../etc'"),
        ({"role": "king"}, "role must be coordinator or worker, not 'king'"),
        ({"role": None}, "role must be coordinator or worker, and is missing"),
        ({"endpoint": None}, "a worker needs the endpoint of its coordinator"),
        ({"endpoint": "a b"}, "endpoint must be host:port, not 'a b'"),
        ({"slots": 0}, "slots must be a whole number from 1, not 0"),
        ({"slots": True}, "slots must be a whole number from 1, not True"),
        ({"epoch": -1}, "epoch must be a whole number from 0, not -1"),
        ({"ticket": ""}, "ticket must be a text, not ''"),
        (
            {"options": {"--x": 1}},
            "options must be an object with names such as checkpoint_every",
        ),
        ({"events_token": 5}, "events_token must be a text, not 5"),
    ],
)
def test_refusals_say_why(changes: dict[str, Any], detail: str) -> None:
    assert judge(**changes) == Refuse(detail)


def test_other_kinds() -> None:
    assert judge("stop_worker", role="absent") == StopRun("r1", None)
    assert judge("stop_worker", role="coordinator") == StopRun("r1", "coordinator")
    assert judge("run_check") == Check()
    assert judge("reset_gpu") == Refuse("this agent does not do 'reset_gpu'")
    assert judge("reboot") == Refuse("this agent does not do 'reboot'")


@pytest.mark.parametrize(
    ("entry", "complaint"),
    [
        ([], "must be an object"),
        ({"kind": "x"}, "needs an id"),
        ({"id": "o", "kind": 1}, "kind must be a text"),
        ({"id": "o", "kind": "x", "payload": []}, "payload an object"),
        ({"id": "o", "kind": "x", "payload": {}, "deadline": "noon"}, "order o: deadline"),
        ({"id": "o", "kind": "x", "payload": {}, "deadline": 5}, "order o: deadline"),
    ],
)
def test_unreadable_orders(entry: object, complaint: str) -> None:
    with pytest.raises(OrderError, match=complaint):
        parse_order(entry)


def test_secrets_do_not_show_in_logs() -> None:
    assert "ticket" not in repr(START)
    assert "events_token" not in repr(START)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=6,
)


@settings(deadline=None)  # the machine may be busy
@given(
    st.dictionaries(st.sampled_from([*PAYLOAD, "events_token", "other"]), JSON),
    st.sampled_from(["start_worker", "stop_worker", "run_check", "reboot", "?"]),
)
def test_no_payload_takes_the_agent_down(payload: dict[str, Any], kind: str) -> None:
    order = parse_order({"id": "o", "kind": kind, "payload": payload})

    action = decide(order, now_us=0, known=(), specs={SPEC}, running={})

    if kind in ("reboot", "?"):
        assert action == Refuse(f"this agent does not do {kind!r}")
    if payload.get("spec") != SPEC:
        assert not isinstance(action, Start)
