"""Two tenants that must never meet, their tokens, and a client that speaks as one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from fleet.models import Cluster, Node, Tenant, Token
from fleet.services.tokens import TokenTerms, mint_token
from fleet.tenancy import every_tenant

BATCH = "application/cloudevents-batch+json"


def make_tenant(name: str, cluster: str) -> Tenant:
    with every_tenant():
        tenant = Tenant.objects.create(name=name)
        Cluster.objects.create(tenant=tenant, name=cluster)
    return tenant


@pytest.fixture
def acme(db: None) -> Tenant:
    return make_tenant("Acme", "acme-1")


@pytest.fixture
def stranger(db: None) -> Tenant:
    return make_tenant("Stranger", "strange-1")


def make_token(tenant: Tenant | None, *scopes: str, **terms: Any) -> str:
    with every_tenant():
        return mint_token(
            terms=TokenTerms(label="test", scopes=scopes, tenant=tenant, **terms)
        ).plaintext


def make_node(tenant: Tenant, name: str = "n1", **fields: Any) -> Node:
    with every_tenant():
        cluster = Cluster.objects.get(tenant=tenant)
        return Node.objects.create(tenant=tenant, cluster=cluster, name=name, **fields)


def token_row(plaintext: str) -> Token:
    with every_tenant():
        return Token.objects.get(key=plaintext[4:16])


class Api:
    """A client with a bearer token; bodies are JSON unless they are bytes."""

    def __init__(self, token: str | None) -> None:
        self.headers = {"Authorization": f"Bearer {token}"} if token else {}
        self.client = Client()

    def get(self, path: str, **query: Any) -> Any:
        return self.client.get(path, query, headers=self.headers)

    def post(
        self, path: str, body: Any = None, content_type: str = "application/json", **headers: str
    ) -> Any:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(
            path, content, content_type=content_type, headers={**self.headers, **headers}
        )

    def deliver(self, events: list[Any]) -> list[str]:
        """Statuses, after an answer of 200."""
        response = self.post("/api/v1/events", events, BATCH)
        assert response.status_code == 200, response.content
        return [result["status"] for result in response.json()["results"]]


@pytest.fixture
def agent(acme: Tenant) -> Api:
    """May send whatever comes from acme-1."""
    return Api(make_token(acme, "events:write", sources=("/clusters/acme-1/*",)))


MakeEvent = Callable[..., dict[str, Any]]


@pytest.fixture
def event() -> MakeEvent:
    """A readable event; `data` and fields of the envelope may be given."""

    def make(event_id: str = "e1", /, **fields: Any) -> dict[str, Any]:
        return {
            "specversion": "1.0",
            "id": event_id,
            "source": "/clusters/acme-1/runs/r1/coordinator",
            "type": "run.progress",
            "time": "2026-05-01T00:00:00.000001Z",
            "subject": "r1",
            "sequence": "1",
            "data": {"run": "r1", "epoch": 1, "committed_step": 7},
            **fields,
        }

    return make
