"""The shapes on the wire: what can be read, and how instants are written."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.events import format_time, parse_time, problems_of, run_of


def event(**changes: object) -> dict[str, object]:
    whole: dict[str, object] = {
        "specversion": "1.0",
        "id": "e1",
        "source": "/clusters/k1/runs/r1/coordinator",
        "type": "failure.detected",
        "time": "2025-06-01T12:00:00Z",
        "subject": "r1",
        "data": {"failure_id": "f1", "run": "r1", "epoch": 1, "committed_step": 7},
    }
    whole.update(changes)
    return {key: value for key, value in whole.items() if value is not ...}


@given(st.integers(min_value=parse_time("0001-01-01T00:00:00Z"), max_value=253402300799999999))
def test_an_instant_survives_the_wire(instant_us: int) -> None:
    assert parse_time(format_time(instant_us)) == instant_us


@pytest.mark.parametrize(
    ("text", "instant_us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:00.0000019Z", 1),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1969-12-31T19:00:00.5-05:00", 500_000),
    ],
)
def test_times_are_whole_microseconds(text: str, instant_us: int) -> None:
    assert parse_time(text) == instant_us


@pytest.mark.parametrize(
    "text",
    [
        "2025-06-01",
        "2025-06-01T12:00:00",
        "2025-02-30T00:00:00Z",
        "2025-06-01T12:00:00+99:00",
        "9999-12-31T23:59:59-01:00",
        "0001-01-01T00:00:00+01:00",
        "٢٠٢٥-06-01T12:00:00Z",
    ],
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        parse_time(text)


@pytest.mark.parametrize(
    "whole",
    [
        event(),
        event(subject=...),
        event(type="of.tomorrow", data=...),
        event(type="run.progress", data={"epoch": 0, "committed_step": 0}),
        event(type="source.opened", data={}),
        event(type="recovery.completed", data={"from_epoch": 1, "to_epoch": 2}),
        event(sequence="not a number"),
    ],
)
def test_r15_what_can_be_read(whole: dict[str, object]) -> None:
    assert problems_of(whole) == []


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ("not an object", "an event is a JSON object"),
        (event(specversion="0.3"), 'specversion is not "1.0"'),
        (event(id=""), "id is not a text of at least one character"),
        (event(source=...), "source is not a text of at least one character"),
        (event(type=5), "type is not a text of at least one character"),
        (event(time=...), "time is not a text of at least one character"),
        (
            event(time="yesterday"),
            "time: 'yesterday' is not an RFC 3339 time such as 2026-05-01T00:00:00Z",
        ),
        (
            event(type="source.opened", subject=..., data={}),
            "neither data.run nor subject names a run",
        ),
        (event(data=[]), "data is not a JSON object"),
        (
            event(data={"epoch": 1, "committed_step": 7}),
            "data.failure_id is not a text of at least one character",
        ),
        (
            event(data={"failure_id": "f", "epoch": True, "committed_step": 7}),
            "data.epoch is not a whole number of 0 or more",
        ),
        (
            event(data={"failure_id": "f", "epoch": 1, "committed_step": -1}),
            "data.committed_step is not a whole number of 0 or more",
        ),
        (
            event(data={"failure_id": "f", "epoch": 1, "committed_step": 2**63}),
            "data.committed_step is larger than any step or epoch can be",
        ),
        (
            event(type="run.witnessed", data={"epoch": 1}),
            "data.committed_step is not a whole number of 0 or more",
        ),
        (
            event(type="migration.completed", data={"from_epoch": 1, "to_epoch": 2.0}),
            "data.to_epoch is not a whole number of 0 or more",
        ),
    ],
)
def test_r15_what_cannot_be_read_says_why(broken: object, problem: str) -> None:
    assert problems_of(broken) == [problem]


def test_the_run_is_in_the_data_else_in_the_subject() -> None:
    assert run_of({"data": {"run": "r2"}, "subject": "r1"}) == "r2"
    assert run_of({"data": {"run": None}, "subject": "r1"}) == "r1"
    assert run_of({"data": "text", "subject": "r1"}) == "r1"
    assert run_of({"data": {"run": 5}, "subject": "r1"}) is None
