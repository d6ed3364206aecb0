"""Reads of what exists, each with what its list shows, so that no row costs a query of its own.

Whose rows they are is the database's business: they see what the transaction's tenant may.
"""

from __future__ import annotations

from django.db.models import Count, Q, QuerySet

from fleet.models import Event, Gpu, HealthFinding, Lease, Node, Order, Run
from fleet.models.choices import FindingState


def nodes() -> QuerySet[Node]:
    is_open = ~Q(findings__state=FindingState.CLEARED)
    return (
        Node.objects.select_related("cluster")
        .annotate(
            gpu_count=Count("gpus", distinct=True),
            open_findings=Count("findings", filter=is_open, distinct=True),
        )
        .order_by("id")
    )


def gpus() -> QuerySet[Gpu]:
    return Gpu.objects.select_related("node")


def findings() -> QuerySet[HealthFinding]:
    return HealthFinding.objects.select_related("node", "gpu")


def runs() -> QuerySet[Run]:
    return Run.objects.select_related("cluster", "coordinator_node")


def leases() -> QuerySet[Lease]:
    return Lease.objects.select_related("node", "run")


def orders() -> QuerySet[Order]:
    return Order.objects.select_related("node", "run")


def events() -> QuerySet[Event]:
    """Without their bodies, which lists do not show."""
    return Event.objects.defer("body")
