"""The sweepers run many times at once, with the real clock and locks, and write everything once."""

from __future__ import annotations

import datetime as dt
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from fleet.domain.envelopes import read_event
from fleet.models import Tenant
from fleet.services.ingest import ingest_events
from fleet.tenancy import tenant_scope
from sla.models import Assessment, Contract, Grant, Judgement
from sla.services.closing import close_due_years
from sla.services.contracts import NewContract, create_customer, open_contract
from sla.services.judging import judge_due_runs
from tests.fleet.conftest import make_tenant
from tests.sla.build import History, at

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def tenant(transactional_db: None) -> Tenant:
    return make_tenant("Acme", "k1")


@pytest.fixture
def contract(tenant: Tenant) -> Contract:
    with tenant_scope(tenant.pk):
        return open_contract(
            customer=create_customer(tenant_id=tenant.pk, name="Acme"),
            new=NewContract(
                number="C-1",
                currency="USD",
                timezone="UTC",
                starts_on=dt.date(2025, 3, 1),
                ends_on=dt.date(2026, 3, 1),
                terms={"year_fee": "1200.00"},
            ),
            recorded_by="ann",
            now=dt.datetime(2025, 1, 1, tzinfo=dt.UTC),
        )


def ingest(tenant: Tenant, events: list[dict[str, Any]]) -> None:
    readings = [read_event(json.dumps(event).encode(), event) for event in events]
    with tenant_scope(tenant.pk):
        ingest_events(tenant_id=tenant.pk, readings=readings)


def at_once(workers: int, work: Callable[[int], None]) -> None:
    """Each on its own thread and connection; whatever one raises is raised here."""
    errors: list[BaseException] = []

    def run(number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [
        threading.Thread(target=run, args=(number,), name=f"worker {number}")
        for number in range(workers)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    if errors:
        raise errors[0]


def test_eight_sweepers_judge_each_run_once(tenant: Tenant, contract: Contract) -> None:
    """Three deliver while eight judge; what was judged too early is judged again."""
    history = History()
    for run in ("r1", "r2", "r3"):
        source = f"/clusters/k1/runs/{run}/coordinator"
        for epoch in range(1, 6):
            history.failure(at(f"06-0{epoch}"), epoch, epoch * 100, run=run, source=source)
            history.movement(at(f"06-0{epoch}", 9), epoch, epoch * 100, run=run, source=source)

    def work(number: int) -> None:
        if number < 3:
            mine = [event for event in history.events if event["subject"] == f"r{number + 1}"]
            for event in mine:
                ingest(tenant, [event])
        else:
            for _ in range(5):
                assert judge_due_runs().failed == 0

    at_once(11, work)
    judge_due_runs()

    with tenant_scope(tenant.pk):
        last: dict[int, Judgement] = {}
        for judgement in Judgement.objects.order_by("incident_id", "number"):
            last[judgement.incident_id] = judgement
        assert len(last) == 15
        assert {(j.verdict, j.is_withdrawn) for j in last.values()} == {("zero_loss", False)}
        assert judge_due_runs().judged == 0


def test_eight_closers_make_one_revision_and_one_grant(tenant: Tenant, contract: Contract) -> None:
    history = History()
    history.incident("06-01", 1, lost=5)
    ingest(tenant, history.events)

    at_once(8, lambda number: assert_no_failure())

    with tenant_scope(tenant.pk):
        revisions = Assessment.objects.order_by("revision").values_list("revision", "outcome")
        # Received long after the year's end: it closed without a failure, and was restated.
        assert list(revisions) == [(1, "no_failures"), (2, "missed")]
        assert Grant.objects.count() == 1


def assert_no_failure() -> None:
    assert close_due_years().failed == 0
