"""Assessments, grants and what was entered by hand: looked at here, written by the services."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from fleet.admin.base import ReadOnlyAdmin
from sla.admin.parts import amount_text, credit_text
from sla.models import Assessment, Exclusion, Grant, Registration, Waiver


@admin.register(Assessment)
class AssessmentAdmin(ReadOnlyAdmin):
    list_display = ("contract", "year", "revision", "as_of", "outcome", "counted", "credit_shown")
    list_filter = ("outcome", "contract")
    list_select_related = ("contract", "year")
    search_fields = ("contract__number", "public_id")

    @admin.display(description="credit")
    def credit_shown(self, assessment: Assessment) -> str:
        return credit_text(assessment.credit)


@admin.register(Grant)
class GrantAdmin(ReadOnlyAdmin):
    list_display = ("public_id", "contract", "year", "amount", "state", "granted_at")
    list_filter = ("contract", "currency")
    list_select_related = ("contract", "year", "void")
    search_fields = ("contract__number", "public_id")

    @admin.display(description="credit")
    def amount(self, grant: Grant) -> str:
        if grant.minor_units is None:
            return f"{grant.rate_num}/{grant.rate_den} of the next order"
        return amount_text(grant.minor_units, grant.currency, grant.exponent)

    @admin.display(description="state")
    def state(self, grant: Grant) -> str:
        return "voided" if hasattr(grant, "void") else "available"


class ByHandAdmin(ReadOnlyAdmin):
    list_filter = ("contract",)
    list_select_related = ("contract",)

    def get_list_display(self, request: HttpRequest) -> Any:
        return (*super().get_list_display(request), "requested_by", "approved_by", "recorded_at")


@admin.register(Exclusion)
class ExclusionAdmin(ByHandAdmin):
    list_display = ("contract", "reason", "failure_ids", "first_event", "evidence")


@admin.register(Registration)
class RegistrationAdmin(ByHandAdmin):
    list_display = ("contract", "reason", "starts_at", "ends_at", "nodes", "runs")


@admin.register(Waiver)
class WaiverAdmin(ByHandAdmin):
    list_display = ("contract", "source", "first", "last", "is_tail")
