"""Bearer tokens: a public key to look one up by, and a secret of which only an HMAC is kept."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.contrib.postgres.fields import ArrayField
from django.db import models

from fleet.models.ids import token_id
from fleet.models.nodes import Node
from fleet.models.tenants import Cluster, Tenant


class Token(models.Model):
    """`unb_<key>.<secret>`; the digest is HMAC-SHA256 of the secret under a numbered pepper.

    A token may be bound: to a cluster, to a node of it, and to sources (one that ends in `*`
    stands for all that begin so). A single-use token is spent by its first use (enrolment).
    One without a tenant is the vendor's own and sees every tenant.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, null=True, blank=True, related_name="tokens")
    public_id = models.CharField(max_length=40, unique=True, default=token_id, editable=False)
    label = models.CharField(max_length=200)
    key = models.CharField(max_length=16, unique=True, editable=False)
    pepper_id = models.PositiveSmallIntegerField(editable=False)
    digest = models.CharField(max_length=64, editable=False)
    scopes = ArrayField(models.CharField(max_length=50))
    is_enabled = models.BooleanField(default=True)
    expires_at = models.DateTimeField(null=True, blank=True)
    is_single_use = models.BooleanField(default=False)
    used_at = models.DateTimeField(null=True, blank=True, editable=False)
    cluster = models.ForeignKey(
        Cluster, models.PROTECT, null=True, blank=True, related_name="tokens"
    )
    node = models.ForeignKey(Node, models.PROTECT, null=True, blank=True, related_name="tokens")
    sources = ArrayField(models.CharField(max_length=500), default=list, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True, editable=False)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["tenant_id", "id"]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=models.Q(node=None) | models.Q(cluster__isnull=False),
                name="fleet_token_node_has_its_cluster",
            ),
            models.CheckConstraint(
                condition=models.Q(cluster=None) | models.Q(tenant__isnull=False),
                name="fleet_token_cluster_has_its_tenant",
            ),
            models.CheckConstraint(
                condition=models.Q(used_at=None) | models.Q(is_single_use=True),
                name="fleet_token_only_single_use_is_spent",
            ),
        ]

    def __str__(self) -> str:
        return self.label

    def is_usable(self, now: datetime) -> bool:
        alive = self.is_enabled and (self.expires_at is None or self.expires_at > now)
        return alive and self.used_at is None
