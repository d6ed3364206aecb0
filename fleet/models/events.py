"""What happened: the append-only event log, what was kept aside, and the findings it tells of."""

from __future__ import annotations

from typing import ClassVar

import pgtrigger
from django.db import models

from fleet.models.choices import AsideReason, EventStatus, FindingState
from fleet.models.nodes import Gpu, Node
from fleet.models.tenants import Tenant

APPEND_ONLY = pgtrigger.Update | pgtrigger.Delete


class Event(models.Model):
    """The first body received under its identity (tenant, source, event_id), for ever (R15).

    `time_us` is the source's wall clock, `received_us` the receipt instant, both in whole
    microseconds since the Unix epoch. `body` holds the bytes as received; `content_sha256` is of
    the sorted JSON without `recordedtime` and decides whether another body is the same.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="events")
    source = models.CharField(max_length=500)
    event_id = models.CharField(max_length=200)
    type = models.CharField(max_length=100)
    run = models.CharField(max_length=200, blank=True)
    subject = models.CharField(max_length=500, blank=True)
    time_us = models.BigIntegerField()
    received_us = models.BigIntegerField()
    sequence = models.BigIntegerField(null=True, blank=True)
    boot_id = models.CharField(max_length=100, blank=True)
    status = models.CharField(max_length=20, choices=EventStatus)
    body = models.BinaryField()
    body_sha256 = models.CharField(max_length=64)
    content_sha256 = models.CharField(max_length=64)

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["tenant", "source", "event_id"], name="fleet_event_identity"
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "run", "received_us"], name="fleet_event_run"),
            models.Index(fields=["tenant", "source", "sequence"], name="fleet_event_sequence"),
            models.Index(fields=["received_us"], name="fleet_event_received"),
        ]
        triggers: ClassVar = [pgtrigger.Protect(name="append_only", operation=APPEND_ONLY)]

    def __str__(self) -> str:
        return f"{self.type} {self.event_id}"


class EventAside(models.Model):
    """A body kept without being in force: it conflicts with the first, or cannot be read.

    One row for each distinct body, so a sender that repeats itself adds nothing. What could be
    read of it is filled in: a body whose time is known still fills its sequence number (R26).
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    reason = models.CharField(max_length=20, choices=AsideReason)
    detail = models.CharField(max_length=1000)
    source = models.CharField(max_length=500, blank=True)
    event_id = models.CharField(max_length=200, blank=True)
    run = models.CharField(max_length=200, blank=True)
    time_us = models.BigIntegerField(null=True, blank=True)
    received_us = models.BigIntegerField()
    sequence = models.BigIntegerField(null=True, blank=True)
    body = models.BinaryField()
    body_sha256 = models.CharField(max_length=64)

    class Meta:
        ordering: ClassVar = ["id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["tenant", "source", "event_id", "body_sha256"],
                name="fleet_eventaside_body",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "run", "received_us"], name="fleet_eventaside_run"),
        ]
        triggers: ClassVar = [pgtrigger.Protect(name="append_only", operation=APPEND_ONLY)]
        verbose_name = "event kept aside"
        verbose_name_plural = "events kept aside"

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


class HealthFinding(models.Model):
    """A projection of `health.finding` events: how a node or GPU is, by its latest word."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="findings")
    finding_id = models.CharField(max_length=200)
    node = models.ForeignKey(Node, models.PROTECT, null=True, blank=True, related_name="findings")
    gpu = models.ForeignKey(Gpu, models.PROTECT, null=True, blank=True, related_name="findings")
    gpu_uuid = models.CharField(max_length=100, blank=True)
    state = models.CharField(max_length=20, choices=FindingState)
    check_name = models.CharField(max_length=100)
    stage = models.CharField(max_length=100, blank=True)
    severity = models.CharField(max_length=20)
    memory = models.CharField(max_length=20, blank=True)
    action = models.CharField(max_length=20, blank=True)
    evidence = models.JSONField(default=dict, blank=True)
    policy_version = models.CharField(max_length=50, blank=True)
    opened_us = models.BigIntegerField()
    changed_us = models.BigIntegerField()

    class Meta:
        ordering: ClassVar = ["-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["tenant", "finding_id"], name="fleet_finding_id"),
        ]

    def __str__(self) -> str:
        return f"{self.check_name} {self.severity}"
