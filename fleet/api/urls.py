"""The fleet's addresses under /api/v1/."""

from __future__ import annotations

from django.urls import path

from fleet.api.events import EventsView

urlpatterns = [
    path("events", EventsView.as_view(), name="events"),
]
