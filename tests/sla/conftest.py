"""A tenant with a contract in the database, and a clock for receipt and horizon."""

from __future__ import annotations

import datetime as dt
import json
from typing import Any

import pytest

from fleet.domain.envelopes import read_event
from fleet.models import Tenant
from fleet.services.ingest import ingest_events
from fleet.tenancy import tenant_scope
from runtime.events import canonical_json, parse_time
from sla.domain.case import read_case
from sla.domain.replay import replay
from sla.instants import from_us
from sla.models import Contract
from sla.selectors.document import books_document
from sla.selectors.evidence import case_document
from sla.services.closing import close_due_years
from sla.services.contracts import NewContract, create_customer, open_contract
from sla.services.judging import judge_due_runs
from sla.tables import TABLES
from tests.fleet.conftest import make_tenant
from tests.sla.build import History


class Desk:
    """The service at work on one contract, at instants that the test chooses."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tenant: Tenant) -> None:
        self.monkeypatch = monkeypatch
        self.tenant = tenant

    def open(self, document: dict[str, Any], **more: Any) -> Contract:
        """From the `contract` of a case file."""
        with tenant_scope(self.tenant.pk):
            return open_contract(
                customer=create_customer(
                    tenant_id=self.tenant.pk, name=more.pop("name", document["customer"])
                ),
                new=NewContract(
                    number=document["number"],
                    currency=document["currency"],
                    timezone=document["timezone"],
                    starts_on=dt.date.fromisoformat(document["starts"]),
                    ends_on=dt.date.fromisoformat(document["ends"]),
                    terms=document["terms"],
                    **more,
                ),
                recorded_by="ann",
                now=from_us(parse_time("2025-01-01T00:00:00Z")),
            )

    def clock(self, instant: str) -> None:
        """What receipt and horizon read from now on."""
        instant_us = parse_time(instant)
        for place in ("fleet.services.ingest", "sla.services.hand"):
            self.monkeypatch.setattr(f"{place}.receipt_instant", lambda: instant_us)
        for place in ("sla.services.judging", "sla.services.closing"):
            self.monkeypatch.setattr(f"{place}.fix_horizon", lambda: instant_us)

    def receive(self, events: list[dict[str, Any]], at: str | None = None) -> list[str]:
        """Each at its `recordedtime`, else its `time`, unless `at` says when."""
        statuses = []
        for event in events:
            self.clock(at or event.get("recordedtime", event.get("time")))
            body = {name: value for name, value in event.items() if name != "recordedtime"}
            reading = read_event(json.dumps(body).encode(), body)
            with tenant_scope(self.tenant.pk):
                (result,) = ingest_events(tenant_id=self.tenant.pk, readings=[reading])
            statuses.append(result.status)
        return statuses

    def sweep(self, at: str) -> None:
        self.clock(at)
        assert judge_due_runs().failed == 0
        assert close_due_years().failed == 0

    def books(self, contract: Contract, at: str) -> dict[str, Any]:
        """What the database says, after checking it against a replay of its own export."""
        at_us = parse_time(at)
        with tenant_scope(self.tenant.pk):
            books = books_document(contract, at_us)
            export = json.loads(json.dumps(case_document(contract, at_us)))
        again = replay(read_case(export, TABLES))
        del again["events"]
        assert canonical_json(books) == canonical_json(again)
        return books


@pytest.fixture
def acme(db: None) -> Tenant:
    return make_tenant("Acme", "k1")


@pytest.fixture
def stranger(db: None) -> Tenant:
    return make_tenant("Stranger", "k2")


@pytest.fixture
def desk(acme: Tenant, monkeypatch: pytest.MonkeyPatch) -> Desk:
    return Desk(monkeypatch, acme)


@pytest.fixture
def contract(desk: Desk) -> Contract:
    return desk.open(History().document["contract"])
