"""The fleet's tables; everything but people carries its tenant."""

from __future__ import annotations

from fleet.models.events import Event, EventAside, HealthFinding
from fleet.models.nodes import Gpu, Node, NodeChange
from fleet.models.runs import Lease, Order, Run
from fleet.models.tenants import Cluster, Tenant, User
from fleet.models.tokens import Token

__all__ = [
    "Cluster",
    "Event",
    "EventAside",
    "Gpu",
    "HealthFinding",
    "Lease",
    "Node",
    "NodeChange",
    "Order",
    "Run",
    "Tenant",
    "Token",
    "User",
]
