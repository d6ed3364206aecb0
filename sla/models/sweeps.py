"""The closer's bookkeeping of a contract, a projection that may be made again."""

from __future__ import annotations

from django.db import models

from fleet.models import Tenant
from sla.models.contracts import Contract


class ContractSweep(models.Model):
    """Up to which horizon a contract's years have been looked at."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="+")
    contract = models.OneToOneField(Contract, models.PROTECT, related_name="sweep")
    swept_us = models.BigIntegerField(default=0)
    error = models.CharField(max_length=1000, blank=True)
    retry_us = models.BigIntegerField(default=0)

    def __str__(self) -> str:
        return f"up to {self.swept_us}"
