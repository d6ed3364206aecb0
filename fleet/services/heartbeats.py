"""Records how a node is, hears what became of its orders, and answers with those still due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from django.db import transaction

from fleet.domain.heartbeats import FINAL_STATES, GpuBrief, Heartbeat, OrderReport
from fleet.models import Gpu, HealthFinding, Lease, Node, Order
from fleet.models.choices import FindingState, NodeState, OrderState

USUAL_INTERVAL_SECONDS: Final = 10
WATCHED_INTERVAL_SECONDS: Final = 1
LIVE_STATES: Final = (OrderState.OPEN, OrderState.ACKNOWLEDGED)
# They served once and are of no use to whoever reads old orders.
SECRETS_OF_ORDERS: Final = ("ticket", "events_token")


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    orders: list[Order]
    interval_seconds: int


def record_heartbeat(*, node: Node, heartbeat: Heartbeat, now: datetime) -> HeartbeatAnswer:
    """Call inside the tenant's scope."""
    with transaction.atomic():
        _update_node(node, heartbeat, now)
        _see_gpus(node, heartbeat.gpus, now)
        if heartbeat.orders:
            _hear_orders(node, heartbeat.orders, now)
        orders = _due_orders(node, now)
        return HeartbeatAnswer(orders, _interval_seconds(node, orders))


def _update_node(node: Node, heartbeat: Heartbeat, now: datetime) -> None:
    node.boot_id = heartbeat.boot_id
    node.agent_version = heartbeat.agent_version
    node.driver_version = heartbeat.driver_version
    node.blind = heartbeat.blind
    node.specs = heartbeat.specs
    node.running = heartbeat.runs
    node.source_heads = heartbeat.source_heads
    node.last_heartbeat_at = now
    node.save(
        update_fields=[
            "boot_id",
            "agent_version",
            "driver_version",
            "blind",
            "specs",
            "running",
            "source_heads",
            "last_heartbeat_at",
        ]
    )


def _see_gpus(node: Node, gpus: Sequence[GpuBrief], now: datetime) -> None:
    """A GPU seen here now is here, wherever it was seen before."""
    rows = [
        Gpu(
            tenant_id=node.tenant_id,
            node=node,
            uuid=gpu.uuid,
            serial=gpu.serial,
            slot=gpu.slot,
            pci_bus_id=gpu.pci_bus_id,
            model=gpu.model,
            brief=gpu.brief,
            last_seen_at=now,
        )
        for gpu in sorted(gpus, key=lambda gpu: gpu.uuid)
    ]
    Gpu.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["tenant", "uuid"],
        update_fields=[
            "node",
            "serial",
            "slot",
            "pci_bus_id",
            "model",
            "brief",
            "last_seen_at",
        ],
    )


def _hear_orders(node: Node, reports: Sequence[OrderReport], now: datetime) -> None:
    """Forwards only: an order that has ended stays as it ended, whatever comes late."""
    latest = {report.order_id: report for report in reports}
    orders = Order.objects.filter(node=node, public_id__in=latest, state__in=LIVE_STATES)
    for order in orders.select_for_update():
        report = latest[order.public_id]
        order.acknowledged_at = order.acknowledged_at or now
        order.state, order.detail = OrderState(report.state), report.detail
        if report.state in FINAL_STATES:
            _end(order, now)
        order.save()


def _due_orders(node: Node, now: datetime) -> list[Order]:
    due = []
    live = Order.objects.filter(node=node, state__in=LIVE_STATES).order_by("id")
    for order in live.select_related("run__coordinator_node"):
        if order.state == OrderState.OPEN and order.deadline_at <= now:
            order.state, order.detail = OrderState.EXPIRED, "nobody took it before its deadline"
            _end(order, now)
            order.save()
        elif _is_complete(order):
            due.append(order)
    return due


def _is_complete(order: Order) -> bool:
    """Whether the node can act on it: a worker needs its coordinator's endpoint.

    It is filled in once the coordinator's node has said it, and stands in the order from then on.
    """
    payload = order.payload
    if payload.get("role") != "worker" or payload.get("endpoint") or order.run is None:
        return True
    node = order.run.coordinator_node
    running = node.running if node is not None else []
    endpoint = next(
        (entry.get("endpoint") for entry in running if entry.get("id") == order.run.run), None
    )
    if not endpoint:
        return False
    order.payload = {**payload, "endpoint": endpoint}
    order.save(update_fields=["payload"])
    return True


def _end(order: Order, now: datetime) -> None:
    order.completed_at = now
    order.payload = {k: v for k, v in order.payload.items() if k not in SECRETS_OF_ORDERS}


def _interval_seconds(node: Node, orders: list[Order]) -> int:
    if orders or node.state == NodeState.SPARE:
        return WATCHED_INTERVAL_SECONDS
    findings = HealthFinding.objects.filter(node=node).exclude(state=FindingState.CLEARED)
    leases = Lease.objects.filter(node=node, returned_at=None)
    is_watched = findings.exists() or leases.exists()
    return WATCHED_INTERVAL_SECONDS if is_watched else USUAL_INTERVAL_SECONDS
