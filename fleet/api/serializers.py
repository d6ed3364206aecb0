"""The shapes of the fleet's resources on the wire, in and out; they write nothing."""

from __future__ import annotations

from typing import Any

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from fleet.models import Gpu, HealthFinding, Lease, Node, Order, Run
from fleet.models.choices import OrderKind
from runtime.events import format_time


@extend_schema_field(OpenApiTypes.DATETIME)
class InstantField(serializers.IntegerField):
    """Microseconds since the epoch inside, RFC 3339 outside; 0 stands for none."""

    def to_representation(self, value: Any) -> Any:
        return format_time(value) if value else None


class NodeOutput(serializers.ModelSerializer[Node]):
    id = serializers.CharField(source="public_id")
    cluster = serializers.CharField(source="cluster.name")
    gpu_count = serializers.IntegerField()
    open_findings = serializers.IntegerField()
    driver = serializers.CharField(source="driver_version")
    sources = serializers.JSONField(source="source_heads")
    runs = serializers.JSONField(source="running")

    class Meta:
        model = Node
        fields = (
            "id", "name", "cluster", "state", "cordoned_at", "cordon_reason", "boot_id",
            "agent_version", "driver", "blind", "specs", "sources", "runs", "gpu_count",
            "open_findings", "last_heartbeat_at",
        )  # fmt: skip


class GpuOutput(serializers.ModelSerializer[Gpu]):
    id = serializers.CharField(source="public_id")
    node = serializers.CharField(source="node.name")

    class Meta:
        model = Gpu
        fields = (
            "id", "uuid", "serial", "node", "slot", "pci_bus_id", "model", "brief", "last_seen_at",
        )  # fmt: skip


class FindingOutput(serializers.ModelSerializer[HealthFinding]):
    id = serializers.CharField(source="finding_id")
    node = serializers.CharField(source="node.name", allow_null=True, default=None)
    gpu = serializers.CharField(source="gpu_uuid")
    check = serializers.CharField(source="check_name")
    opened_at = InstantField(source="opened_us")
    changed_at = InstantField(source="changed_us")

    class Meta:
        model = HealthFinding
        fields = (
            "id", "state", "check", "stage", "severity", "node", "gpu", "memory", "action",
            "evidence", "policy_version", "opened_at", "changed_at",
        )  # fmt: skip


class RunOutput(serializers.ModelSerializer[Run]):
    id = serializers.CharField(source="run")
    cluster = serializers.CharField(source="cluster.name")
    contract = serializers.CharField(source="contract_number")
    supported = serializers.BooleanField(source="is_supported", allow_null=True)
    coordinator_node = serializers.CharField(
        source="coordinator_node.name", allow_null=True, default=None
    )
    committed_step = serializers.IntegerField(source="reached_step")
    progress_at = InstantField(source="progress_us")

    class Meta:
        model = Run
        fields = (
            "id", "cluster", "contract", "state", "epoch", "committed_step", "progress_at",
            "step_seconds", "samples_per_second", "tokens_per_second", "failures", "movements",
            "world_size", "spares", "mesh", "priority", "framework", "gpu_model", "supported",
            "coordinator_node", "created_at",
        )  # fmt: skip


class LeaseOutput(serializers.ModelSerializer[Lease]):
    id = serializers.CharField(source="public_id")
    node = serializers.CharField(source="node.name")
    run = serializers.CharField(source="run.run")

    class Meta:
        model = Lease
        fields = ("id", "node", "run", "granted_at", "expires_at", "returned_at")


class OrderOutput(serializers.ModelSerializer[Order]):
    """Without the payload's secrets, which are the node's alone."""

    id = serializers.CharField(source="public_id")
    node = serializers.CharField(source="node.name")
    run = serializers.CharField(source="run.run", allow_null=True, default=None)
    deadline = serializers.DateTimeField(source="deadline_at")
    payload = serializers.SerializerMethodField()

    class Meta:
        model = Order
        fields = (
            "id", "node", "run", "kind", "payload", "state", "detail", "deadline", "created_at",
            "acknowledged_at", "completed_at",
        )  # fmt: skip

    @extend_schema_field(OpenApiTypes.OBJECT)
    def get_payload(self, order: Order) -> dict[str, Any]:
        return {k: v for k, v in order.payload.items() if k not in ("ticket", "events_token")}


class ReasonInput(serializers.Serializer[Any]):
    reason = serializers.CharField(max_length=500)


class PlacementInput(serializers.Serializer[Any]):
    node = serializers.CharField(max_length=200)
    payload = serializers.DictField(default=dict)


class LaunchInput(serializers.Serializer[Any]):
    """`placement`: one order `start_worker` each, with its payload as the agent expects it."""

    run = serializers.RegexField(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}\Z")
    cluster = serializers.CharField(max_length=100)
    contract = serializers.CharField(max_length=100, allow_null=True, default=None)
    spec = serializers.CharField(max_length=128)
    world_size = serializers.IntegerField(min_value=1, max_value=2**31 - 1)
    spares = serializers.IntegerField(min_value=0, max_value=2**31 - 1, default=0)
    priority = serializers.IntegerField(min_value=-1000, max_value=1000, default=0)
    coordinator_node = serializers.CharField(max_length=200)
    placement = PlacementInput(many=True, allow_empty=False)
    deadline_seconds = serializers.IntegerField(min_value=1, max_value=86_400, default=600)


class OrderInput(serializers.Serializer[Any]):
    node = serializers.CharField(max_length=40, help_text="the node's id, nod_…")
    run = serializers.CharField(max_length=200, allow_null=True, default=None)
    kind = serializers.ChoiceField(choices=OrderKind.choices)
    payload = serializers.DictField(default=dict)
    deadline_seconds = serializers.IntegerField(min_value=1, max_value=86_400, default=600)


class HeartbeatOrderOutput(serializers.Serializer[Any]):
    id = serializers.CharField()
    kind = serializers.ChoiceField(choices=OrderKind.choices)
    payload = serializers.DictField()
    deadline = serializers.DateTimeField()


class HeartbeatOutput(serializers.Serializer[Any]):
    orders = HeartbeatOrderOutput(many=True)
    interval_seconds = serializers.IntegerField()


class EnrollInput(serializers.Serializer[Any]):
    node = serializers.CharField(max_length=200)
    cluster = serializers.CharField(max_length=100, required=False, allow_blank=True)


class EnrollOutput(serializers.Serializer[Any]):
    node = serializers.CharField(help_text="the node's id, nod_…")
    token = serializers.CharField(help_text="shown this once")
