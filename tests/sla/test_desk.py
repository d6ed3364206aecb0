"""The account manager finds a contract, its year, and each incident with verdict and evidence."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from fleet.models import Tenant, User
from fleet.tenancy import every_tenant, tenant_scope
from sla.models import Contract, Customer
from tests.sla.build import History
from tests.sla.conftest import Desk

pytestmark = pytest.mark.django_db


@pytest.fixture
def manager(acme: Tenant) -> Client:
    """Of the vendor: sees every tenant."""
    user = User.objects.create_superuser("ann", password="x")
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def settled(desk: Desk, contract: Contract) -> Contract:
    history = History()
    history.incident("06-01", 1, lost=9)
    history.incident("06-02", 2)
    desk.receive(history.events)
    desk.sweep("2026-04-15T00:00:00Z")
    return contract


def page(client: Client, path: str) -> str:
    response = client.get(f"/admin/{path}")
    assert response.status_code == 200
    return response.content.decode()


def test_from_the_contract_to_the_evidence(manager: Client, settled: Contract) -> None:
    listed = page(manager, "sla/contract/?q=C-1")
    assert f"/admin/sla/contract/{settled.pk}/change/" in listed

    shown = page(manager, f"sla/contract/{settled.pk}/change/")
    with every_tenant():
        year = settled.years.get(index=1)
        incident = settled.incidents.get(first_event="e0001")
    assert "1 / 2 = 50.0 %" in shown
    assert "300.00 USD" in shown
    assert f"/admin/sla/contractyear/{year.pk}/change/" in shown

    shown = page(manager, f"sla/contractyear/{year.pk}/change/")
    assert "closed, revision 1" in shown
    assert "rolled_back, recomputed" in shown
    assert f"/admin/sla/incident/{incident.pk}/change/" in shown

    shown = page(manager, f"sla/incident/{incident.pk}/change/")
    for text in ("Rollback", "rolled_back, recomputed", "failure.detected", "recovery.completed"):
        assert text in shown
    assert shown.count("/admin/fleet/event/") >= 2


@pytest.mark.parametrize(
    ("verdict", "found", "missing"),
    [("rollback", "e0001", "e0003"), ("zero_loss", "e0003", "e0001"), ("excluded", "", "e0001")],
)
def test_incidents_by_verdict(
    manager: Client, settled: Contract, verdict: str, found: str, missing: str
) -> None:
    listed = page(manager, f"sla/incident/?verdict={verdict}")

    assert found in listed
    assert missing not in listed


@pytest.mark.parametrize(
    "model",
    [
        *("customer", "contract", "contractyear", "incident", "assessment", "grant"),
        *("exclusion", "registration", "waiver"),
    ],
)
def test_every_list_opens_with_a_fixed_number_of_queries(
    manager: Client, settled: Contract, model: str
) -> None:
    page(manager, f"sla/{model}/")  # content types are cached by now
    with CaptureQueriesContext(connection) as captured:
        page(manager, f"sla/{model}/")

    assert len(captured) <= 24


def test_a_contract_is_opened_at_the_desk(manager: Client, acme: Tenant) -> None:
    with tenant_scope(acme.pk):
        customer = Customer.objects.create(tenant=acme, name="Acme Labs")
    form = {
        "customer": customer.pk,
        "number": "C-7",
        "currency": "JPY",
        "timezone": "Asia/Tokyo",
        "starts_on": "2026-01-01",
        "ends_on": "2028-01-01",
        "signed_on": "2025-12-01",
        "clusters": "k1, k2",
        "terms": '{"year_fee": "1000.5"}',
    }

    refused = manager.post("/admin/sla/contract/add/", form)
    assert "has more than the 0 decimals" in refused.content.decode()
    response = manager.post("/admin/sla/contract/add/", form | {"terms": '{"year_fee": "1000"}'})

    assert response.status_code == 302
    with tenant_scope(acme.pk):
        contract = Contract.objects.get()
        assert (contract.number, contract.clusters) == ("C-7", ["k1", "k2"])
        assert contract.years.count() == 2
        assert contract.versions.get().recorded_by == "ann"


def test_what_was_judged_is_not_edited_here(manager: Client, settled: Contract) -> None:
    for model in ("incident", "assessment", "grant", "contractyear"):
        assert manager.get(f"/admin/sla/{model}/add/").status_code == 403
    assert manager.post(f"/admin/sla/contract/{settled.pk}/delete/").status_code == 403


def test_a_tenants_own_staff_sees_its_own(settled: Contract, stranger: Tenant) -> None:
    user = User.objects.create_superuser("eve", password="x", tenant=stranger)
    client = Client()
    client.force_login(user)

    assert "C-1" not in page(client, "sla/contract/")
    assert client.get(f"/admin/sla/contract/{settled.pk}/change/").status_code == 302
