"""R23, R25-R27, R42: where years lie, when they close and when they are restated."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.events import format_time
from sla.domain.calendar import anniversary, local_midnight, year_at, years_of
from tests.sla.build import AGENT, COORDINATOR, History, at

CLOSE = "2026-03-31T00:00:00Z"  # 30 days after the end of year 1


def midnight(day: str, zone: str) -> str:
    return format_time(local_midnight(dt.date.fromisoformat(day), zoneinfo.ZoneInfo(zone)))


@pytest.mark.parametrize(
    ("day", "zone", "instant"),
    [
        ("2025-03-01", "America/New_York", "2025-03-01T05:00:00Z"),
        ("2025-03-01", "Asia/Tokyo", "2025-02-28T15:00:00Z"),
        # midnight did not exist: the clocks went from 00:00 to 01:00
        ("2018-11-04", "America/Sao_Paulo", "2018-11-04T03:00:00Z"),
        # nor here, where they went from 23:30 the day before to 00:30
        ("1919-03-31", "America/Toronto", "1919-03-31T04:30:00Z"),
        # a whole day was left out
        ("2011-12-30", "Pacific/Apia", "2011-12-30T10:00:00Z"),
        # midnight came twice: the first one
        ("2020-11-01", "America/Havana", "2020-11-01T04:00:00Z"),
    ],
)
def test_r23_local_midnight(day: str, zone: str, instant: str) -> None:
    assert midnight(day, zone) == instant


def test_r23_29_february_clamps_and_comes_back() -> None:
    days = [anniversary(dt.date(2024, 2, 29), years).isoformat() for years in range(5)]

    assert days == ["2024-02-29", "2025-02-28", "2026-02-28", "2027-02-28", "2028-02-29"]


ZONES = ["UTC", "America/Sao_Paulo", "Pacific/Kiritimati", "Australia/Lord_Howe", "Asia/Tokyo"]


@given(
    st.dates(dt.date(1990, 1, 1), dt.date(2060, 1, 1)),
    st.integers(1, 40 * 366),
    st.sampled_from(ZONES),
    st.integers(0, 10**9),
)
def test_r23_years_tile_the_contract(starts: dt.date, days: int, zone: str, seed: int) -> None:
    tz = zoneinfo.ZoneInfo(zone)
    ends = starts + dt.timedelta(days=days)

    years = years_of(starts, ends, tz)

    assert years[0].start_us == local_midnight(starts, tz)
    assert years[-1].end_us == local_midnight(ends, tz)
    assert [year.index for year in years] == list(range(1, len(years) + 1))
    for before, after in pairwise(years):
        assert before.end_us == after.start_us
        assert before.start_us < before.end_us
    instant = years[0].start_us + seed * 1_000_000 % (years[-1].end_us - years[0].start_us)
    assert [y for y in years if y.start_us <= instant < y.end_us] == [year_at(years, instant)]


def test_r23_the_last_year_may_be_short() -> None:
    history = History()
    history.document["contract"]["ends"] = "2026-04-01"

    assert history.year(2)["end"] == "2026-04-01T00:00:00Z"


def test_r23_a_year_appears_once_it_has_started() -> None:
    history = History()

    assert len(history.replay("2025-02-28T23:59:59.999999Z")["years"]) == 0
    assert len(history.replay("2026-03-01T00:00:00Z")["years"]) == 2


def states(history: History, *instants: str) -> list[tuple[str, int]]:
    return [(year["state"], year["revision"]) for year in (history.year(1, at) for at in instants)]


def test_r25_open_settling_closed() -> None:
    history = History()
    history.incident("06-01", 1, lost=5)

    assert states(
        history,
        "2026-02-28T23:59:59.999999Z",
        "2026-03-01T00:00:00Z",
        "2026-03-30T23:59:59.999999Z",
        CLOSE,
    ) == [("open", 0), ("settling", 0), ("settling", 0), ("closed", 1)]
    assert history.year(1, "2026-03-30T00:00:00Z")["outcome"] is None
    assert history.year(1, CLOSE)["outcome"] == "missed"


def test_r25_a_pending_incident_blocks_until_its_deadline() -> None:
    history = History(evidence_grace_days=0)
    history.failure("2026-02-28T18:00:00Z", 1, 700)

    assert states(
        history, "2026-03-01T00:00:00Z", "2026-03-01T17:59:59.999999Z", "2026-03-01T18:00:00Z"
    ) == [("blocked", 0), ("blocked", 0), ("closed", 1)]
    assert history.year(1, "2026-03-01T18:00:00Z")["rollback"] == 1


def test_r25_what_is_received_at_the_closing_instant_is_in_revision_1() -> None:
    for received, expected in (
        (CLOSE, ("closed", 1)),
        ("2026-03-31T00:00:00.000001Z", ("restated", 2)),
    ):
        history = History()
        history.incident("06-01", 1)
        history.failure(at("07-01"), 2, 900, source=AGENT, received=received)

        assert states(history, "2026-05-01T00:00:00Z") == [expected]


def test_r25_each_receipt_instant_that_changes_something_is_a_revision() -> None:
    history = History()
    history.incident("06-01", 1, lost=5)
    late = "2026-04-0{}T00:00:00Z".format
    history.failure(at("07-01"), 2, 900, source=AGENT, received=late(2))
    history.movement(at("07-01", 5), 2, 900, source=AGENT, received=late(2))
    history.progress(at("07-02"), 3, 950, source=AGENT, received=late(3))
    history.exclude("customer_cause", late(4), failure_ids=["f0001"])
    history.exclude("force_majeure", late(5), failure_ids=["f0001"])

    seen = [(history.year(1, late(day))) for day in range(1, 6)]

    assert [(y["revision"], y["counted"], y["outcome"]) for y in seen] == [
        (1, 1, "missed"),
        (2, 2, "missed"),
        (2, 2, "missed"),
        (3, 1, "met"),
        (3, 1, "met"),
    ]
    assert [y["credit"] is None for y in seen] == [False, False, False, True, True]


def test_r25_a_closed_year_keeps_its_figures_until_something_is_received() -> None:
    """A pending failure becomes a rollback by time alone: no receipt instant, no revision."""
    history = History(evidence_grace_days=0)
    history.incident("06-01", 1)
    history.failure("2026-02-28T23:00:00Z", 2, 900, received="2026-03-01T01:00:00Z", source=AGENT)

    year = history.year(1, "2026-03-05T00:00:00Z")
    assert (year["revision"], year["pending"], year["rollback"]) == (2, 1, 0)
    assert history.incidents("2026-03-05T00:00:00Z")[1]["verdict"] == "rollback"
    history.progress(at("2026-03-06T00:00:00Z"), 9, 9000, source="/other")
    year = history.year(1, "2026-03-07T00:00:00Z")
    assert (year["revision"], year["pending"], year["rollback"]) == (3, 0, 1)


def holed(**more: str) -> History:
    """Number 3 of the coordinator is missing, between 1 June and 1 July."""
    history = History(**more)
    history.incident("06-01", 1)
    missing = history.failure(at("06-15"), 2, 900)
    history.events[:] = [event for event in history.events if event["id"] != missing]
    history.progress(at("07-01"), 2, 950)
    return history


def test_r26_a_hole_blocks_the_close() -> None:
    assert states(holed(), CLOSE) == [("blocked", 0)]


def test_r26_any_readable_event_fills_its_number_whatever_became_of_it() -> None:
    for filler in (
        {"type": "failure.detected", "data": {}},
        {"type": "of.tomorrow"},
        {"specversion": "0.3"},
    ):
        history = holed()
        event = {"id": "x", "source": COORDINATOR, "time": at("06-15"), "sequence": "3"}
        history.events.append({"specversion": "1.0", "type": "t", "subject": "r1"} | event | filler)

        assert states(history, CLOSE) == [("closed", 1)]
        history.events[-1]["time"] = "noon"
        assert states(history, CLOSE) == [("blocked", 0)]


def test_r26_the_close_comes_with_the_missing_number() -> None:
    history = holed()
    received = "2026-04-10T00:00:00Z"
    event = history.events[-1] | {"id": "x", "time": at("06-15"), "sequence": "3"}
    history.events.append(event | {"recordedtime": received})

    assert states(history, "2026-04-09T23:59:59Z", received) == [("blocked", 0), ("closed", 1)]


def test_r26_a_hole_touches_every_year_between_its_neighbours() -> None:
    history = History(as_of="2027-06-01T00:00:00Z")
    history.progress("2026-02-01T00:00:00Z", 1, 1)
    history.progress("2026-02-28T00:00:00Z", 1, 2)
    history.progress("2026-03-01T00:00:00Z", 1, 3)
    del history.events[1]

    assert [year["state"] for year in history.replay()["years"]] == ["blocked", "blocked"]
    history.events[0]["time"] = "2026-03-01T00:00:00Z"
    assert [year["state"] for year in history.replay()["years"]] == ["closed", "blocked"]


def test_r26_a_hole_lies_between_the_times_even_where_the_clock_went_back() -> None:
    history = History(as_of="2027-06-01T00:00:00Z")
    for when in ("2026-03-05T00:00:00Z", "2026-03-04T00:00:00Z", "2026-02-01T00:00:00Z"):
        history.progress(when, 1, 1)
    del history.events[1]

    assert [year["state"] for year in history.replay()["years"]] == ["blocked", "blocked"]


def test_r26_what_is_missing_before_a_sources_first_event() -> None:
    history = History(as_of="2027-06-01T00:00:00Z")
    history.progress("2025-04-01T00:00:00Z", 1, 1)
    history.progress("2025-05-01T00:00:00Z", 1, 2)
    del history.events[0]

    assert [year["state"] for year in history.replay()["years"]] == ["blocked", "closed"]
    history.events[0]["time"] = "2026-03-01T00:00:00Z"
    assert [year["state"] for year in history.replay()["years"]] == ["blocked", "blocked"]


def test_r26_a_hole_after_the_close_changes_nothing() -> None:
    history = History()
    history.incident("06-01", 1)
    history.progress(at("07-01"), 2, 950, sequence="9", received="2026-04-10T00:00:00Z")

    assert states(history, "2026-05-01T00:00:00Z") == [("closed", 1)]


def test_r26_a_waiver_lets_the_year_close_from_its_recorded_instant() -> None:
    history = holed()
    history.waive(COORDINATOR, "2026-04-05T00:00:00Z", **{"from": 3, "to": 3})

    assert states(history, "2026-04-04T23:59:59Z", "2026-04-05T00:00:00Z") == [
        ("blocked", 0),
        ("closed", 1),
    ]
    assert history.year()["notes"] == ["waived_gap"]
    assert history.year(2)["notes"] == []


def test_r26_a_waiver_in_part_still_blocks_and_the_note_is_settled_at_the_close() -> None:
    history = History()
    for number in range(6):
        history.progress(at(f"06-0{number + 1}"), 1, number)
    lost = history.events[1:5]
    del history.events[1:5]
    history.waive(COORDINATOR, "2026-01-01T00:00:00Z", **{"from": 2, "to": 3})
    history.waive(COORDINATOR, "2026-01-01T00:00:00Z", **{"from": 3, "to": 4})
    assert states(history, CLOSE) == [("blocked", 0)]

    history.events.append(lost[3] | {"recordedtime": "2026-04-05T00:00:00Z"})
    assert states(history, "2026-04-05T00:00:00Z") == [("closed", 1)]
    history.events.extend(event | {"recordedtime": "2026-04-06T00:00:00Z"} for event in lost[:3])
    assert history.year()["notes"] == ["waived_gap"]


def test_r26_a_waiver_of_what_came_before_the_close_leaves_no_note() -> None:
    history = holed()
    history.waive(COORDINATOR, "2025-08-01T00:00:00Z", **{"from": 3, "to": 3})
    event = history.events[-1] | {"id": "x", "time": at("06-15"), "sequence": "3"}
    history.events.append(event | {"recordedtime": "2025-09-01T00:00:00Z"})

    assert history.year()["notes"] == []


def opened() -> History:
    history = History()
    history.event("source.opened", at("05-01"), {}, source=AGENT)
    return history


def test_r42_a_silent_source_blocks_the_close() -> None:
    assert states(opened(), "2026-05-01T00:00:00Z") == [("blocked", 0)]


def test_r42_a_source_opened_after_the_year_does_not_touch_it() -> None:
    history = opened()
    history.events[0]["time"] = "2026-03-01T00:00:00Z"

    assert states(history, "2026-05-01T00:00:00Z") == [("closed", 1)]


@pytest.mark.parametrize(
    ("when", "state"),
    [
        ("2026-02-28T23:59:59.999999Z", ("blocked", 0)),
        ("2026-03-01T00:00:00Z", ("closed", 1)),
    ],
)
def test_r42_something_from_the_years_end_on_is_its_tail(when: str, state: tuple[str, int]) -> None:
    history = opened()
    history.event("health.finding", when, {}, source=AGENT)

    assert states(history, "2026-05-01T00:00:00Z") == [state]


@pytest.mark.parametrize(
    ("last", "state"),
    [(2, ("closed", 1)), ("2", ("closed", 1)), (3, ("blocked", 0)), (None, ("blocked", 0))],
)
def test_r42_a_sealed_source_that_has_sent_all(last: object, state: tuple[str, int]) -> None:
    history = opened()
    history.event("source.sealed", at("05-02"), {"last_sequence": last}, source=AGENT)

    assert states(history, "2026-05-01T00:00:00Z") == [state]


def test_r42_two_people_waive_a_tail() -> None:
    history = opened()
    history.waive(AGENT, "2026-04-05T00:00:00Z", tail=True)

    assert states(history, "2026-04-04T00:00:00Z", "2026-04-05T00:00:00Z") == [
        ("blocked", 0),
        ("closed", 1),
    ]
    assert history.year()["notes"] == ["waived_gap"]


def test_r42_an_event_from_the_future_is_no_tail() -> None:
    history = opened()
    history.event("health.finding", "2026-03-01T00:00:00Z", {}, source=AGENT, received=at("05-02"))

    assert states(history, "2026-05-01T00:00:00Z") == [("blocked", 0)]


def test_r27_evidence_long_after_the_close_is_recorded_and_the_figures_stay() -> None:
    for received, revision in (
        ("2027-03-31T00:00:00Z", 2),
        ("2027-03-31T00:00:00.000001Z", 1),
    ):
        history = History(as_of="2027-06-01T00:00:00Z")
        history.incident("06-01", 1)
        history.failure(at("07-01"), 2, 900, source=AGENT, received=received)

        assert history.year()["revision"] == revision
        assert history.incidents()[1]["verdict"] == "rollback"


def test_r27_met_to_missed_grants_the_credit() -> None:
    history = History()
    history.incident("06-01", 1)
    history.failure(at("07-01"), 2, 900, source=AGENT, received="2026-04-02T00:00:00Z")

    assert history.year(1, CLOSE)["outcome"] == "met"
    year = history.year()
    assert (year["state"], year["outcome"]) == ("restated", "missed")
    assert year["credit"] == {"amount": "300.00", "minor_units": 30000, "currency": "USD"}
