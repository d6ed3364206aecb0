"""The app of what exists, how it is and what happened."""

from __future__ import annotations

from django.apps import AppConfig


class FleetConfig(AppConfig):
    name = "fleet"
    verbose_name = "Fleet"
