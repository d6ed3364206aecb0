"""R15-R22, R24, R40: what counts, and what becomes of each event."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sla.domain.assessment import percent_text
from tests.sla.build import AGENT, History, at


def test_r15_the_same_body_again_is_a_duplicate_and_changes_nothing() -> None:
    history = History()
    history.incident("06-01", 1)
    before = history.replay()
    again = copy.deepcopy(history.events[0]) | {"recordedtime": "2025-07-01T00:00:00Z"}
    history.events.append(again)

    after = history.replay()

    assert after["digest"] == before["digest"]
    assert after["events"] == before["events"] | {"duplicate": 1}


def test_r15_another_body_is_a_conflict_and_the_first_stays_in_force() -> None:
    history = History()
    history.incident("06-01", 1)
    before = history.replay()
    other = copy.deepcopy(history.events[1]) | {"recordedtime": "2025-07-01T00:00:00Z"}
    other["data"]["recomputed_steps"] = 5
    third = copy.deepcopy(other) | {"recordedtime": "2025-07-02T00:00:00Z"}
    history.events[:0] = [third, other]

    after = history.replay()

    assert after["digest"] == before["digest"]
    assert after["events"] == before["events"] | {"conflict": 2}


def test_r15_at_one_instant_the_smaller_canonical_json_is_in_force() -> None:
    for flip in (False, True):
        history = History()
        history.incident("06-01", 1)
        other = copy.deepcopy(history.events[1])
        other["data"]["recomputed_steps"] = 5
        history.events.insert(0 if flip else 2, other)

        assert history.verdicts() == [("zero_loss", [], 0)]
        assert history.replay()["events"]["conflict"] == 1


def test_r15_what_cannot_be_read_is_kept_aside() -> None:
    history = History()
    history.incident("06-01", 1)
    before = history.replay()
    history.failure(at("06-02"), 2, -1)
    history.event("failure.detected", at("06-02"), {"failure_id": "f", "epoch": 2})
    history.event("run.started", at("06-02"), {}, specversion="0.3")
    history.document["events"] += ["text", None, {}]

    after = history.replay()

    assert after["digest"] == before["digest"]
    assert after["events"] == before["events"] | {"invalid": 6}


def test_r15_an_unknown_type_is_accepted_and_means_nothing() -> None:
    history = History()
    history.event("of.tomorrow", at("06-01"), {"anything": [1]})

    assert history.incidents() == []
    assert history.replay()["events"]["accepted"] == 1


def test_r15_sources_have_their_own_ids() -> None:
    history = History()
    history.incident("06-01", 1)
    other = copy.deepcopy(history.events[1]) | {"source": AGENT, "sequence": "1"}
    history.events.append(other)

    assert history.replay()["events"]["accepted"] == 3


def supported(*words: tuple[str, object, str | None]) -> str | None:
    history = History()
    for when, value, received in words:
        more = {"received": received} if received else {}
        history.event("run.support_changed", when, {"supported": value}, source=AGENT, **more)
    history.incident("06-01", 1)
    excluded: str | None = history.incidents()[0]["excluded"]
    return excluded


@pytest.mark.parametrize(
    ("words", "excluded"),
    [
        ([], None),
        ([(at("05-01"), False, None)], "unsupported_run"),
        ([(at("05-01"), False, None), (at("05-02"), True, None)], None),
        ([(at("05-01"), False, None), (at("05-02"), None, None)], None),
        ([(at("06-01"), False, at("06-01", -1))], "unsupported_run"),
        ([(at("06-01"), False, at("06-01"))], None),
        ([(at("05-01"), False, at("06-02"))], None),
        ([(at("05-01"), False, None), (at("05-02"), False, at("07-01"))], "unsupported_run"),
        ([(at("06-01", 1), False, None)], None),
        ([(at("05-01"), "no", None)], None),
    ],
)
def test_r16_supported_by_the_latest_word_before_the_incident(
    words: list[tuple[str, object, str | None]], excluded: str | None
) -> None:
    assert supported(*words) == excluded


def test_r17_by_failure_id_or_first_event_from_the_recorded_instant() -> None:
    for names in ({"failure_ids": ["f0001", "else"]}, {"first_event": "e0001"}):
        history = History()
        history.incident("06-01", 1, lost=5)
        history.exclude("customer_cause", "2025-07-01T00:00:00Z", **names)

        assert history.incidents("2025-06-30T23:59:59Z")[0]["excluded"] is None
        (incident,) = history.incidents()
        assert (incident["excluded"], incident["verdict"]) == ("customer_cause", "rollback")
        year = history.year()
        assert (year["excluded"], year["counted"], year["outcome"]) == (1, 0, "no_failures")


def windowed(registered_at: str = at("05-01"), **of: Any) -> str | None:
    history = History()
    history.failure(at("06-01"), 1, 700, nodes=["n1"])
    history.failure(at("06-01", 1), 1, 700, nodes=["n2"])
    history.movement(at("06-01", 9), 1, 700)
    history.register("maintenance", at("06-01"), at("06-01", 1), registered_at, **of)
    excluded: str | None = history.incidents()[0]["excluded"]
    return excluded


def test_r17_a_window_names_the_run_or_every_failed_node() -> None:
    assert windowed(runs=["r1"]) == "maintenance"
    assert windowed(nodes=["n1", "n2", "n3"]) == "maintenance"
    assert windowed(nodes=["n1"]) is None
    assert windowed(runs=["r2"]) is None
    assert windowed(registered_at=at("06-01"), runs=["r1"]) is None


def test_r17_a_window_is_half_open_and_needs_a_failed_node() -> None:
    history = History()
    history.movement(at("06-01"), 1, 700, facts={"resumed_step": 1})
    history.register("registered_drill", at("05-31"), at("06-01"), at("05-01"), runs=["r1"])
    history.register("registered_drill", at("05-31"), at("06-02"), at("05-01"), nodes=["n1"])

    assert history.incidents()[0]["excluded"] is None
    history.register("registered_drill", at("05-31"), at("06-02"), at("05-01"), runs=["r1"])
    assert history.incidents()[0]["excluded"] == "registered_drill"


def test_r17_the_first_reason_of_the_closed_list_is_shown() -> None:
    history = History()
    history.incident("06-01", 1, lost=5)
    shown = []
    history.register("registered_drill", at("05-31"), at("06-02"), at("05-01"), runs=["r1"])
    shown.append(history.incidents()[0]["excluded"])
    history.exclude("force_majeure", at("06-05"), failure_ids=["f0001"])
    shown.append(history.incidents()[0]["excluded"])
    history.register("maintenance", at("05-31"), at("06-02"), at("05-01"), runs=["r1"])
    shown.append(history.incidents()[0]["excluded"])
    history.exclude("customer_cause", at("06-05"), failure_ids=["f0001"])
    shown.append(history.incidents()[0]["excluded"])
    history.event("run.started", at("05-02"), {"supported": False}, source=AGENT)
    shown.append(history.incidents()[0]["excluded"])

    assert shown == [
        "registered_drill",
        "force_majeure",
        "maintenance",
        "customer_cause",
        "unsupported_run",
    ]


def year_of(*losses: int, **terms: Any) -> dict[str, Any]:
    history = History(**terms)
    for place, lost in enumerate(losses):
        history.incident(f"06-{place + 1:02d}", place + 1, lost=lost)
    return history.year()


def test_r18_exactly_the_target_is_met() -> None:
    year = year_of(5, *[0] * 9)

    assert (year["counted"], year["zero_loss"], year["rollback"]) == (10, 9, 1)
    assert (year["outcome"], year["credit"]) == ("met", None)
    assert year_of(5, *[0] * 9, target="901/1000")["outcome"] == "missed"


def test_r18_pending_ones_are_not_counted() -> None:
    history = History()
    history.incident("06-01", 1)
    history.failure(at("06-02"), 2, 200)

    year = history.year(as_of=at("06-02", 1))
    assert (year["counted"], year["pending"], year["state"]) == (1, 1, "open")


def test_r19_no_counted_incident() -> None:
    year = year_of()

    assert (year["outcome"], year["credit"], year["counted"]) == ("no_failures", None, 0)


def test_r20_small_numbers_are_taken_literally_unless_the_terms_say_else() -> None:
    assert year_of(5, *[0] * 8)["outcome"] == "missed"
    year = year_of(5, *[0] * 8, min_incidents=10)
    assert (year["outcome"], year["credit"]) == ("too_few", None)
    assert year_of(min_incidents=10)["outcome"] == "no_failures"


@pytest.mark.parametrize(
    ("zero_loss", "counted", "text"),
    [(8996, 10_000, "89.9"), (9, 10, "90.0"), (2, 3, "66.6"), (0, 3, "0.0"), (0, 0, None)],
)
def test_r21_percentages_are_truncated(zero_loss: int, counted: int, text: str | None) -> None:
    assert percent_text(zero_loss, counted) == text


@given(st.integers(0, 10_000), st.integers(1, 10_000))
def test_r21_a_percentage_never_looks_better_than_the_ratio(zero_loss: int, more: int) -> None:
    counted = zero_loss + more
    tenths = int(str(percent_text(zero_loss, counted)).replace(".", ""))

    assert tenths * counted <= zero_loss * 1000 < (tenths + 1) * counted


def test_r22_all_runs_of_the_contract_are_pooled() -> None:
    history = History()
    for run in ("r1", "r2"):
        source = f"/clusters/k1/runs/{run}/coordinator"
        history.failure(at("06-01"), 1, 700, run=run, source=source)
        history.movement(at("06-01", 9), 1, 700, run=run, source=source)

    assert history.year()["counted"] == 2


def test_r24_an_event_from_the_future_is_quarantined() -> None:
    history = History()
    history.failure(at("06-01", 300), 1, 700, received=at("06-01"))
    history.failure(at("06-02", 300.000001), 2, 900, received=at("06-02"))
    history.failure("1999-01-01T00:00:00Z", 3, 950, received=at("06-02"))

    document = history.replay()

    assert document["events"]["quarantined"] == 1
    assert [incident["first_event"] for incident in document["incidents"]] == ["e0003", "e0001"]


def test_r24_a_quarantined_event_keeps_its_identity() -> None:
    history = History()
    history.failure(at("06-02"), 1, 700, received=at("06-01"))
    history.events.append(history.events[0] | {"recordedtime": at("06-03")})

    document = history.replay()

    assert (document["events"]["quarantined"], document["events"]["duplicate"]) == (1, 1)
    assert document["incidents"] == []


def test_r40_a_run_whose_first_start_names_another_contract_is_not_ours() -> None:
    for contracts, count in (
        ([None], 1),
        (["C-1"], 1),
        (["C-2"], 0),
        (["C-2", "C-1"], 0),
        (["C-1", "C-2"], 1),
    ):
        history = History()
        for place, contract in enumerate(contracts):
            history.event("run.started", at(f"05-0{place + 1}"), {"contract": contract})
        history.incident("06-01", 1)

        assert len(history.incidents()) == count
