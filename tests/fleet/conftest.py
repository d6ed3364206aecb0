"""Two tenants that must never meet, for every test of the fleet."""

from __future__ import annotations

import pytest

from fleet.models import Cluster, Tenant
from fleet.tenancy import every_tenant


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
