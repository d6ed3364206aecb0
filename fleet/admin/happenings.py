"""The operator's desk: runs, the event log, findings, orders and leases; all of it read-only."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html

from fleet.admin.base import ReadOnlyAdmin, instant
from fleet.models import Event, EventAside, HealthFinding, Lease, Order, Run


@admin.register(Run)
class RunAdmin(ReadOnlyAdmin):
    list_display = (
        "run", "cluster", "state", "epoch", "reached_step", "progress_at", "world_size",
        "spares", "failures", "movements", "tokens_per_second", "is_supported",
    )  # fmt: skip
    list_filter = ("state", "cluster")
    list_select_related = ("cluster",)
    search_fields = ("run", "contract_number")

    @admin.display(description="last word", ordering="progress_us")
    def progress_at(self, run: Run) -> datetime | None:
        return instant(run.progress_us)


class _BodyAdmin(ReadOnlyAdmin):
    """Rows with the bytes of an event: lists leave them out, the page shows them indented."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("body")

    @admin.display(description="time", ordering="time_us")
    def time(self, row: Any) -> datetime | None:
        return instant(row.time_us)

    @admin.display(description="received", ordering="received_us")
    def received(self, row: Any) -> datetime | None:
        return instant(row.received_us)

    @admin.display(description="body")
    def readable_body(self, row: Any) -> str:
        raw = bytes(row.body)
        try:
            text = json.dumps(json.loads(raw), indent=2, ensure_ascii=False)
        except ValueError:
            text = raw.decode(errors="replace")
        return format_html("<pre>{}</pre>", text)


@admin.register(Event)
class EventAdmin(_BodyAdmin):
    list_display = ("time", "type", "run", "source", "sequence", "status", "received", "event_id")
    list_filter = ("type", "status")
    search_fields = ("event_id__exact", "run__exact", "source__startswith")
    fields = (
        "event_id", "type", "run", "subject", "source", "sequence", "boot_id", "time", "received",
        "status", "body_sha256", "readable_body",
    )  # fmt: skip


@admin.register(EventAside)
class EventAsideAdmin(_BodyAdmin):
    list_display = ("received", "reason", "detail", "source", "event_id", "run")
    list_filter = ("reason",)
    search_fields = ("event_id__exact", "run__exact", "source__startswith")
    fields = (
        "reason", "detail", "source", "event_id", "run", "sequence", "time", "received",
        "body_sha256", "readable_body",
    )  # fmt: skip


@admin.register(HealthFinding)
class HealthFindingAdmin(ReadOnlyAdmin):
    list_display = (
        "changed_at", "state", "severity", "check_name", "node", "gpu_uuid", "action", "memory",
    )  # fmt: skip
    list_filter = ("state", "severity", "check_name")
    list_select_related = ("node",)
    search_fields = ("finding_id", "node__name", "gpu_uuid")

    @admin.display(description="changed", ordering="changed_us")
    def changed_at(self, finding: HealthFinding) -> datetime | None:
        return instant(finding.changed_us)


@admin.register(Order)
class OrderAdmin(ReadOnlyAdmin):
    list_display = (
        "public_id", "node", "run", "kind", "state", "detail", "deadline_at", "acknowledged_at",
        "completed_at",
    )  # fmt: skip
    list_filter = ("kind", "state")
    list_select_related = ("node", "run")
    search_fields = ("public_id", "node__name", "run__run")
    exclude = ("payload",)  # it may hold a ticket that is the node's alone


@admin.register(Lease)
class LeaseAdmin(ReadOnlyAdmin):
    list_display = ("public_id", "node", "run", "granted_at", "expires_at", "returned_at")
    list_filter = (("returned_at", admin.EmptyFieldListFilter),)
    list_select_related = ("node", "run")
    search_fields = ("public_id", "node__name", "run__run")
