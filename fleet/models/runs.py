"""Training runs as their events describe them, and the orders and leases that serve them."""

from __future__ import annotations

from typing import ClassVar

from django.db import models

from fleet.models.choices import OrderKind, OrderState, RunState
from fleet.models.ids import lease_id, order_id
from fleet.models.nodes import Node
from fleet.models.tenants import Cluster, Tenant


class Run(models.Model):
    """A projection: everything but `launch` is derived from events and may be derived again.

    Instants of events are whole microseconds since the Unix epoch, by the source's clock.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="runs")
    cluster = models.ForeignKey(Cluster, models.PROTECT, related_name="runs")
    run = models.CharField(max_length=200)
    contract_number = models.CharField(max_length=100, blank=True)
    state = models.CharField(max_length=20, choices=RunState, default=RunState.REGISTERED)
    state_us = models.BigIntegerField(default=0)
    epoch = models.BigIntegerField(default=0)
    committed_step = models.BigIntegerField(default=0)
    progress_us = models.BigIntegerField(default=0)
    final_step = models.BigIntegerField(null=True, blank=True)
    step_seconds = models.FloatField(null=True, blank=True)
    samples_per_second = models.FloatField(null=True, blank=True)
    tokens_per_second = models.FloatField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0)
    movements = models.PositiveIntegerField(default=0)
    world_size = models.PositiveIntegerField(null=True, blank=True)
    spares = models.PositiveIntegerField(null=True, blank=True)
    mesh = models.JSONField(default=dict, blank=True)
    priority = models.IntegerField(default=0)
    framework = models.CharField(max_length=200, blank=True)
    gpu_model = models.CharField(max_length=100, blank=True)
    is_supported = models.BooleanField(null=True, blank=True)
    spec_digest = models.CharField(max_length=128, blank=True)
    coordinator_node = models.ForeignKey(
        Node, models.PROTECT, null=True, blank=True, related_name="coordinated_runs"
    )
    launch = models.JSONField(default=dict, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["tenant", "run"], name="fleet_run_name"),
        ]

    def __str__(self) -> str:
        return self.run

    @property
    def reached_step(self) -> int:
        """What its end said, where it has ended; else the step that the latest word reports."""
        has_ended = self.state not in (RunState.REGISTERED, RunState.RUNNING)
        return self.final_step if has_ended and self.final_step is not None else self.committed_step


class Order(models.Model):
    """What a node is told in the answer to its heartbeat, until it says what became of it."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="orders")
    node = models.ForeignKey(Node, models.PROTECT, related_name="orders")
    run = models.ForeignKey(Run, models.PROTECT, null=True, blank=True, related_name="orders")
    public_id = models.CharField(max_length=40, unique=True, default=order_id, editable=False)
    kind = models.CharField(max_length=20, choices=OrderKind)
    payload = models.JSONField(default=dict, blank=True)
    state = models.CharField(max_length=20, choices=OrderState, default=OrderState.OPEN)
    detail = models.CharField(max_length=1000, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)
    deadline_at = models.DateTimeField()
    acknowledged_at = models.DateTimeField(null=True, blank=True)
    completed_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["id"]
        indexes: ClassVar = [
            models.Index(
                fields=["node", "id"],
                name="fleet_order_open",
                condition=models.Q(state__in=["open", "acknowledged"]),
            )
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.public_id}"


class Lease(models.Model):
    """A node lent to a run; two live leases of one node are impossible."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="leases")
    node = models.ForeignKey(Node, models.PROTECT, related_name="leases")
    run = models.ForeignKey(Run, models.PROTECT, related_name="leases")
    public_id = models.CharField(max_length=40, unique=True, default=lease_id, editable=False)
    granted_at = models.DateTimeField()
    expires_at = models.DateTimeField()
    returned_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["node"],
                condition=models.Q(returned_at=None),
                name="fleet_lease_one_live_per_node",
            ),
            models.CheckConstraint(
                condition=models.Q(expires_at__gt=models.F("granted_at")),
                name="fleet_lease_ends_after_it_begins",
            ),
        ]

    def __str__(self) -> str:
        return self.public_id
