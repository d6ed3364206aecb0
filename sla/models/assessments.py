"""What a year came to: append-only assessments, the credits they granted, and their voiding."""

from __future__ import annotations

from typing import ClassVar

import pgtrigger
from django.contrib.postgres.fields import ArrayField
from django.db import models

from fleet.models import Tenant
from sla.models.choices import Outcome
from sla.models.contracts import APPEND_ONLY, Contract, ContractYear
from sla.models.ids import assessment_id, grant_id


class Assessment(models.Model):
    """One revision of a closed year's result; a later one supersedes it, nothing is edited."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    contract = models.ForeignKey(Contract, models.PROTECT, related_name="assessments")
    year = models.ForeignKey(ContractYear, models.PROTECT, related_name="assessments")
    public_id = models.CharField(max_length=40, unique=True, default=assessment_id, editable=False)
    revision = models.PositiveIntegerField()
    supersedes = models.OneToOneField(
        "self", models.PROTECT, null=True, blank=True, related_name="superseded_by"
    )
    as_of = models.DateTimeField()
    zero_loss = models.PositiveIntegerField()
    rollback = models.PositiveIntegerField()
    excluded = models.PositiveIntegerField()
    pending = models.PositiveIntegerField()
    outcome = models.CharField(max_length=20, choices=Outcome)
    credit = models.JSONField(null=True, blank=True)
    notes = ArrayField(models.CharField(max_length=40), default=list, blank=True)
    inputs_digest = models.CharField(max_length=64)
    rules_version = models.CharField(max_length=20)
    terms_version = models.ForeignKey(
        "sla.ContractVersion", models.PROTECT, related_name="assessments"
    )
    made_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["year_id", "revision"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["year", "revision"], name="sla_assessment_revision"),
            models.CheckConstraint(
                condition=models.Q(revision=1, supersedes=None)
                | models.Q(revision__gt=1, supersedes__isnull=False),
                name="sla_assessment_chain",
            ),
            models.CheckConstraint(
                condition=models.Q(credit=None) | models.Q(outcome="missed"),
                name="sla_assessment_credit_of_a_missed_year",
            ),
        ]
        triggers: ClassVar = [pgtrigger.Protect(name="append_only", operation=APPEND_ONLY)]

    def __str__(self) -> str:
        return f"revision {self.revision}: {self.outcome}"

    @property
    def counted(self) -> int:
        return self.zero_loss + self.rollback


class Grant(models.Model):
    """The credit of a missed year; one in each chain of revisions in which it stays missed (R33).

    Either an amount in minor units of `currency`, or `rate_num/rate_den` of the next order (R30).
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    contract = models.ForeignKey(Contract, models.PROTECT, related_name="grants")
    year = models.ForeignKey(ContractYear, models.PROTECT, related_name="grants")
    assessment = models.OneToOneField(Assessment, models.PROTECT, related_name="grant")
    public_id = models.CharField(max_length=40, unique=True, default=grant_id, editable=False)
    chain = models.PositiveIntegerField()
    currency = models.CharField(max_length=3)
    minor_units = models.BigIntegerField(null=True, blank=True)
    exponent = models.PositiveSmallIntegerField()
    rate_num = models.BigIntegerField(null=True, blank=True)
    rate_den = models.BigIntegerField(null=True, blank=True)
    granted_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["-granted_at", "-id"]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["contract", "year", "chain"], name="sla_grant_one_per_chain"
            ),
            models.CheckConstraint(
                condition=models.Q(minor_units__gt=0, rate_num=None, rate_den=None)
                | models.Q(minor_units=None, rate_num__gt=0, rate_den__gt=0),
                name="sla_grant_amount_or_rate",
            ),
        ]
        triggers: ClassVar = [pgtrigger.Protect(name="append_only", operation=APPEND_ONLY)]

    def __str__(self) -> str:
        return self.public_id


class GrantVoid(models.Model):
    """A restatement that says the year was met after all voids what is not applied yet (R27)."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    grant = models.OneToOneField(Grant, models.PROTECT, related_name="void")
    assessment = models.ForeignKey(Assessment, models.PROTECT, related_name="voids")
    voided_at = models.DateTimeField()

    class Meta:
        triggers: ClassVar = [pgtrigger.Protect(name="append_only", operation=APPEND_ONLY)]

    def __str__(self) -> str:
        return f"void {self.grant_id}"
