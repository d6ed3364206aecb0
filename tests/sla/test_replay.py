"""`manage.py replay`: the public cases exactly, and one clear line for everything that is wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from sla.case_files import first_difference
from sla.domain.case import BadCase, read_case
from sla.tables import TABLES
from tests.sla.build import History

CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))


def run(path: Path, *arguments: str) -> int:
    try:
        call_command("replay", str(path), *arguments)
    except SystemExit as stop:
        return int(str(stop.code))
    return 0


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_public_cases_exactly(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(path, "--json") == 0

    captured = capsys.readouterr()
    assert json.loads(captured.out) == json.loads(path.read_text())["expect"]
    assert captured.err == ""


def test_there_are_cases() -> None:
    assert len(CASES) == 14


def test_without_json_it_prints_the_same_as_tables(capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(__file__).parent / "cases" / "yen_rounds_up.json"

    assert run(path) == 0

    out = capsys.readouterr().out
    for text in ("83.3 %", "308642 JPY", "checkpoint_restore", "13 accepted", "b3b3d835860a102a"):
        assert text in out


def test_the_first_difference_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(CASES[0].read_text())
    document["expect"]["years"][0]["counted"] = 8
    path = tmp_path / "case.json"
    path.write_text(json.dumps(document))

    assert run(path, "--json") == 1

    assert capsys.readouterr().err.strip() == (
        f"{path}: expect differs: years[0].counted: expected 8, got 9"
    )


@pytest.mark.parametrize(
    ("expected", "got", "line"),
    [
        ({"a": [1]}, {"a": [1]}, None),
        ({"a": 1}, {}, "a: expected 1, got nothing"),
        ({}, {"a": 1}, "a: expected nothing, got 1"),
        ({"a": [1, 2]}, {"a": [1]}, "a: expected 2 entries, got 1"),
        ({"a": 1}, {"a": True}, "a: expected 1, got true"),
        ({"a": [{"b": None}]}, {"a": [{"b": 0}]}, "a[0].b: expected null, got 0"),
    ],
)
def test_differences(expected: object, got: object, line: str | None) -> None:
    assert first_difference(expected, got) == line


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"{", "line 1, column 2: Expecting property name enclosed in double quotes"),
        (b"\xff", "byte 0: not UTF-8"),
        (b"NaN", "the file is not JSON: NaN is not a number of JSON"),
        (b"[]", "the file: an object is required"),
        (b'{"case": 5}', "case: an object is required"),
        (b'{"case": {"contract": {}}}', "case.contract.number: a text is required"),
    ],
)
def test_bad_files_exit_2(
    content: bytes, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "case.json"
    path.write_bytes(content)

    assert run(path, "--json") == 2

    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines()[0] == f"{path}: {line}"


def test_no_file_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path / "none.json") == 2
    assert capsys.readouterr().err.endswith("the file cannot be read: No such file or directory\n")


def problems(document: dict[str, Any]) -> list[str]:
    with pytest.raises(BadCase) as raised:
        read_case(document, TABLES)
    return raised.value.problems


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"number": None}, "contract.number: a text is required"),
        ({"number": 5}, "contract.number: 5 is no text"),
        ({"currency": "XYZ"}, "contract.currency: 'XYZ' is not a currency of ISO 4217"),
        ({"timezone": "Mars"}, "contract.timezone: 'Mars' is not a zone of the IANA database"),
        ({"starts": "1 March"}, "contract.starts: '1 March' is not a date such as 2025-03-01"),
        (
            {"starts": "2025-02-30"},
            "contract.starts: '2025-02-30' is not a date such as 2025-03-01",
        ),
        ({"ends": "2025-03-01"}, "contract.ends: a contract ends after it starts"),
        ({"terms": []}, "contract.terms: an object is required"),
    ],
)
def test_a_bad_contract_is_bad_input(changes: dict[str, Any], line: str) -> None:
    document = History().document
    document["contract"].update(changes)

    assert line in problems(document)


@pytest.mark.parametrize(
    ("terms", "line"),
    [
        ({"target": "9/0"}, "contract.terms.target: '9/0' is not a fraction such as \"9/10\""),
        ({"target": 0.9}, 'contract.terms.target: 0.9 is not a fraction such as "9/10"'),
        ({"target": "11/10"}, "contract.terms.target: '11/10' is more than the whole"),
        (
            {"credit_rate": "25%"},
            "contract.terms.credit_rate: '25%' is not a fraction such as \"1/4\"",
        ),
        (
            {"credit_base": "gift"},
            "contract.terms.credit_base: 'gift' is not one of year_fee, next_order, fixed",
        ),
        (
            {"year_fee": None},
            "contract.terms.year_fee: the base of the credit is required; it is never zero",
        ),
        (
            {"credit_base": "fixed"},
            "contract.terms.credit_base_amount: the base of the credit is required",
        ),
        ({"year_fee": ["1"]}, "contract.terms.year_fee: gives 1 fees for a contract of 2 years"),
        (
            {"year_fee": ["1", "x"]},
            "contract.terms.year_fee[1]: 'x' is not an amount such as \"1200000.00\"",
        ),
        (
            {"year_fee": 12.5},
            'contract.terms.year_fee: 12.5 is not an amount as text, such as "1200000.00"',
        ),
        (
            {"year_fee": "1.001"},
            "contract.terms.year_fee: '1.001' has more than the 2 decimals of its currency",
        ),
        (
            {"year_fee": "-1"},
            "contract.terms.year_fee: '-1' is not an amount such as \"1200000.00\"",
        ),
        (
            {"min_incidents": -1},
            "contract.terms.min_incidents: -1 is not a whole number of 0 or more",
        ),
        ({"clawback": "no"}, "contract.terms.clawback: 'no' is neither true nor false"),
        ({"aggregation": "per_run"}, "contract.terms.aggregation: 'per_run' is not one of pooled"),
        (
            {"recovery_deadline_hours": "24"},
            "contract.terms.recovery_deadline_hours: '24' is not a number of 0 or more",
        ),
    ],
)
def test_r30_bad_terms_are_bad_input(terms: dict[str, Any], line: str) -> None:
    assert problems(History(**terms).document) == [line]


def test_an_unknown_term_is_bad_input() -> None:
    (line,) = problems(History(targt="9/10").document)

    assert line.startswith("contract.terms.targt: there is no such term; the terms are target,")


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"approved_by": "ann"}, "approved_by: 'ann' asked for it too: two people are required"),
        ({"approved_by": None}, "approved_by: a text is required"),
        ({"evidence": ""}, "evidence: evidence is required"),
        (
            {"failure_ids": []},
            "failure_ids: names no incident: failure ids or a first event are required",
        ),
        (
            {"reason": "maintenance"},
            "reason: 'maintenance' is not one of customer_cause, force_majeure",
        ),
        (
            {"recorded_at": "soon"},
            "recorded_at: 'soon' is not an RFC 3339 time such as 2026-05-01T00:00:00Z",
        ),
    ],
)
def test_r17_a_bad_exclusion_is_bad_input(changes: dict[str, Any], line: str) -> None:
    history = History()
    history.exclude("customer_cause", "2025-07-01T00:00:00Z", failure_ids=["f1"])
    history.document["exclusions"][0].update(changes)

    assert problems(history.document) == [f"exclusions[0].{line}"]


def test_r17_a_bad_registration_is_bad_input() -> None:
    history = History()
    when = "2025-07-01T00:00:00Z"
    history.register("maintenance", when, when, when, approved_by=" ann ")

    assert problems(history.document) == [
        "registered[0].ends: the window ends before it starts",
        "registered[0].nodes: the window names neither a node nor a run",
        "registered[0].approved_by: ' ann ' asked for it too: two people are required",
    ]


def test_r26_a_bad_waiver_is_bad_input() -> None:
    history = History()
    when = "2025-07-01T00:00:00Z"
    history.waive("/s", when, **{"from": 0, "to": 3})
    history.waive("/s", when, **{"from": 4, "to": "3"})
    history.waive("/s", when, tail=True, to=3)

    assert problems(history.document) == [
        "waived_gaps[0].from: 0 is not a sequence number of 1 or more",
        "waived_gaps[1].to: 3 comes before 4",
        "waived_gaps[2].to: stands beside a tail: a waiver has the one or the other",
    ]


def test_every_problem_is_named_at_once() -> None:
    document = History(target="x").document
    document["as_of"] = "now"
    document["events"] = {}

    assert len(problems(document)) == 3


def test_r15_a_bad_event_is_no_bad_input() -> None:
    history = History()
    history.document["events"] = [{"specversion": "1.0", "time": 5}, [], 1e999]

    assert history.replay()["events"]["invalid"] == 3
