"""Contracts, years, incidents, assessments and grants, read by a token with `billing:read`."""

from __future__ import annotations

from typing import ClassVar

from django.db.models import QuerySet
from django.http import Http404
from django.shortcuts import get_object_or_404
from django.utils import timezone
from drf_spectacular.utils import extend_schema, inline_serializer
from rest_framework import generics, serializers
from rest_framework.request import Request
from rest_framework.response import Response

from fleet.api.pagination import CursorPages
from fleet.api.views import TenantAPIView
from sla import scopes
from sla.api import filters
from sla.api import serializers as shapes
from sla.instants import to_us
from sla.models import (
    Assessment,
    Contract,
    ContractVersion,
    ContractYear,
    Customer,
    Grant,
    Judgement,
)
from sla.selectors.incidents import current_judgements
from sla.selectors.years import YearFacts, year_facts


class Reading(TenantAPIView):
    """Row-level security has narrowed the rows to the token's tenant; all tenants' for staff's."""

    scopes: ClassVar = {"GET": scopes.BILLING_READ, "HEAD": scopes.BILLING_READ}
    lookup_field = "public_id"
    lookup_url_kwarg: str | None = "id"


class CustomersView(Reading, generics.ListAPIView[Customer]):
    queryset = Customer.objects.all()
    serializer_class = shapes.CustomerOutput


class CustomerView(Reading, generics.RetrieveAPIView[Customer]):
    queryset = Customer.objects.all()
    serializer_class = shapes.CustomerOutput


CONTRACTS = Contract.objects.select_related("customer").prefetch_related("versions")


class ContractsView(Reading, generics.ListAPIView[Contract]):
    queryset = CONTRACTS
    serializer_class = shapes.ContractOutput
    filterset_class = filters.ContractFilter


class ContractView(Reading, generics.RetrieveAPIView[Contract]):
    queryset = CONTRACTS
    serializer_class = shapes.ContractOutput


class VersionsView(Reading, generics.ListAPIView[ContractVersion]):
    queryset = ContractVersion.objects.none()
    serializer_class = shapes.VersionOutput

    def get_queryset(self) -> QuerySet[ContractVersion]:
        if "id" not in self.kwargs:
            return super().get_queryset()  # asked by the schema generator
        contract = get_object_or_404(Contract, public_id=self.kwargs["id"])
        return contract.versions.all()


class ContractYearsView(Reading):
    """A contract has a handful of years, so they come on one page, in order."""

    @extend_schema(
        operation_id="contracts_years_list",
        responses=inline_serializer(
            "YearPage",
            {
                "next": serializers.CharField(allow_null=True),
                "previous": serializers.CharField(allow_null=True),
                "results": shapes.YearOutput(many=True),
            },
        ),
    )
    def get(self, request: Request, id: str) -> Response:
        contract = get_object_or_404(Contract, public_id=id)
        results = [shapes.YearOutput(item).data for item in _years_now(contract)]
        return Response({"next": None, "previous": None, "results": results})


class YearView(Reading):
    @extend_schema(operation_id="years_retrieve", responses=shapes.YearOutput)
    def get(self, request: Request, id: str) -> Response:
        year = get_object_or_404(ContractYear.objects.select_related("contract"), public_id=id)
        facts = [item for item in _years_now(year.contract) if item.year.pk == year.pk]
        if not facts:  # it has not started: it has nothing to say yet
            raise Http404
        return Response(shapes.YearOutput(facts[0]).data)


def _years_now(contract: Contract) -> list[YearFacts]:
    return year_facts(contract, to_us(timezone.now()))


class AssessmentsView(Reading, generics.ListAPIView[Assessment]):
    queryset = Assessment.objects.select_related("contract", "year", "supersedes", "terms_version")
    serializer_class = shapes.AssessmentOutput
    filterset_class = filters.AssessmentFilter


class AssessmentView(Reading, generics.RetrieveAPIView[Assessment]):
    queryset = AssessmentsView.queryset
    serializer_class = shapes.AssessmentOutput


class IncidentPages(CursorPages):
    ordering = "-incident_id"


class IncidentsView(Reading, generics.ListAPIView[Judgement]):
    queryset = Judgement.objects.none()
    serializer_class = shapes.IncidentOutput
    filterset_class = filters.IncidentFilter
    pagination_class = IncidentPages

    def get_queryset(self) -> QuerySet[Judgement]:
        return current_judgements()


class IncidentView(Reading, generics.RetrieveAPIView[Judgement]):
    queryset = Judgement.objects.none()
    serializer_class = shapes.IncidentDetailOutput
    lookup_field = "incident__public_id"

    def get_queryset(self) -> QuerySet[Judgement]:
        return current_judgements().prefetch_related("incident__judgements")


class GrantsView(Reading, generics.ListAPIView[Grant]):
    queryset = Grant.objects.select_related("contract__customer", "year", "assessment", "void")
    serializer_class = shapes.GrantOutput
    filterset_class = filters.GrantFilter


class GrantView(Reading, generics.RetrieveAPIView[Grant]):
    queryset = GrantsView.queryset
    serializer_class = shapes.GrantOutput
