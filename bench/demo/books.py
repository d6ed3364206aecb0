"""One customer, one contract, a login and the tokens: made with the service's own services."""

from __future__ import annotations

import datetime as dt
import secrets
from dataclasses import dataclass

from bench.demo.plan import CLUSTER, CONTRACT, NODES
from runtime.events import coordinator_source


@dataclass(frozen=True)
class Access:
    """What the demo itself needs to speak to the service; secrets live in memory only."""

    username: str
    password: str
    operator_token: str
    billing_token: str
    events_token: str
    enrolment_tokens: dict[str, str]


def prepare(run: str) -> Access:
    """Makes what is missing; a second demo finds tenant and contract as the first left them."""
    import django

    django.setup()
    from django.db import connections

    from fleet.tenancy import every_tenant

    try:
        with every_tenant():
            return _prepare(run)
    finally:
        connections.close_all()


def _prepare(run: str) -> Access:
    from django.contrib.auth import get_user_model
    from django.utils import timezone

    from fleet import scopes
    from fleet.models import Cluster, Tenant
    from fleet.services.tokens import TokenTerms, mint_token
    from sla.models import Contract, Customer
    from sla.scopes import BILLING_READ
    from sla.services.contracts import NewContract, create_customer, open_contract

    now = timezone.now()
    tenant, _ = Tenant.objects.get_or_create(name="Acme Training")
    cluster, _ = Cluster.objects.get_or_create(tenant=tenant, name=CLUSTER)
    customer = Customer.objects.filter(tenant=tenant, name="Acme Training").first()
    customer = customer or create_customer(tenant_id=tenant.pk, name="Acme Training")
    if not Contract.objects.filter(tenant=tenant, number=CONTRACT).exists():
        starts = dt.date(now.year, 1, 1)
        new = NewContract(
            number=CONTRACT,
            currency="USD",
            timezone="UTC",
            starts_on=starts,
            ends_on=starts.replace(year=starts.year + 2),
            terms={"year_fee": "1200000.00"},
        )
        open_contract(customer=customer, new=new, recorded_by="demo", now=now)
    password = secrets.token_urlsafe(9)
    user, _ = get_user_model().objects.get_or_create(
        username="demo", defaults={"is_staff": True, "is_superuser": True}
    )
    user.set_password(password)
    user.save()

    def mint(label: str, *granted: str, **more: object) -> str:
        terms = TokenTerms(
            label=label,
            scopes=granted,
            tenant=tenant,
            expires_at=now + dt.timedelta(days=1),
            **more,  # type: ignore[arg-type]
        )
        return mint_token(terms=terms).plaintext

    return Access(
        username="demo",
        password=password,
        operator_token=mint("demo operator", scopes.FLEET_READ, scopes.FLEET_WRITE),
        billing_token=mint("demo billing", BILLING_READ),
        events_token=mint(
            "demo coordinator",
            scopes.EVENTS_WRITE,
            sources=(coordinator_source(CLUSTER, run),),
        ),
        enrolment_tokens={
            node: mint(f"demo {node}", scopes.ENROLL, cluster=cluster, is_single_use=True)
            for node in NODES
        },
    )
