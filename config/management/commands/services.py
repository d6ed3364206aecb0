"""Runs the embedded services in the foreground until Ctrl-C, and says where they are."""

from __future__ import annotations

import signal
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from config import embedded


class Command(BaseCommand):
    help = "Runs the embedded PostgreSQL and Valkey until Ctrl-C."
    requires_system_checks = ()

    def handle(self, *args: Any, **options: Any) -> None:
        place = settings.EMBEDDED_PLACE
        if place is None:
            raise CommandError("DATABASE_URL and REDIS_URL are set, so nothing is embedded")
        signals = {signal.SIGINT, signal.SIGTERM}
        embedded.join(place, services=settings.EMBEDDED_SERVICES)
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        if "postgres" in settings.EMBEDDED_SERVICES:
            self.stdout.write(f"DATABASE_URL={place.database_url}")
            owner = place.database_url.replace("unbroken_app@", "unbroken_owner@")
            self.stdout.write(f"DATABASE_OWNER_URL={owner}")
        if "valkey" in settings.EMBEDDED_SERVICES:
            self.stdout.write(f"REDIS_URL={place.redis_url}")
        self.stdout.write("running until Ctrl-C")
        self.stdout.flush()
        signal.sigwait(signals)
        embedded.leave(place)
