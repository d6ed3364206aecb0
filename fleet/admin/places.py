"""The operator's desk: tenants, clusters, people, nodes, GPUs and tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest

from fleet.admin.base import FleetAdmin, ReadOnlyAdmin
from fleet.models import Cluster, Gpu, Node, NodeChange, Tenant, Token, User
from fleet.models.choices import FindingState

if TYPE_CHECKING:
    PeopleAdmin = UserAdmin[User]
else:
    PeopleAdmin = UserAdmin


@admin.register(Tenant)
class TenantAdmin(FleetAdmin):
    list_display = ("name", "public_id", "created_at")
    search_fields = ("name", "public_id")
    readonly_fields = ("public_id", "created_at")


@admin.register(Cluster)
class ClusterAdmin(FleetAdmin):
    list_display = ("name", "tenant", "created_at")
    list_select_related = ("tenant",)
    search_fields = ("name",)


@admin.register(User)
class PersonAdmin(PeopleAdmin, FleetAdmin):
    list_display = ("username", "email", "tenant", "is_staff", "is_active", "last_login")
    list_select_related = ("tenant",)
    fieldsets = (*(UserAdmin.fieldsets or ()), ("Tenant", {"fields": ("tenant",)}))


@admin.register(Node)
class NodeAdmin(ReadOnlyAdmin):
    list_display = (
        "name", "cluster", "state", "is_cordoned", "cordon_reason", "gpu_count", "open_findings",
        "ranks_and_spares", "agent_version", "last_heartbeat_at",
    )  # fmt: skip
    list_filter = ("state", ("cordoned_at", admin.EmptyFieldListFilter), "cluster")
    list_select_related = ("cluster",)
    search_fields = ("name", "public_id", "boot_id", "gpus__uuid", "gpus__serial")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        is_open = ~Q(findings__state=FindingState.CLEARED)
        nodes: QuerySet[Any] = super().get_queryset(request)
        counted: QuerySet[Any] = nodes.annotate(
            gpu_total=Count("gpus", distinct=True),
            open_total=Count("findings", filter=is_open, distinct=True),
        )
        return counted

    @admin.display(description="cordoned", boolean=True)
    def is_cordoned(self, node: Node) -> bool:
        return node.is_cordoned

    @admin.display(description="GPUs")
    def gpu_count(self, node: Any) -> int:
        return int(node.gpu_total)

    @admin.display(description="ranks and spares")
    def ranks_and_spares(self, node: Node) -> str:
        """Who works here, as the agent last said it: `run: rank 0, spare`."""
        return "; ".join(
            f"{run.get('id')}: {', '.join(_in_a_word(each) for each in run.get('workers') or [])}"
            for run in node.running
        )

    @admin.display(description="open findings")
    def open_findings(self, node: Any) -> int:
        return int(node.open_total)


def _in_a_word(worker: dict[str, Any]) -> str:
    rank = worker.get("rank")
    return str(worker.get("role", "")) if rank is None else f"rank {rank}"


@admin.register(Gpu)
class GpuAdmin(ReadOnlyAdmin):
    list_display = ("uuid", "node", "slot", "serial", "model", "temperature", "last_seen_at")
    list_filter = ("model", "node__cluster")
    list_select_related = ("node",)
    search_fields = ("uuid", "serial", "pci_bus_id", "node__name")

    @admin.display(description="°C")
    def temperature(self, gpu: Gpu) -> Any:
        return gpu.brief.get("temperature_celsius")


@admin.register(NodeChange)
class NodeChangeAdmin(ReadOnlyAdmin):
    list_display = ("at", "node", "action", "reason", "actor")
    list_filter = ("action",)
    list_select_related = ("node",)
    search_fields = ("node__name", "reason", "actor")


@admin.register(Token)
class TokenAdmin(FleetAdmin):
    """Made by `manage.py create_token`, which shows the secret once; switched off here."""

    list_display = (
        "label", "key", "tenant", "scopes", "cluster", "node", "is_enabled", "expires_at",
        "last_used_at",
    )  # fmt: skip
    list_filter = ("is_enabled", "is_single_use", "tenant")
    list_select_related = ("tenant", "cluster", "node")
    search_fields = ("label", "key", "public_id", "node__name")
    fields = (
        "label", "public_id", "key", "tenant", "scopes", "cluster", "node", "sources",
        "is_enabled", "expires_at", "is_single_use", "used_at", "last_used_at", "created_at",
    )  # fmt: skip
    readonly_fields = (
        "public_id", "key", "tenant", "scopes", "cluster", "node", "sources", "is_single_use",
        "used_at", "last_used_at", "created_at",
    )  # fmt: skip

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False
