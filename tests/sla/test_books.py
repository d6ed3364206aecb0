"""Judging and closing on PostgreSQL: the rows say, byte for byte, what a replay of them says."""

from __future__ import annotations

import copy
import json
import random
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.utils import IntegrityError, ProgrammingError

from config.celery import app
from fleet.models import Event, Tenant
from fleet.tenancy import every_tenant, tenant_scope
from runtime.events import parse_time
from sla import tasks
from sla.errors import InvalidContractError, InvalidEntryError
from sla.models import (
    Assessment,
    Contract,
    ContractYear,
    Exclusion,
    Grant,
    GrantVoid,
    Incident,
    JudgedRun,
    Judgement,
)
from sla.selectors.incidents import current_judgements
from sla.services.closing import close_contract, close_due_years
from sla.services.hand import record_exclusion, record_registration, record_waiver
from sla.services.judging import judge_due_runs
from tests.sla.build import AGENT, History, at
from tests.sla.conftest import Desk

pytestmark = pytest.mark.django_db
CASES = sorted((Path(__file__).parent / "cases").glob("*.json"))
CLOSE = "2026-03-31T00:00:00Z"


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_the_public_cases_through_the_database(path: Path, desk: Desk) -> None:
    document = json.loads(path.read_text())
    case, expect = document["case"], document["expect"]
    contract = desk.open(case["contract"])
    desk.receive(case["events"])

    desk.sweep(case["as_of"])

    books = desk.books(contract, case["as_of"])
    assert books == {name: expect[name] for name in ("incidents", "years", "digest")}


def test_r13_in_any_order_and_swept_at_any_moment(desk: Desk, contract: Contract) -> None:
    history = History()
    history.event("run.started", at("05-01"), {"contract": "C-1", "supported": True})
    history.progress(at("05-02"), 1, 90)
    history.incident("06-01", 1)
    history.failure(at("06-01", 9), 2, 100)
    history.movement(at("06-01", 12), 2, 100)
    history.failure(at("06-03"), 3, 300)
    history.incident("06-05", 4, lost=7)
    history.progress(at("06-06"), 5, 380)
    chance = random.Random(7)
    events = history.events + [copy.deepcopy(event) for event in history.events[::2]]
    chance.shuffle(events)

    for place, event in enumerate(events):
        instant = f"2025-07-{place + 1:02d}T00:00:00Z"
        desk.receive([event], instant)
        if chance.random() < 0.6:
            desk.sweep(instant)
            desk.books(contract, instant)
    desk.sweep("2025-08-01T00:00:00Z")

    books = desk.books(contract, "2025-08-01T00:00:00Z")
    assert books["incidents"] == history.incidents("2025-08-01T00:00:00Z")


def test_an_incident_that_becomes_part_of_another_is_withdrawn(
    desk: Desk, contract: Contract
) -> None:
    history = History()
    history.failure(at("06-01", 7), 2, 700)
    history.movement(at("06-01", 9), 2, 700)
    history.failure(at("06-01"), 1, 700)
    history.movement(at("06-01", 5), 1, 700)
    desk.receive(history.events[:2], "2025-06-02T00:00:00Z")
    desk.sweep("2025-06-02T00:00:00Z")
    assert len(desk.books(contract, "2025-06-02T00:00:00Z")["incidents"]) == 1

    desk.receive(history.events[2:], "2025-06-03T00:00:00Z")
    desk.sweep("2025-06-03T00:00:00Z")

    (incident,) = desk.books(contract, "2025-06-03T00:00:00Z")["incidents"]
    assert (incident["first_event"], incident["failures"]) == ("e0003", 2)
    with tenant_scope(contract.tenant_id):
        assert Incident.objects.count() == 2
        fields = ("incident__first_event", "number", "is_withdrawn")
        assert sorted(Judgement.objects.values_list(*fields)) == [
            ("e0001", 1, False),
            ("e0001", 2, True),
            ("e0003", 1, False),
        ]


def test_r5_time_alone_ends_pending(desk: Desk, contract: Contract) -> None:
    history = History()
    history.failure(at("06-01"), 1, 700)
    desk.receive(history.events)

    seen = []
    for instant in (at("06-01", 1), "2025-06-02T11:59:59Z", "2025-06-02T12:00:00Z"):
        desk.sweep(instant)
        seen.append(desk.books(contract, instant)["incidents"][0]["verdict"])

    assert seen == ["pending", "pending", "rollback"]
    with tenant_scope(contract.tenant_id):
        assert Judgement.objects.count() == 2


def test_sweeping_again_appends_nothing(desk: Desk, contract: Contract) -> None:
    history = History()
    history.incident("06-01", 1, lost=5)
    desk.receive(history.events)
    for instant in (CLOSE, CLOSE, "2026-04-01T00:00:00Z"):
        desk.sweep(instant)

    with tenant_scope(contract.tenant_id):
        JudgedRun.objects.update(judged_us=0)
        assert close_contract(contract=contract, horizon_us=parse_time("2026-05-01T00:00:00Z")) == 0
    desk.sweep("2026-05-02T00:00:00Z")

    with tenant_scope(contract.tenant_id):
        assert (Judgement.objects.count(), Assessment.objects.count()) == (1, 1)
        grant = Grant.objects.get()
        assert (grant.minor_units, grant.currency, grant.chain) == (30000, "USD", 1)


def test_r27_missed_to_met_voids_and_back_again_grants_anew(desk: Desk, contract: Contract) -> None:
    history = History()
    history.incident("06-01", 1, lost=5)
    desk.receive(history.events)
    desk.sweep(CLOSE)
    desk.clock("2026-04-01T00:00:00Z")
    with tenant_scope(contract.tenant_id):
        record_exclusion(contract=contract, entry=exclusion(failure_ids=["f0001"]))
    desk.sweep("2026-04-01T00:00:00Z")
    assert desk.books(contract, "2026-04-01T00:00:00Z")["years"][0]["outcome"] == "no_failures"
    history.failure(at("07-01"), 2, 900, source=AGENT)
    desk.receive(history.events[2:], "2026-04-03T00:00:00Z")
    desk.sweep("2026-04-03T00:00:00Z")

    year = desk.books(contract, "2026-04-03T00:00:00Z")["years"][0]
    assert (year["state"], year["revision"], year["outcome"]) == ("restated", 3, "missed")
    with tenant_scope(contract.tenant_id):
        assert list(Grant.objects.order_by("chain").values_list("chain", flat=True)) == [1, 2]
        assert [void.grant.chain for void in GrantVoid.objects.all()] == [1]
        chain = Assessment.objects.order_by("revision")
        assert [a.supersedes_id for a in chain] == [None, chain[0].pk, chain[1].pk]


def exclusion(**changes: Any) -> dict[str, Any]:
    return {
        "reason": "customer_cause",
        "requested_by": "ann",
        "approved_by": "bob",
        "evidence": "ticket 7",
    } | changes


def test_r17_entries_by_hand_take_effect_and_need_two_people(
    desk: Desk, contract: Contract
) -> None:
    history = History()
    history.incident("06-01", 1, lost=5)
    history.failure(at("06-09"), 2, 900, nodes=["n1"])
    desk.clock("2025-05-01T00:00:00Z")
    window = {"starts": at("06-09"), "ends": at("06-10"), "nodes": ["n1"]}
    people = {"requested_by": "ann", "approved_by": "bob"}
    with tenant_scope(contract.tenant_id):
        record_registration(contract=contract, entry={"reason": "maintenance"} | window | people)
        with pytest.raises(InvalidEntryError, match="two people are required"):
            record_exclusion(contract=contract, entry=exclusion(approved_by="ann"))
    desk.receive(history.events)
    desk.sweep("2025-06-20T00:00:00Z")
    desk.clock("2025-06-21T00:00:00Z")
    with tenant_scope(contract.tenant_id):
        record_exclusion(contract=contract, entry=exclusion(first_event="e0001"))
    desk.sweep("2025-06-22T00:00:00Z")

    books = desk.books(contract, "2025-06-22T00:00:00Z")
    assert [i["excluded"] for i in books["incidents"]] == ["customer_cause", "maintenance"]


def test_r26_a_waiver_lets_the_year_close(desk: Desk, contract: Contract) -> None:
    history = History()
    history.progress(at("06-01"), 1, 1)
    history.progress(at("06-02"), 1, 2, sequence="5")
    desk.receive(history.events)
    desk.sweep(CLOSE)
    assert desk.books(contract, CLOSE)["years"][0]["state"] == "blocked"

    desk.clock("2026-04-05T00:00:00Z")
    entry = {"source": history.events[0]["source"], "from": 2, "to": 4}
    with tenant_scope(contract.tenant_id):
        record_waiver(
            contract=contract, entry=entry | {"requested_by": "ann", "approved_by": "bob"}
        )
    assert desk.books(contract, "2026-04-04T00:00:00Z")["years"][0]["notes"] == []
    desk.sweep("2026-04-05T00:00:00Z")

    (year, _) = desk.books(contract, "2026-04-05T00:00:00Z")["years"]
    assert (year["state"], year["notes"]) == ("closed", ["waived_gap"])


def test_r40_runs_go_to_the_contract_they_name_else_to_their_clusters(desk: Desk) -> None:
    document = History().document["contract"]
    everywhere = desk.open(document)
    narrow = desk.open(document | {"number": "C-2"}, name="Other", clusters=["k1"])
    history = History()
    for run, named in (("r1", "C-1"), ("r2", None), ("r3", "C-404")):
        source = f"/clusters/k1/runs/{run}/coordinator"
        history.event("run.started", at("05-01"), {"contract": named}, run=run, source=source)
        history.failure(at("06-01"), 1, 700, run=run, source=source)
        history.movement(at("06-01", 9), 1, 700, run=run, source=source)
    other = {"run": "r4", "source": "/clusters/k9/runs/r4/coordinator"}
    history.failure(at("06-01"), 1, 700, **other)
    history.progress(at("06-01"), 1, 1, run="r1", source=AGENT)
    history.progress(at("06-01"), 1, 1, run="r2", source=AGENT)
    desk.receive(history.events)
    desk.sweep("2025-07-01T00:00:00Z")

    runs = {
        contract.number: [
            incident["run"]
            for incident in desk.books(contract, "2025-07-01T00:00:00Z")["incidents"]
        ]
        for contract in (everywhere, narrow)
    }

    assert runs == {"C-1": ["r1", "r4"], "C-2": ["r2", "r3"]}


def test_r40_a_run_that_turns_out_to_be_anothers_is_withdrawn(desk: Desk) -> None:
    document = History().document["contract"]
    first = desk.open(document, clusters=["k1"])
    second = desk.open(document | {"number": "C-2"}, name="Other", clusters=["k9"])
    history = History()
    history.incident("06-01", 1)
    desk.receive(history.events)
    desk.sweep("2025-07-01T00:00:00Z")
    assert len(desk.books(first, "2025-07-01T00:00:00Z")["incidents"]) == 1
    history.event("run.started", at("05-01"), {"contract": "C-2"})
    desk.receive(history.events[2:], "2025-07-02T00:00:00Z")
    desk.sweep("2025-07-02T00:00:00Z")

    assert desk.books(first, "2025-07-02T00:00:00Z")["incidents"] == []
    assert len(desk.books(second, "2025-07-02T00:00:00Z")["incidents"]) == 1


def test_r40_a_contract_opened_late_finds_the_runs_of_before(desk: Desk) -> None:
    history = History()
    history.incident("06-01", 1)
    desk.receive(history.events)
    desk.sweep("2025-07-01T00:00:00Z")
    contract = desk.open(history.document["contract"])

    desk.sweep("2025-07-02T00:00:00Z")

    assert len(desk.books(contract, "2025-07-02T00:00:00Z")["incidents"]) == 1


def test_one_run_that_cannot_be_judged_stops_no_other(
    desk: Desk, contract: Contract, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sla.services import judging

    history = History()
    for run in ("bad", "good"):
        source = f"/clusters/k1/runs/{run}/coordinator"
        history.failure(at("06-01"), 1, 700, run=run, source=source)
    desk.receive(history.events)
    desk.clock("2025-06-01T13:00:00Z")
    real = judging.run_evidence

    def fail_on_bad(run: str, horizon_us: int) -> Any:
        if run == "bad":
            raise RuntimeError("unreadable")
        return real(run, horizon_us)

    with monkeypatch.context() as patch:
        patch.setattr(judging, "run_evidence", fail_on_bad)
        sweep = judge_due_runs()

    assert (sweep.judged, sweep.failed) == (1, 1)
    with tenant_scope(contract.tenant_id):
        assert JudgedRun.objects.get(run="bad").error == "RuntimeError: unreadable"
    assert judge_due_runs().judged == 0  # a minute has not passed
    desk.sweep("2025-06-01T13:01:00Z")
    assert len(desk.books(contract, "2025-06-01T13:01:00Z")["incidents"]) == 2


def test_events_kept_aside_fill_their_numbers(desk: Desk, contract: Contract) -> None:
    history = History()
    history.progress(at("06-01"), 1, 1)
    history.failure(at("06-02"), 1, -1)
    history.progress(at("06-03"), 1, 2)
    assert desk.receive(history.events) == ["accepted", "invalid", "accepted"]
    desk.sweep(CLOSE)

    assert desk.books(contract, CLOSE)["years"][0]["state"] == "closed"


def test_bad_contracts_are_refused_with_their_places(desk: Desk, contract: Contract) -> None:
    document = History().document["contract"]
    with pytest.raises(InvalidContractError) as raised:
        desk.open(document | {"number": "C-9", "terms": {"target": "x"}}, name="Other")
    assert sorted(fault.pointer for fault in raised.value.faults) == [
        "/contract/terms/target",
        "/contract/terms/year_fee",
    ]
    with pytest.raises(InvalidContractError, match="'C-1' is taken"):
        desk.open(document, name="Another")
    with tenant_scope(contract.tenant_id):
        assert Contract.objects.count() == 1
        assert ContractYear.objects.count() == 2


@pytest.mark.parametrize(
    "table", ["contractversion", "contractyear", "incident", "judgement", "assessment", "grant"]
)
def test_what_was_written_stays(desk: Desk, contract: Contract, table: str) -> None:
    history = History()
    history.incident("06-01", 1, lost=5)
    desk.receive(history.events)
    desk.sweep(CLOSE)

    for statement in (f"UPDATE sla_{table} SET id = id", f"DELETE FROM sla_{table}"):
        with (
            every_tenant(),
            pytest.raises(ProgrammingError, match="permission denied"),
            transaction.atomic(),
            connection.cursor() as cursor,
        ):
            cursor.execute(statement)


def test_the_database_itself_asks_for_two_people(contract: Contract) -> None:
    with (
        tenant_scope(contract.tenant_id),
        pytest.raises(IntegrityError, match="two_people"),
        transaction.atomic(),
    ):
        Exclusion.objects.create(
            tenant_id=contract.tenant_id,
            contract=contract,
            reason="customer_cause",
            failure_ids=["f1"],
            evidence="x",
            requested_by="ann",
            approved_by="ann",
            recorded_at="2025-07-01T00:00:00Z",
        )


def test_years_never_overlap(contract: Contract) -> None:
    with tenant_scope(contract.tenant_id):
        year = contract.years.get(index=2)
        with pytest.raises(IntegrityError, match="never_overlap"), transaction.atomic():
            ContractYear.objects.create(
                tenant_id=contract.tenant_id,
                contract=contract,
                index=3,
                starts_at=year.starts_at,
                ends_at=year.ends_at,
            )


def test_a_stranger_sees_nothing(desk: Desk, contract: Contract, stranger: Tenant) -> None:
    history = History()
    history.incident("06-01", 1, lost=5)
    desk.receive(history.events)
    desk.sweep(CLOSE)

    with tenant_scope(stranger.pk):
        assert not Contract.objects.exists()
        assert not current_judgements().exists()
        assert not Grant.objects.exists()
        assert not Event.objects.exists()


def test_nothing_is_due_without_news(desk: Desk, contract: Contract) -> None:
    history = History()
    history.incident("06-01", 1)
    desk.receive(history.events)
    desk.sweep(CLOSE)
    desk.clock("2026-04-01T00:00:00Z")

    assert (judge_due_runs().judged, close_due_years().looked_at) == (0, 0)


def test_what_comes_in_rings_the_judge_after_its_commit(
    desk: Desk,
    contract: Contract,
    monkeypatch: pytest.MonkeyPatch,
    django_capture_on_commit_callbacks: Any,
) -> None:
    rung: list[dict[str, Any]] = []
    monkeypatch.setattr(tasks.judge_due_runs, "apply_async", lambda **how: rung.append(how))
    history = History()
    history.incident("06-01", 1)

    with django_capture_on_commit_callbacks(execute=True):
        desk.receive(history.events)
        assert rung == []

    assert rung == [{"retry": False, "expires": 30}] * 2


def test_the_tasks_are_the_sweepers(desk: Desk, contract: Contract) -> None:
    history = History()
    history.incident("06-01", 1, lost=5)
    desk.receive(history.events)
    desk.clock(CLOSE)

    tasks.judge_due_runs()
    tasks.close_due_years()

    assert desk.books(contract, CLOSE)["years"][0]["outcome"] == "missed"
    assert {"sla.judge_due_runs", "sla.close_due_years"} <= set(app.tasks)
