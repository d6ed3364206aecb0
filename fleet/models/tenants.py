"""Whose everything is: tenants, their clusters, and the people who sign in."""

from __future__ import annotations

from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.core.validators import RegexValidator
from django.db import models

from fleet.models.ids import tenant_id

# What a source such as /clusters/<cluster>/nodes/<node>/agent may be made of.
name_of_a_place = RegexValidator(
    r"^[A-Za-z0-9][A-Za-z0-9._-]*\Z", "letters, digits, dots, dashes and underscores only"
)


class Tenant(models.Model):
    """An organisation whose rows nobody else sees."""

    public_id = models.CharField(max_length=40, unique=True, default=tenant_id, editable=False)
    name = models.CharField(max_length=100, unique=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class Cluster(models.Model):
    """Its name stands in every source, so it is unique among all tenants."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, related_name="clusters")
    name = models.CharField(max_length=100, unique=True, validators=[name_of_a_place])
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering: ClassVar = ["name"]

    def __str__(self) -> str:
        return self.name


class User(AbstractUser):
    """A person. One with a tenant sees that tenant only; staff without one are the vendor's."""

    tenant = models.ForeignKey(Tenant, models.PROTECT, null=True, blank=True, related_name="users")
