"""R1-R9: the verdict of one incident."""

from __future__ import annotations

from typing import Any

import pytest

from tests.sla.build import AGENT, WITNESS, History, at

ZERO_LOSS = ("zero_loss", [], 0)


def judged(facts: dict[str, Any], *, committed: Any = 700, **terms: Any) -> tuple[Any, ...]:
    history = History(**terms)
    history.failure(at("06-01"), 1, 700)
    history.movement(at("06-01", 9), 1, committed, facts=facts)
    (verdict,) = history.verdicts()
    return verdict


@pytest.mark.parametrize(
    ("facts", "reasons", "lost"),
    [
        ({"resumed_step": 700}, ["rolled_back"], 1),
        ({"resumed_step": 690, "recomputed_steps": 11}, ["rolled_back", "recomputed"], 11),
        ({"resumed_step": 703}, ["gap"], 0),
        ({"recomputed_steps": 1}, ["recomputed"], 0),
        ({"samples_skipped": 1}, ["samples_skipped"], 0),
        (
            {
                "resumed_step": 1,
                "recomputed_steps": 700,
                "state_source": "checkpoint",
                "samples_skipped": 2,
            },
            ["rolled_back", "recomputed", "checkpoint_restore", "samples_skipped"],
            700,
        ),
    ],
)
def test_r1_every_reason_that_applies_in_order(
    facts: dict[str, Any], reasons: list[str], lost: int
) -> None:
    assert judged(facts) == ("rollback", reasons, lost)


@pytest.mark.parametrize("source", ["source_memory", "replica"])
def test_r1_zero_loss(source: str) -> None:
    assert judged({"state_source": source}) == ZERO_LOSS


def test_r1_the_witness_and_the_movement_itself_raise_c() -> None:
    history = History()
    history.failure(at("06-01"), 1, 700)
    history.progress(at("06-01", -9), 1, 703, kind="run.witnessed", source=WITNESS)
    history.progress(at("06-01", -9), 2, 999, kind="run.witnessed", source=WITNESS)
    history.movement(at("06-01", 9), 1, 705, facts={"resumed_step": 701})

    assert history.verdicts() == [("rollback", ["rolled_back"], 5)]


def test_r2_the_step_in_flight_may_run_again() -> None:
    assert judged({"resumed_step": 701}) == ZERO_LOSS


def test_r3_lost_steps_are_zero_where_c_or_r_is_unknown() -> None:
    assert judged({"resumed_step": ...}) == ("rollback", ["missing_evidence"], 0)


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({}, ZERO_LOSS),
        ({"resumed_step": 700}, ("rollback", ["rolled_back", "checkpoint_restore"], 1)),
        ({"recomputed_steps": 1}, ("rollback", ["recomputed", "checkpoint_restore"], 0)),
    ],
)
def test_r4_an_exact_checkpoint_where_the_terms_allow_it(
    facts: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    facts = {"state_source": "checkpoint"} | facts

    assert judged(facts, allow_exact_checkpoint=True) == expected
    assert "checkpoint_restore" in judged(facts)[1]


def silent(*finishes: tuple[str, str, str], **terms: Any) -> History:
    history = History(**terms)
    history.failure(at("06-01"), 1, 700)
    for when, status, by in finishes:
        history.event("run.finished", when, {"status": status, "by": by, "committed_step": 700})
    return history


def test_r5_silence_is_pending_until_the_deadline_and_then_no_recovery() -> None:
    history = silent()

    assert history.verdicts("2025-06-02T11:59:59.999999Z") == [("pending", [], 0)]
    assert history.verdicts("2025-06-02T12:00:00Z") == [("rollback", ["no_recovery"], 0)]


def test_r5_the_terms_set_the_deadline() -> None:
    assert silent(recovery_deadline_hours=48).verdicts("2025-06-03T11:59:59Z")[0][0] == "pending"


@pytest.mark.parametrize("status", ["completed", "failed"])
def test_r5_a_run_that_has_finished_does_not_recover(status: str) -> None:
    history = silent((at("06-01", 60), status, "system"))

    assert history.verdicts(at("06-01", 59)) == [("pending", [], 0)]
    assert history.verdicts(at("06-01", 60)) == [("rollback", ["no_recovery"], 0)]


def test_r5_a_finish_before_the_failure_says_nothing() -> None:
    history = silent((at("06-01", -1), "failed", "system"))

    assert history.verdicts(at("06-01", 60)) == [("pending", [], 0)]


def test_r5_a_customer_who_stops_in_time_is_excluded_at_once() -> None:
    (incident,) = silent((at("06-01", 60), "cancelled", "customer")).incidents(at("06-01", 60))

    assert (incident["verdict"], incident["reasons"]) == ("rollback", ["no_recovery"])
    assert incident["excluded"] == "customer_stop"


@pytest.mark.parametrize(
    ("when", "by"), [(at("06-02", 0), "customer"), (at("06-01", 60), "operator")]
)
def test_r5_too_late_or_not_the_customer_is_not_excluded(when: str, by: str) -> None:
    (incident,) = silent((when, "cancelled", by)).incidents()

    assert (incident["reasons"], incident["excluded"]) == (["no_recovery"], None)


def test_r5_a_movement_that_becomes_known_later_is_judged_by_its_facts() -> None:
    history = silent((at("06-01", 60), "cancelled", "customer"))
    history.movement(at("06-01", 30), 1, 700, received="2025-09-01T00:00:00Z")

    assert history.incidents("2025-08-01T00:00:00Z")[0]["excluded"] == "customer_stop"
    (incident,) = history.incidents()
    assert (incident["verdict"], incident["excluded"]) == ("zero_loss", None)


@pytest.mark.parametrize(
    ("total", "reasons"),
    [
        (10, []),
        (10.000001, ["too_slow"]),
        (..., ["missing_evidence"]),
        ("9", ["missing_evidence"]),
    ],
)
def test_r6_a_time_limit_only_where_the_terms_set_one(total: object, reasons: list[str]) -> None:
    facts = {"seconds": {} if total is ... else {"total": total}}

    assert judged(facts)[1] == []
    assert judged(facts, max_recovery_seconds=10)[1] == reasons


def test_r6_the_largest_totals_of_a_chain_are_summed_exactly() -> None:
    history = History(max_recovery_seconds=0.3)
    for epoch, total in ((1, 0.1), (2, 0.2)):
        history.failure(at("06-01", epoch), epoch, 700)
        history.movement(at("06-01", 9 + epoch), epoch, 700, facts={"seconds": {"total": total}})

    assert history.verdicts() == [ZERO_LOSS]
    history.movement(at("06-01", 9), 1, 700, source=AGENT, facts={"seconds": {"total": 0.100001}})
    assert history.verdicts() == [("rollback", ["too_slow"], 0)]


def test_r6_a_planned_migration_may_take_its_time() -> None:
    history = History(max_recovery_seconds=1)
    history.migration(at("06-01"), 1, 700, facts={"seconds": {"total": 900}})

    assert history.incidents() == []


def test_r7_a_migration_that_lost_something_is_an_incident_by_itself() -> None:
    history = History()
    history.failure(at("06-01"), 1, 700)
    history.movement(at("06-01", 5), 1, 700)
    moved = history.migration(at("06-01", 7), 2, 700, facts={"resumed_step": 700})
    history.failure(at("06-01", 9), 3, 699)
    history.movement(at("06-01", 11), 3, 699)

    assert [(i["first_event"], i["failures"], i["verdict"]) for i in history.incidents()] == [
        ("e0001", 1, "zero_loss"),
        (moved, 0, "rollback"),
        ("e0004", 1, "zero_loss"),
    ]


def test_r7_confirmed_predictions_count_where_the_terms_say_so() -> None:
    for counts, expected in ((False, []), (True, [ZERO_LOSS])):
        history = History(count_confirmed_predictions=counts)
        moved = history.migration(at("06-01"), 1, 700)
        history.migration(at("06-03"), 2, 800)
        data = {"gpu": "GPU-1", "finding": "x", "migration_event": moved}
        history.event("prediction.confirmed", at("06-02"), data, source=AGENT)

        assert history.verdicts() == expected


@pytest.mark.parametrize(
    ("facts", "reasons"),
    [
        ({"resumed_step": ...}, ["missing_evidence"]),
        ({"recomputed_steps": ...}, ["missing_evidence"]),
        ({"recomputed_steps": "0"}, ["missing_evidence"]),
        ({"samples_skipped": True}, ["missing_evidence"]),
        ({"samples_skipped": 0.0}, ["missing_evidence"]),
        ({"state_source": "thin_air"}, ["missing_evidence"]),
        ({"state_source": ["replica"]}, ["missing_evidence"]),
        ({"recomputed_steps": -1}, ["inconsistent"]),
        ({"samples_skipped": -1}, ["inconsistent"]),
        ({"committed_step": -1}, ["inconsistent"]),
        ({"seconds": {"total": -0.5}}, ["inconsistent"]),
        ({"resumed_step": -1}, ["rolled_back", "inconsistent"]),
        ({"resumed_step": 703, "recomputed_steps": 2}, ["gap", "recomputed", "inconsistent"]),
    ],
)
def test_r8_contradictory_or_missing_numbers_never_help(
    facts: dict[str, Any], reasons: list[str]
) -> None:
    assert judged(facts)[:2] == ("rollback", reasons)


def test_r8_a_c_that_nothing_reports_is_missing() -> None:
    history = History()
    history.movement(at("06-01"), 1, ...)

    assert history.verdicts() == [("rollback", ["missing_evidence"], 0)]


def test_r9_the_worst_of_each_fact_over_all_reports() -> None:
    history = History()
    history.failure(at("06-01"), 1, 700)
    history.movement(at("06-01", 5), 1, 705, facts={"resumed_step": 706, "samples_skipped": 3})
    history.movement(
        at("06-01", 5), 1, 700, source=AGENT, facts={"resumed_step": 699, "recomputed_steps": 2}
    )

    reasons = ["rolled_back", "recomputed", "samples_skipped"]
    assert history.verdicts() == [("rollback", reasons, 7)]


def test_r9_a_value_is_used_over_an_absent_one_but_the_reports_conflict() -> None:
    history = History()
    history.failure(at("06-01"), 1, 700)
    history.movement(at("06-01", 5), 1, 700)
    history.movement(at("06-01", 5), 1, 700, source=AGENT, facts={"resumed_step": ...})

    assert history.verdicts() == [("rollback", ["conflict"], 0)]


def test_r9_each_report_alone_has_its_own_c() -> None:
    """One says 705 were committed and 706 resumed, the other 700 and 701: alone both are fine."""
    history = History()
    history.failure(at("06-01"), 1, 700)
    history.movement(at("06-01", 5), 1, 705)
    history.movement(at("06-01", 5), 1, 700, source=AGENT)

    assert history.verdicts() == [("rollback", ["rolled_back"], 5)]


def test_r9_time_limits_make_no_conflict() -> None:
    history = History(max_recovery_seconds=10)
    history.failure(at("06-01"), 1, 700)
    history.movement(at("06-01", 5), 1, 700, facts={"seconds": {"total": 11}})
    history.movement(at("06-01", 5), 1, 700, source=AGENT)

    assert history.verdicts() == [("rollback", ["too_slow"], 0)]
