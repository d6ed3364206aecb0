"""Makes the Celery application known to every Django process, so that tasks find their broker."""

from __future__ import annotations

from django.apps import AppConfig


class ConfigConfig(AppConfig):
    name = "config"

    def ready(self) -> None:
        from config import celery  # noqa: F401  (registers itself as the default application)
