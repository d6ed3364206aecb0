"""The books' addresses under /api/v1/."""

from __future__ import annotations

from django.urls import path

from sla.api import views

urlpatterns = [
    path("customers", views.CustomersView.as_view(), name="customers"),
    path("customers/<str:id>", views.CustomerView.as_view(), name="customer"),
    path("contracts", views.ContractsView.as_view(), name="contracts"),
    path("contracts/<str:id>", views.ContractView.as_view(), name="contract"),
    path("contracts/<str:id>/versions", views.VersionsView.as_view(), name="versions"),
    path("contracts/<str:id>/years", views.ContractYearsView.as_view(), name="contract-years"),
    path("years/<str:id>", views.YearView.as_view(), name="year"),
    path("assessments", views.AssessmentsView.as_view(), name="assessments"),
    path("assessments/<str:id>", views.AssessmentView.as_view(), name="assessment"),
    path("incidents", views.IncidentsView.as_view(), name="incidents"),
    path("incidents/<str:id>", views.IncidentView.as_view(), name="incident"),
    path("grants", views.GrantsView.as_view(), name="grants"),
    path("grants/<str:id>", views.GrantView.as_view(), name="grant"),
]
