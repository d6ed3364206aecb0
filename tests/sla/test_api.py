"""A billing token reads contracts, years, incidents and grants; a stranger's sees none of them."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import pytest
import time_machine
from django.db import connection
from django.test.utils import CaptureQueriesContext

from fleet.models import Tenant
from sla.models import Contract
from tests.fleet.conftest import Api, make_token
from tests.sla.build import History, at
from tests.sla.conftest import Desk

pytestmark = pytest.mark.django_db
NOW = "2026-04-15T00:00:00Z"


@pytest.fixture
def settled(desk: Desk, contract: Contract) -> Contract:
    """Year 1: three of four counted were lossless, one was excluded; so it is missed."""
    history = History()
    history.event("run.started", at("05-01"), {"contract": "C-1", "supported": True})
    for epoch in range(1, 5):
        history.incident(f"06-0{epoch}", epoch, lost=9 if epoch == 2 else 0)
    history.event("run.support_changed", at("06-10"), {"supported": False})
    history.incident("06-11", 5)
    desk.receive(history.events)
    desk.sweep(NOW)
    return contract


@pytest.fixture
def billing(acme: Tenant) -> Api:
    return Api(make_token(acme, "billing:read"))


def get(api: Api, path: str, **query: Any) -> Any:
    with time_machine.travel(NOW, tick=False):
        response = api.get(f"/api/v1/{path}", **query)
    assert response.status_code == 200, response.content
    return response.json()


def test_a_contract_and_its_terms(settled: Contract, billing: Api) -> None:
    (listed,) = get(billing, "contracts")["results"]

    assert listed == get(billing, f"contracts/{listed['id']}")
    assert listed["id"].startswith("ctr_")
    assert (listed["number"], listed["customer_name"]) == ("C-1", "acme")
    assert listed["terms"] == {"year_fee": "1200.00"}
    (version,) = get(billing, f"contracts/{listed['id']}/versions")["results"]
    assert (version["number"], version["recorded_by"]) == (1, "ann")
    customer = get(billing, f"customers/{listed['customer']}")
    assert get(billing, "customers")["results"] == [customer]


def test_years_as_they_stand(settled: Contract, billing: Api) -> None:
    first, second = get(billing, f"contracts/{settled.public_id}/years")["results"]

    assert first == get(billing, f"years/{first['id']}")
    del first["assessment"]
    assert first == {
        "id": first["id"],
        "contract": settled.public_id,
        "index": 1,
        "state": "closed",
        "start": "2025-03-01T00:00:00Z",
        "end": "2026-03-01T00:00:00Z",
        "revision": 1,
        "counted": 4,
        "zero_loss": 3,
        "rollback": 1,
        "excluded": 1,
        "pending": 0,
        "ratio": "3/4",
        "percent": "75.0",
        "outcome": "missed",
        "credit": {"amount": "300.00", "minor_units": 30000, "currency": "USD"},
        "notes": [],
    }
    assert (second["state"], second["revision"], second["ratio"]) == ("open", 0, None)
    assert (second["outcome"], second["credit"], second["assessment"]) == (None, None, None)


def test_a_year_that_has_not_started_is_not_there(desk: Desk, billing: Api) -> None:
    document = History().document["contract"] | {"ends": "2029-03-01"}
    contract = desk.open(document)
    assert len(get(billing, f"contracts/{contract.public_id}/years")["results"]) == 2


def test_incidents_with_their_evidence(settled: Contract, billing: Api) -> None:
    incidents = get(billing, "incidents")["results"]

    assert [i["first_event"] for i in incidents] == ["e0011", "e0008", "e0006", "e0004", "e0002"]
    (lossy,) = get(billing, "incidents", verdict="rollback")["results"]
    detail = get(billing, f"incidents/{lossy['id']}")
    assert detail["reasons"] == ["rolled_back", "recomputed"]
    assert (detail["lost_steps"], detail["failure_ids"], detail["nodes"]) == (9, ["f0004"], ["n1"])
    assert [(e["id"], e["type"], e["time"]) for e in detail["evidence"]] == [
        ("e0004", "failure.detected", "2025-06-02T12:00:00Z"),
        ("e0005", "recovery.completed", "2025-06-02T12:00:05Z"),
    ]
    assert [j["verdict"] for j in detail["judgements"]] == ["rollback"]
    assert {name: detail[name] for name in lossy} == lossy


def test_incidents_are_filtered(settled: Contract, billing: Api) -> None:
    def found(**query: Any) -> int:
        return len(get(billing, "incidents", **query)["results"])

    year = get(billing, f"contracts/{settled.public_id}/years")["results"][0]["id"]
    assert found(contract=settled.public_id, year=year, run="r1") == 5
    assert found(run="r2") == found(contract="ctr_none") == 0
    assert found(is_excluded="true") == 1
    assert found(occurred_from="2025-06-02T12:00:00Z", occurred_before="2025-06-04T00:00:00Z") == 2


def test_lists_come_in_pages(settled: Contract, billing: Api) -> None:
    first = get(billing, "incidents", limit=3)
    path = first["next"].split("/api/v1/")[1]
    path, _, query = path.partition("?")
    pairs = dict(pair.split("=") for pair in query.split("&"))
    second = get(billing, path, **{name: unquote(value) for name, value in pairs.items()})

    assert [len(first["results"]), len(second["results"]), second["next"]] == [3, 2, None]


def test_assessments_and_grants(settled: Contract, billing: Api) -> None:
    (assessment,) = get(billing, "assessments", contract=settled.public_id)["results"]
    (grant,) = get(billing, "grants", state="available")["results"]

    assert assessment == get(billing, f"assessments/{assessment['id']}")
    assert (assessment["revision"], assessment["supersedes"]) == (1, None)
    assert (assessment["as_of"], assessment["outcome"]) == ("2026-03-31T00:00:00Z", "missed")
    assert len(assessment["inputs_digest"]) == 64
    assert grant == get(billing, f"grants/{grant['id']}")
    assert grant["assessment"] == assessment["id"]
    assert (grant["state"], grant["credit"]["minor_units"]) == ("available", 30000)
    assert get(billing, "grants", state="voided")["results"] == []


def test_a_share_of_the_next_order_has_no_amount_yet(desk: Desk, billing: Api) -> None:
    history = History(credit_base="next_order")
    desk.open(history.document["contract"])
    history.incident("06-01", 1, lost=5)
    desk.receive(history.events)
    desk.sweep(NOW)

    (grant,) = get(billing, "grants")["results"]
    assert grant["credit"] == {"rate": "1/4", "of": "next_order"}


PATHS = ("customers", "contracts", "incidents", "assessments", "grants")


def test_a_stranger_sees_nothing(settled: Contract, billing: Api, stranger: Tenant) -> None:
    theirs = Api(make_token(stranger, "billing:read"))
    for path in PATHS:
        mine = get(billing, path)["results"]
        assert mine
        assert get(theirs, path)["results"] == []
        response = theirs.get(f"/api/v1/{path}/{mine[0]['id']}")
        assert response.status_code == 404
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json()["code"] == "not-found"
    for path in ("years", "versions"):
        assert theirs.get(f"/api/v1/contracts/{settled.public_id}/{path}").status_code == 404


def test_the_vendors_own_token_sees_every_tenants(settled: Contract) -> None:
    assert len(get(Api(make_token(None, "billing:read")), "contracts")["results"]) == 1


def test_a_token_needs_the_scope(settled: Contract, acme: Tenant) -> None:
    other = Api(make_token(acme, "fleet:read"))
    for path in PATHS:
        assert other.get(f"/api/v1/{path}").status_code == 403
        assert Api(None).get(f"/api/v1/{path}").status_code == 401
        assert other.post(f"/api/v1/{path}", {}).status_code in (403, 405)


@pytest.mark.parametrize(
    ("query", "pointer"),
    [({"verdict": "fine"}, "/verdict"), ({"occurred_from": "noon"}, "/occurred_from")],
)
def test_a_bad_filter_is_a_problem(billing: Api, query: dict[str, str], pointer: str) -> None:
    response = billing.get("/api/v1/incidents", **query)

    assert response.status_code == 400
    assert response.json()["errors"][0]["pointer"] == pointer


def test_a_list_takes_a_fixed_number_of_queries(settled: Contract, billing: Api) -> None:
    """Two for the token and its scope, two for the transaction, the rest for the rows."""
    counts = {}
    for path in (*PATHS, f"contracts/{settled.public_id}/years"):
        with CaptureQueriesContext(
            connection,
        ) as captured:
            get(billing, path)
        counts[path] = len(captured)

    assert max(counts.values()) <= 14, counts
