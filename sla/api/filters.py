"""What the lists of the books may be narrowed by; ids are the public ones."""

from __future__ import annotations

from typing import ClassVar

from django.db.models import QuerySet
from django_filters import rest_framework as filters

from sla.models import Assessment, Contract, Grant, Judgement
from sla.models.choices import Verdict


class ContractFilter(filters.FilterSet):
    number = filters.CharFilter()
    customer = filters.CharFilter(field_name="customer__public_id")

    class Meta:
        model = Contract
        fields: ClassVar = ["number", "customer"]


class IncidentFilter(filters.FilterSet):
    contract = filters.CharFilter(field_name="incident__contract__public_id")
    year = filters.CharFilter(field_name="year__public_id")
    run = filters.CharFilter(field_name="incident__run")
    verdict = filters.ChoiceFilter(choices=Verdict.choices)
    is_excluded = filters.BooleanFilter(method="by_exclusion")
    occurred_from = filters.IsoDateTimeFilter(field_name="incident__occurred_at", lookup_expr="gte")
    occurred_before = filters.IsoDateTimeFilter(
        field_name="incident__occurred_at", lookup_expr="lt"
    )

    class Meta:
        model = Judgement
        fields: ClassVar = ["contract", "year", "run", "verdict"]

    def by_exclusion(
        self, queryset: QuerySet[Judgement], name: str, value: bool
    ) -> QuerySet[Judgement]:
        return queryset.exclude(excluded="") if value else queryset.filter(excluded="")


class AssessmentFilter(filters.FilterSet):
    contract = filters.CharFilter(field_name="contract__public_id")
    year = filters.CharFilter(field_name="year__public_id")

    class Meta:
        model = Assessment
        fields: ClassVar = ["contract", "year"]


class GrantFilter(filters.FilterSet):
    contract = filters.CharFilter(field_name="contract__public_id")
    customer = filters.CharFilter(field_name="contract__customer__public_id")
    state = filters.ChoiceFilter(
        choices=[("available", "available"), ("voided", "voided")], method="by_state"
    )

    class Meta:
        model = Grant
        fields: ClassVar = ["contract", "customer"]

    def by_state(self, queryset: QuerySet[Grant], name: str, value: str) -> QuerySet[Grant]:
        return queryset.filter(void__isnull=value == "available")
