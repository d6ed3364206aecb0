"""What exists: nodes and GPUs as their agents last described them, and what was done to them."""

from __future__ import annotations

from typing import ClassVar

import pgtrigger
from django.db import models

from fleet.models.choices import NodeAction, NodeState
from fleet.models.ids import gpu_id, node_id
from fleet.models.tenants import Cluster, Tenant, name_of_a_place


class Node(models.Model):
    """A machine with an agent; (cluster, name) is its place and stands in its source."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="nodes")
    cluster = models.ForeignKey(Cluster, models.PROTECT, related_name="nodes")
    public_id = models.CharField(max_length=40, unique=True, default=node_id, editable=False)
    name = models.CharField(max_length=200, validators=[name_of_a_place])
    state = models.CharField(max_length=20, choices=NodeState, default=NodeState.HEALTHY)
    cordoned_at = models.DateTimeField(null=True, blank=True)
    cordon_reason = models.CharField(max_length=500, blank=True)
    boot_id = models.CharField(max_length=100, blank=True)
    agent_version = models.CharField(max_length=50, blank=True)
    driver_version = models.CharField(max_length=50, blank=True)
    blind = models.JSONField(default=list, blank=True)
    specs = models.JSONField(default=dict, blank=True)
    source_heads = models.JSONField(default=dict, blank=True)
    running = models.JSONField(default=list, blank=True)
    last_heartbeat_at = models.DateTimeField(null=True, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["cluster_id", "name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["cluster", "name"], name="fleet_node_place"),
            models.CheckConstraint(
                condition=models.Q(cordoned_at=None) | ~models.Q(cordon_reason=""),
                name="fleet_node_cordon_has_a_reason",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def is_cordoned(self) -> bool:
        return self.cordoned_at is not None


class Gpu(models.Model):
    """Known by its UUID; its slot is the place where it was seen last."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="gpus")
    node = models.ForeignKey(Node, models.PROTECT, related_name="gpus")
    public_id = models.CharField(max_length=40, unique=True, default=gpu_id, editable=False)
    uuid = models.CharField(max_length=100)
    serial = models.CharField(max_length=100, blank=True)
    slot = models.PositiveIntegerField(null=True, blank=True)
    pci_bus_id = models.CharField(max_length=40, blank=True)
    model = models.CharField(max_length=100, blank=True)
    brief = models.JSONField(default=dict, blank=True)
    last_seen_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["node_id", "slot", "uuid"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["tenant", "uuid"], name="fleet_gpu_uuid"),
        ]

    def __str__(self) -> str:
        return self.uuid


class NodeChange(models.Model):
    """Append-only: who did what to a node, and why."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    node = models.ForeignKey(Node, models.PROTECT, related_name="changes")
    action = models.CharField(max_length=20, choices=NodeAction)
    reason = models.CharField(max_length=500, blank=True)
    actor = models.CharField(max_length=200)
    at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["node_id", "id"]
        triggers: ClassVar = [
            pgtrigger.Protect(name="append_only", operation=pgtrigger.Update | pgtrigger.Delete)
        ]

    def __str__(self) -> str:
        return f"{self.action} by {self.actor}"
