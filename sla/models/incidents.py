"""Incidents as they were judged: identities and, append-only, every judgement of them."""

from __future__ import annotations

from typing import ClassVar

import pgtrigger
from django.contrib.postgres.fields import ArrayField
from django.db import models

from fleet.models import Tenant
from sla.models.choices import ExclusionReason, IncidentKind, Verdict
from sla.models.contracts import APPEND_ONLY, Contract, ContractYear
from sla.models.ids import incident_id


class Incident(models.Model):
    """Known by the event that gives its instant (R14). What it is now is its last judgement."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    contract = models.ForeignKey(Contract, models.PROTECT, related_name="incidents")
    public_id = models.CharField(max_length=40, unique=True, default=incident_id, editable=False)
    run = models.CharField(max_length=200)
    kind = models.CharField(max_length=20, choices=IncidentKind)
    first_source = models.CharField(max_length=500)
    first_event = models.CharField(max_length=200)
    occurred_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["occurred_at", "run", "first_event", "id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["contract", "run", "kind", "first_source", "first_event"],
                name="sla_incident_identity",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["tenant", "run"], name="sla_incident_run"),
        ]
        triggers: ClassVar = [pgtrigger.Protect(name="append_only", operation=APPEND_ONLY)]

    def __str__(self) -> str:
        return f"{self.run} {self.first_event}"


class Judgement(models.Model):
    """Append-only: what was thought of an incident from `judged_at` on; the largest number holds.

    `is_withdrawn`: evidence received since then shows that there is no such incident, or that it
    is part of another. `evidence`: [source, id] of every event it rests on.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    incident = models.ForeignKey(Incident, models.PROTECT, related_name="judgements")
    number = models.PositiveIntegerField()
    judged_at = models.DateTimeField()
    rules_version = models.CharField(max_length=20)
    is_withdrawn = models.BooleanField(default=False)
    year = models.ForeignKey(
        ContractYear, models.PROTECT, null=True, blank=True, related_name="judgements"
    )
    verdict = models.CharField(max_length=20, choices=Verdict)
    reasons = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    lost_steps = models.BigIntegerField(default=0)
    excluded = models.CharField(max_length=20, choices=ExclusionReason, blank=True)
    epochs = ArrayField(models.BigIntegerField(), default=list, blank=True)
    failure_ids = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    nodes = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    evidence = models.JSONField(default=list)

    class Meta:
        ordering: ClassVar = ["incident_id", "number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["incident", "number"], name="sla_judgement_number"),
            models.CheckConstraint(
                condition=models.Q(lost_steps__gte=0), name="sla_judgement_lost_steps"
            ),
        ]
        triggers: ClassVar = [pgtrigger.Protect(name="append_only", operation=APPEND_ONLY)]

    def __str__(self) -> str:
        return f"{self.verdict} ({self.number})"


class JudgedRun(models.Model):
    """The judge's bookkeeping of a run, a projection that may be made again.

    A run is due when something of it was received after it was judged, or when an incident of it
    stops being pending by time alone (R5).
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    run = models.CharField(max_length=200)
    touched_us = models.BigIntegerField()
    judged_us = models.BigIntegerField(default=0)
    deadline_us = models.BigIntegerField(null=True, blank=True)
    error = models.CharField(max_length=1000, blank=True)
    retry_us = models.BigIntegerField(default=0)

    class Meta:
        ordering: ClassVar = ["tenant_id", "run"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["tenant", "run"], name="sla_judgedrun_run"),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["id"],
                name="sla_judgedrun_due",
                condition=models.Q(touched_us__gt=models.F("judged_us")),
            ),
            models.Index(
                fields=["deadline_us"],
                name="sla_judgedrun_deadline",
                condition=models.Q(deadline_us__isnull=False),
            ),
        ]

    def __str__(self) -> str:
        return self.run


class SweepCursor(models.Model):
    """How far a tenant's events have been looked through for runs that need judging."""

    tenant = models.OneToOneField(Tenant, models.PROTECT, related_name="+")
    horizon_us = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"up to {self.horizon_us}"
