"""R13 through the database: random histories, swept at random moments, equal a replay of them."""

from __future__ import annotations

import itertools

import pytest
from django.db import transaction
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from runtime.events import format_time, parse_time
from tests.fleet.conftest import make_tenant
from tests.sla.build import History
from tests.sla.conftest import Desk
from tests.sla.test_incidents import histories

pytestmark = [pytest.mark.django_db, pytest.mark.slow]
numbers = itertools.count(1)
END = "2026-09-01T00:00:00Z"


@settings(
    max_examples=15,
    deadline=None,
    phases=[Phase.generate],  # shrinking through a database takes longer than a timeout
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(histories(), st.sets(st.integers(0, 13)))
def test_r13_the_rows_equal_a_replay_at_any_moment(
    desk: Desk, history: History, sweeps: set[int]
) -> None:
    with transaction.atomic():  # whatever an example does to its transaction, the next has its own
        check(desk, history, sweeps)


def check(desk: Desk, history: History, sweeps: set[int]) -> None:
    number = next(numbers)
    desk.tenant = make_tenant(f"Random {number}", f"random-{number}")
    contract = desk.open(history.document["contract"])
    for run in ("r1", "r2"):  # a run that names no contract is its cluster's, at that instant
        named = {"contract": contract.number}
        history.event("run.started", "2025-01-01T00:00:00Z", named, run=run, source=f"/{run}")
    received = sorted(
        history.events,
        key=lambda event: parse_time(event.get("recordedtime", event["time"])),
    )

    reached_us = 0
    for place, event in enumerate(received):
        desk.receive([event])
        instant_us = parse_time(event.get("recordedtime", event["time"]))
        later = received[place + 1 :]
        same = any(
            parse_time(other.get("recordedtime", other["time"])) == instant_us for other in later
        )
        # A horizon is passed once: what has it as its receipt instant is in by then.
        if place in sweeps and not same and instant_us > reached_us:
            reached_us = instant_us
            desk.sweep(format_time(instant_us))
            desk.books(contract, format_time(instant_us))
    desk.sweep(END)

    books = desk.books(contract, END)
    expected = history.replay(END)
    assert books["incidents"] == expected["incidents"]
    assert books["years"] == expected["years"]
