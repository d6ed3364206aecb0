"""Django's migrate, as the role that owns the tables (the connection `owner`)."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.core.management.commands import migrate
from django.db import connections


class Command(migrate.Command):
    help = "Updates the database schema as unbroken_owner."

    def add_arguments(self, parser: CommandParser) -> None:
        super().add_arguments(parser)
        parser.set_defaults(database="owner")

    def handle(self, *args: Any, **options: Any) -> None:
        if "owner" not in connections:
            raise CommandError(
                "migrate works as the role that owns the tables: set DATABASE_OWNER_URL too"
            )
        super().handle(*args, **options)
