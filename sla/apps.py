"""The app of what the fleet's record means under a contract."""

from __future__ import annotations

from django.apps import AppConfig


class SlaConfig(AppConfig):
    name = "sla"
    verbose_name = "Guarantee"
