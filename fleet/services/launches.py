"""Registers a run and tells its nodes to start; also single orders to a node."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction

from fleet.errors import RunConflictError, UnknownPlaceError
from fleet.models import Cluster, Node, Order, Run
from fleet.models.choices import OrderKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What one node is told: `payload` goes into its order as it is."""

    node: str
    payload: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    run: str
    cluster: str
    contract: str
    spec: str
    world_size: int
    spares: int
    priority: int
    coordinator_node: str
    placement: tuple[Placement, ...]
    deadline: timedelta


def launch_run(*, tenant_id: int, launch: Launch, now: datetime) -> tuple[Run, bool]:
    """The run, and whether it is new. The same launch again changes nothing.

    Raises RunConflictError, UnknownPlaceError. Call inside the tenant's scope.
    """
    cluster = Cluster.objects.filter(tenant_id=tenant_id, name=launch.cluster).first()
    if cluster is None:
        raise UnknownPlaceError(f"there is no cluster {launch.cluster}")
    names = {entry.node for entry in launch.placement} | {launch.coordinator_node}
    nodes = {node.name: node for node in Node.objects.filter(cluster=cluster, name__in=names)}
    missing = sorted(names - set(nodes))
    if missing:
        raise UnknownPlaceError(f"{cluster.name} has no node {', '.join(missing)}")
    cordoned = sorted(name for name, node in nodes.items() if node.is_cordoned)
    if cordoned:
        raise UnknownPlaceError(f"cordoned: {', '.join(cordoned)}")
    with transaction.atomic():
        return _register(tenant_id, cluster, nodes, launch, now)


def _register(
    tenant_id: int, cluster: Cluster, nodes: dict[str, Node], launch: Launch, now: datetime
) -> tuple[Run, bool]:
    wanted = _as_json(launch)
    drafts = [
        Run(
            tenant_id=tenant_id,
            cluster=cluster,
            run=launch.run,
            contract_number=launch.contract,
            world_size=launch.world_size,
            spares=launch.spares,
            priority=launch.priority,
            spec_digest=launch.spec,
            coordinator_node=nodes[launch.coordinator_node],
            launch=wanted,
        )
    ]
    Run.objects.bulk_create(drafts, ignore_conflicts=True)
    run = Run.objects.select_for_update().get(tenant_id=tenant_id, run=launch.run)
    if run.launch != wanted:
        raise RunConflictError(f"{launch.run} is there already, with another launch")
    if run.orders.exists():
        return run, False
    ticket = secrets.token_urlsafe(24)
    common = {"run": launch.run, "spec": launch.spec, "epoch": 0, "ticket": ticket}
    for entry in launch.placement:
        _order(
            node=nodes[entry.node],
            run=run,
            kind=OrderKind.START_WORKER,
            payload={**common, **entry.payload},
            deadline_at=now + launch.deadline,
        )
    return run, True


def give_order(
    *, node: Node, kind: OrderKind, payload: dict[str, Any], deadline_at: datetime, run: Run | None
) -> Order:
    """The node hears of it in the answer to its next heartbeat."""
    return _order(node=node, run=run, kind=kind, payload=payload, deadline_at=deadline_at)


def _order(
    *, node: Node, run: Run | None, kind: OrderKind, payload: dict[str, Any], deadline_at: datetime
) -> Order:
    return Order.objects.create(
        tenant_id=node.tenant_id,
        node=node,
        run=run,
        kind=kind,
        payload=payload,
        deadline_at=deadline_at,
    )


def _as_json(launch: Launch) -> dict[str, Any]:
    """What makes two launches the same; secrets that the caller chose are not kept."""
    secret = ("ticket", "events_token")
    return {
        "cluster": launch.cluster,
        "contract": launch.contract,
        "spec": launch.spec,
        "world_size": launch.world_size,
        "spares": launch.spares,
        "priority": launch.priority,
        "coordinator_node": launch.coordinator_node,
        "placement": [
            {
                "node": entry.node,
                "payload": {k: v for k, v in entry.payload.items() if k not in secret},
            }
            for entry in launch.placement
        ],
    }
