"""Who was promised what: customers, contracts, the versions of their terms, and their years."""

from __future__ import annotations

from typing import ClassVar

import pgtrigger
from django.contrib.postgres.fields import ArrayField
from django.db import models

from fleet.models import Tenant
from sla.models.ids import contract_id, customer_id, year_id

APPEND_ONLY = pgtrigger.Update | pgtrigger.Delete


class Customer(models.Model):
    """The party to contracts; its fleet is its tenant's."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="customers")
    public_id = models.CharField(max_length=40, unique=True, default=customer_id, editable=False)
    name = models.CharField(max_length=200)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["tenant", "name"], name="sla_customer_name"),
        ]

    def __str__(self) -> str:
        return self.name


class Contract(models.Model):
    """Its number is what `run.started` names (R40). What it promises is in its versions.

    `clusters`: names of the clusters it covers; empty covers every cluster of its tenant.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="contracts")
    customer = models.ForeignKey(Customer, models.PROTECT, related_name="contracts")
    public_id = models.CharField(max_length=40, unique=True, default=contract_id, editable=False)
    number = models.CharField(max_length=100)
    currency = models.CharField(max_length=3)
    timezone = models.CharField(max_length=64)
    starts_on = models.DateField()
    ends_on = models.DateField()
    signed_on = models.DateField()
    clusters = ArrayField(models.CharField(max_length=100), default=list, blank=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["tenant", "number"], name="sla_contract_number"),
            models.CheckConstraint(
                condition=models.Q(ends_on__gt=models.F("starts_on")),
                name="sla_contract_ends_after_it_starts",
            ),
        ]

    def __str__(self) -> str:
        return self.number


class ContractVersion(models.Model):
    """Append-only: the terms as they were signed, in the words of a case file."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    contract = models.ForeignKey(Contract, models.PROTECT, related_name="versions")
    number = models.PositiveIntegerField()
    terms = models.JSONField()
    effective_on = models.DateField()
    recorded_at = models.DateTimeField()
    recorded_by = models.CharField(max_length=200)

    class Meta:
        ordering: ClassVar = ["contract_id", "number"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["contract", "number"], name="sla_version_number"),
        ]
        triggers: ClassVar = [pgtrigger.Protect(name="append_only", operation=APPEND_ONLY)]

    def __str__(self) -> str:
        return f"{self.contract_id} version {self.number}"


class ContractYear(models.Model):
    """A half-open span [starts_at, ends_at), fixed when the contract was opened (R23).

    Its state is not stored: it follows from its assessments and the time.
    """

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    contract = models.ForeignKey(Contract, models.PROTECT, related_name="years")
    public_id = models.CharField(max_length=40, unique=True, default=year_id, editable=False)
    index = models.PositiveIntegerField()
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()

    class Meta:
        ordering: ClassVar = ["contract_id", "index"]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["contract", "index"], name="sla_year_index"),
            models.CheckConstraint(
                condition=models.Q(ends_at__gt=models.F("starts_at")),
                name="sla_year_ends_after_it_starts",
            ),
        ]
        triggers: ClassVar = [pgtrigger.Protect(name="append_only", operation=APPEND_ONLY)]

    def __str__(self) -> str:
        return f"year {self.index}"
