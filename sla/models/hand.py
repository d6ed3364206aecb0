"""What people enter by hand: always two of them (R17), always append-only."""

from __future__ import annotations

from typing import ClassVar

import pgtrigger
from django.contrib.postgres.fields import ArrayField
from django.db import models

from fleet.models import Tenant
from sla.models.contracts import APPEND_ONLY, Contract


class ByHand(models.Model):
    """`recorded_at` is the receipt instant, read under the evidence clock as for events."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    contract = models.ForeignKey(Contract, models.PROTECT, related_name="%(class)ss")
    requested_by = models.CharField(max_length=200)
    approved_by = models.CharField(max_length=200)
    recorded_at = models.DateTimeField()

    class Meta:
        abstract = True
        ordering: ClassVar = ["contract_id", "recorded_at", "id"]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=~models.Q(requested_by=models.F("approved_by"))
                & ~models.Q(requested_by="")
                & ~models.Q(approved_by=""),
                name="%(app_label)s_%(class)s_two_people",
            ),
        ]


class Exclusion(ByHand):
    """Takes incidents out of the count, by their failures or first event; never a whole run."""

    reason = models.CharField(
        max_length=20,
        choices=[
            ("customer_cause", "Caused by the customer"),
            ("force_majeure", "Force majeure"),
        ],
    )
    failure_ids = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    first_event = models.CharField(max_length=200, blank=True)
    evidence = models.TextField()

    class Meta(ByHand.Meta):
        triggers: ClassVar = [pgtrigger.Protect(name="append_only", operation=APPEND_ONLY)]
        constraints: ClassVar = [
            *ByHand.Meta.constraints,
            models.CheckConstraint(
                condition=~models.Q(failure_ids=[]) | ~models.Q(first_event=""),
                name="sla_exclusion_names_incidents",
            ),
            models.CheckConstraint(
                condition=~models.Q(evidence=""), name="sla_exclusion_has_evidence"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.reason} of {self.recorded_at:%Y-%m-%d}"


class Registration(ByHand):
    """A half-open window in which nodes or runs are worked on, registered beforehand."""

    reason = models.CharField(
        max_length=20,
        choices=[("maintenance", "Maintenance"), ("registered_drill", "Registered drill")],
    )
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    nodes = ArrayField(models.CharField(max_length=200), default=list, blank=True)
    runs = ArrayField(models.CharField(max_length=200), default=list, blank=True)

    class Meta(ByHand.Meta):
        triggers: ClassVar = [pgtrigger.Protect(name="append_only", operation=APPEND_ONLY)]
        constraints: ClassVar = [
            *ByHand.Meta.constraints,
            models.CheckConstraint(
                condition=models.Q(ends_at__gt=models.F("starts_at")),
                name="sla_registration_ends_after_it_starts",
            ),
            models.CheckConstraint(
                condition=~models.Q(nodes=[]) | ~models.Q(runs=[]),
                name="sla_registration_names_something",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.reason} from {self.starts_at:%Y-%m-%d %H:%M}"


class Waiver(ByHand):
    """Lets missing numbers [first, last] of a source pass, or its tail (R26, R42)."""

    source = models.CharField(max_length=500)
    first = models.BigIntegerField(null=True, blank=True)
    last = models.BigIntegerField(null=True, blank=True)
    is_tail = models.BooleanField(default=False)

    class Meta(ByHand.Meta):
        triggers: ClassVar = [pgtrigger.Protect(name="append_only", operation=APPEND_ONLY)]
        constraints: ClassVar = [
            *ByHand.Meta.constraints,
            models.CheckConstraint(
                condition=models.Q(is_tail=True, first=None, last=None)
                | models.Q(is_tail=False, first__gte=1, last__gte=models.F("first")),
                name="sla_waiver_numbers_or_tail",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.source} {'tail' if self.is_tail else f'{self.first}-{self.last}'}"
