"""What every desk of the fleet shares: the theme where it is installed, and rows nobody edits."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.apps import apps
from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

if TYPE_CHECKING:
    ThemedAdmin = admin.ModelAdmin[Any]
elif apps.is_installed("unfold"):
    from unfold.admin import ModelAdmin as ThemedAdmin
else:
    ThemedAdmin = admin.ModelAdmin

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class FleetAdmin(ThemedAdmin):
    list_per_page = 50
    # Counting a log of millions of rows is what would make its page slow.
    show_full_result_count = False


class ReadOnlyAdmin(FleetAdmin):
    """For what the services write: it can be looked at, never edited here."""

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def instant(microseconds: int | None) -> datetime | None:
    """Of an event, for people to read; None where none has come yet."""
    return EPOCH + timedelta(microseconds=microseconds) if microseconds else None
