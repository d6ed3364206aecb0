"""R10-R14, R41, R43: what is one incident."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.events import canonical_json, parse_time
from sla.domain.books import Books
from sla.domain.case import read_case
from sla.domain.evidence import read_events
from sla.tables import TABLES
from tests.sla.build import AGENT, WITNESS, History, at


def firsts(history: History) -> list[tuple[str, int, str]]:
    return [
        (incident["first_event"], incident["failures"], incident["verdict"])
        for incident in history.incidents()
    ]


def test_r10_the_same_fault_in_three_runs_is_three_incidents() -> None:
    history = History()
    for run in ("r1", "r2", "r3"):
        source = f"/clusters/k1/runs/{run}/coordinator"
        history.failure(at("06-01"), 1, 700, run=run, source=source)
        history.failure(at("06-01", 1), 1, 700, run=run, source=source)
        history.movement(at("06-01", 9), 1, 700, run=run, source=source)

    assert [(i["run"], i["failures"]) for i in history.incidents()] == [
        ("r1", 2),
        ("r2", 2),
        ("r3", 2),
    ]


def test_r10_a_recovery_without_a_failure_stands_for_one() -> None:
    history = History()
    stand_in = history.movement(at("06-01"), 1, 700)
    history.failure(at("06-01", 5), 2, 700)
    history.movement(at("06-01", 9), 2, 700)

    assert firsts(history) == [(stand_in, 1, "zero_loss")]


def test_r10_a_migration_from_an_epoch_that_failed_belongs_to_its_failures() -> None:
    history = History()
    failed = history.failure(at("06-01"), 1, 700)
    history.migration(at("06-01", 5), 1, 700)

    assert firsts(history) == [(failed, 1, "zero_loss")]


def chain(second: dict[str, Any], *, committed: int = 700, **first: Any) -> History:
    history = History()
    history.failure(at("06-01"), 1, 700)
    history.movement(at("06-01", 5), 1, 700, facts=first)
    history.failure(at("06-01", 7), 2, committed)
    history.movement(at("06-01", 9), 2, committed, facts=second)
    return history


def test_r11_a_chain_is_judged_as_a_whole() -> None:
    """Nothing was committed in epoch 2: C of the first epoch, R of the last."""
    history = chain({"resumed_step": 691, "recomputed_steps": 10}, resumed_step=701)

    assert history.verdicts() == [("rollback", ["rolled_back", "recomputed"], 10)]


def test_r11_any_epoch_of_a_chain_makes_it_rollback() -> None:
    """The first movement lost ten steps; that the second starts at 701 again undoes nothing."""
    history = chain({"resumed_step": 701}, committed=690, resumed_step=691)

    assert history.verdicts() == [("rollback", ["rolled_back", "gap"], 0)]


def test_r11_recomputed_and_skipped_are_summed_and_a_checkpoint_stays() -> None:
    history = chain({"samples_skipped": 1}, recomputed_steps=1, state_source="checkpoint")

    reasons = ["recomputed", "checkpoint_restore", "samples_skipped"]
    assert history.verdicts() == [("rollback", reasons, 0)]


def test_r11_one_committed_step_ends_the_incident() -> None:
    assert len(chain({}, committed=701).incidents()) == 2


def test_r11_a_witness_who_saw_a_commit_ends_the_incident() -> None:
    history = chain({})
    history.progress(at("06-01", 6), 2, 701, kind="run.witnessed", source=WITNESS)

    assert len(history.incidents()) == 2


def test_r11_times_are_not_compared() -> None:
    history = History()
    history.movement(at("06-01", 9), 2, 700)
    first = history.failure(at("06-01", 1), 2, 700)
    history.movement(at("06-01", 5), 1, 700)
    history.failure(at("06-01", 7), 1, 700)

    assert firsts(history) == [(first, 2, "zero_loss")]


def test_r11_without_a_movement_the_committed_steps_decide() -> None:
    for committed, incidents in ((700, 1), (701, 2)):
        history = History()
        history.failure(at("06-01"), 1, 700)
        history.failure(at("06-01", 7), 3, committed)
        history.movement(at("06-01", 9), 3, committed)

        assert len(history.incidents()) == incidents


def test_r11_a_movement_without_a_resumed_step_leaves_it_to_the_committed_steps() -> None:
    history = chain({}, resumed_step=...)

    assert history.verdicts() == [("rollback", ["missing_evidence"], 0)]


def test_r11_while_the_last_epoch_has_no_movement_r5_decides_alone() -> None:
    history = History()
    history.failure(at("06-01"), 1, 700)
    history.movement(at("06-01", 5), 1, 700, facts={"recomputed_steps": 3})
    history.failure(at("06-01", 7), 2, 700)

    assert history.verdicts("2025-06-02T12:00:06Z") == [("pending", [], 0)]
    assert history.verdicts("2025-06-02T12:00:07Z") == [("rollback", ["no_recovery"], 0)]


def test_r11_three_failures_in_a_row_are_one_incident() -> None:
    history = chain({})
    history.failure(at("06-01", 11), 3, 700)
    history.movement(at("06-01", 15), 3, 700)

    assert firsts(history) == [("e0001", 3, "zero_loss")]


def test_r12_a_failure_seconds_later_is_a_new_incident() -> None:
    history = chain({}, committed=702)

    assert firsts(history) == [("e0001", 1, "zero_loss"), ("e0003", 1, "zero_loss")]


def test_r14_the_smallest_time_decides_and_ties_go_by_id() -> None:
    history = History()
    history.failure(at("06-01", 5), 1, 700, failure_id="same")
    history.failure(at("06-01", 1), 1, 700, failure_id="same")
    history.failure(at("06-01", 1), 1, 700, source=AGENT, failure_id="other")
    history.movement(at("06-01"), 1, 700)

    (incident,) = history.incidents()
    assert incident["occurred_at"] == at("06-01", 1)
    assert (incident["first_event"], incident["failures"]) == ("e0002", 2)


def test_r14_an_incident_outside_every_year_has_no_year() -> None:
    history = History()
    history.failure("2024-06-01T00:00:00Z", 1, 700)
    history.failure("2025-03-01T00:00:00Z", 2, 800)

    assert [incident["year"] for incident in history.incidents()] == [None, 1]


def test_r41_progress_that_goes_back_is_a_rollback_nobody_reported() -> None:
    history = History()
    history.progress(at("06-01"), 1, 700)
    lower = history.progress(at("06-01", 60), 2, 640)

    (incident,) = history.incidents()
    assert incident["first_event"] == lower
    assert (incident["verdict"], incident["reasons"]) == ("rollback", ["unreported"])
    assert (incident["lost_steps"], incident["failures"]) == (60, 0)


@pytest.mark.parametrize(
    ("epoch", "lost", "expected"),
    [
        (1, 5, ["rollback"]),  # a rollback in between explains it
        (1, 0, ["zero_loss", "rollback"]),  # the vendor's word of no loss does not
        (2, 5, ["rollback", "rollback"]),  # a rollback from the later epoch explains nothing
    ],
)
def test_r41_only_a_reported_rollback_in_between_explains_it(
    epoch: int, lost: int, expected: list[str]
) -> None:
    history = History()
    history.progress(at("05-01"), 1, 700, kind="run.witnessed", source=WITNESS)
    history.failure(at("06-01"), epoch, 700)
    history.movement(at("06-01", 5), epoch, 700, facts={"resumed_step": 701 - lost})
    history.progress(at("06-02"), 2, 695, kind="run.witnessed", source=WITNESS)

    assert [verdict for verdict, _, _ in history.verdicts()] == expected


def test_r41_a_pending_incident_explains_it_for_now() -> None:
    history = History()
    history.progress(at("05-01"), 1, 700)
    history.failure(at("06-01"), 1, 700)
    history.progress(at("06-01", 60), 2, 650)

    assert history.verdicts(at("06-01", 60)) == [("pending", [], 0)]


def test_r41_within_one_epoch_and_by_source() -> None:
    history = History()
    history.progress(at("06-01"), 1, 700)
    history.progress(at("06-01", 60), 1, 699, source=WITNESS, kind="run.witnessed")
    history.progress(at("06-01", 120), 1, 701)

    assert history.incidents() == []
    history.progress(at("06-01", 90), 1, 698, source=WITNESS, kind="run.witnessed")
    assert history.verdicts() == [("rollback", ["unreported"], 1)]


def parked(resumed: Any, committed: Any = 700) -> History:
    history = History()
    history.event("run.started", at("05-01"), {"supported": True})
    finished = {"status": "parked", "by": "operator", "committed_step": committed}
    history.event("run.finished", at("06-01"), finished)
    started = {} if resumed is ... else {"resumed_step": resumed}
    history.event("run.started", at("06-02"), {"supported": True} | started)
    return history


@pytest.mark.parametrize(
    ("resumed", "expected"),
    [
        (701, []),
        (690, [("rollback", ["rolled_back"], 11)]),
        (703, [("rollback", ["gap"], 0)]),
        (..., [("rollback", ["missing_evidence"], 0)]),
        ("701", [("rollback", ["missing_evidence"], 0)]),
    ],
)
def test_r43_a_park_resumes_at_the_very_next_step(resumed: Any, expected: list[Any]) -> None:
    assert parked(resumed).verdicts() == expected


def test_r43_the_incident_is_at_the_start() -> None:
    (incident,) = parked(690).incidents()

    assert (incident["first_event"], incident["failures"]) == ("e0003", 0)
    assert incident["occurred_at"] == at("06-02")


@st.composite
def histories(draw: st.DrawFn) -> History:
    """Random evidence about two runs: failures, movements, progress, parks, from three sources."""
    history = History(
        as_of="2026-09-01T00:00:00Z",
        count_confirmed_predictions=draw(st.booleans()),
        max_recovery_seconds=draw(st.sampled_from([None, 4.5, 2])),
    )
    steps = st.integers(min_value=98, max_value=103)
    for _ in range(draw(st.integers(min_value=1, max_value=14))):
        day = f"{draw(st.integers(min_value=2, max_value=12)):02d}-15"
        when = at(day, draw(st.integers(min_value=0, max_value=3)))
        run, epoch = draw(st.sampled_from(["r1", "r2"])), draw(st.integers(1, 4))
        more: dict[str, Any] = {
            "run": run,
            "source": draw(st.sampled_from(["/a", "/b", "/c"])),
        }
        if draw(st.booleans()):
            more["received"] = draw(
                st.sampled_from([when, "2026-02-28T23:00:00Z", "2026-04-02T00:00:00Z"])
            )
        kind = draw(st.sampled_from(["failure", "movement", "migration", "progress", "other"]))
        if kind == "failure":
            history.failure(when, epoch, draw(steps), **more)
        elif kind == "progress":
            history.progress(when, epoch, draw(steps), **more)
        elif kind == "other":
            data = draw(
                st.sampled_from(
                    [
                        {"status": "parked", "committed_step": 100},
                        {"status": "cancelled", "by": "customer"},
                        {"supported": False, "resumed_step": 101},
                    ]
                )
            )
            name = "run.started" if "supported" in data else "run.finished"
            history.event(name, when, data, **more)
        else:
            facts = {"resumed_step": draw(steps), "to_epoch": epoch + draw(st.integers(0, 2))}
            history.movement(
                when,
                epoch,
                draw(steps),
                facts=facts,
                kind="recovery.completed" if kind == "movement" else "migration.completed",
                **more,
            )
    return history


@settings(max_examples=150, deadline=None)
@given(histories(), st.randoms(use_true_random=False))
def test_r13_shuffled_duplicated_or_split_the_result_is_the_same(
    history: History, chance: random.Random
) -> None:
    before = history.replay()
    events = history.events
    again = [copy.deepcopy(event) for event in events if chance.random() < 0.5]
    mixed = events + again
    chance.shuffle(mixed)
    history.document["events"] = mixed

    after = history.replay()

    assert after["events"]["duplicate"] == before["events"]["duplicate"] + len(again)
    for name in ("incidents", "years", "digest"):
        assert canonical_json(after[name]) == canonical_json(before[name])


@settings(max_examples=100, deadline=None)
@given(histories())
def test_r13_once_all_are_received_incidents_do_not_depend_on_when(history: History) -> None:
    """R16 apart, which asks when a run was said to be unsupported."""
    for event in history.events:
        if event["data"].get("supported") is False:
            event["data"]["supported"] = True
    late = history.incidents()
    for event in history.events:
        event.pop("recordedtime", None)

    assert history.incidents() == late


@settings(max_examples=100, deadline=None)
@given(histories())
def test_r29_what_was_seen_at_an_instant_does_not_depend_on_what_came_later(
    history: History,
) -> None:
    instant = "2026-04-01T00:00:00Z"
    seen = history.replay(instant)
    history.document["events"] = [
        event
        for event in history.events
        if parse_time(event.get("recordedtime", event["time"])) <= parse_time(instant)
    ]

    assert history.replay(instant) == seen


@settings(max_examples=100, deadline=None)
@given(histories())
def test_r13_judging_step_by_step_equals_judging_once(history: History) -> None:
    case = read_case(history.document, TABLES)
    step_by_step, at_once = Books(contract=case.contract), Books(contract=case.contract)
    for reading in read_events(case.events, case.as_of_us):
        step_by_step.take(reading)
        step_by_step.judge(reading.received_us)
        at_once.take(reading)
    step_by_step.judge(case.as_of_us)
    at_once.judge(case.as_of_us)

    assert step_by_step.judged() == at_once.judged()
    for year in case.contract.years:
        assert step_by_step.counts(year.index) == at_once.counts(year.index)
