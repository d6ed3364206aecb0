"""Makes a tenant and its clusters; again, it only adds what is missing."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from fleet.services.tenants import TenantRequestError, ensure_tenant
from fleet.tenancy import every_tenant


class Command(BaseCommand):
    help = "Makes a tenant and its clusters."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name")
        parser.add_argument("--cluster", action="append", default=[], help="may be repeated")

    def handle(self, *args: Any, **options: Any) -> None:
        try:
            with every_tenant():
                tenant = ensure_tenant(name=options["name"], clusters=tuple(options["cluster"]))
        except TenantRequestError as error:
            raise CommandError(error.detail) from error
        self.stdout.write(tenant.public_id)
