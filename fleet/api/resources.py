"""What operators' programs read of the fleet, and the few things they may do to it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from django.utils import timezone
from drf_spectacular.utils import extend_schema
from rest_framework import mixins, status
from rest_framework.decorators import action
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.viewsets import GenericViewSet

from fleet import scopes
from fleet.api import filters
from fleet.api import serializers as wire
from fleet.api.views import TenantAPIView
from fleet.errors import UnknownPlaceError
from fleet.models import Gpu, HealthFinding, Lease, Node, Order, Run
from fleet.models.choices import OrderKind
from fleet.selectors import inventory
from fleet.services.launches import Launch, Placement, give_order, launch_run
from fleet.services.nodes import cordon_node, uncordon_node

READ = {"GET": scopes.FLEET_READ, "HEAD": scopes.FLEET_READ}
READ_WRITE = {**READ, "POST": scopes.FLEET_WRITE}


class _Reads(TenantAPIView, mixins.ListModelMixin, mixins.RetrieveModelMixin, GenericViewSet[Any]):
    """List and read; the base of every resource here."""

    scopes: ClassVar[dict[str, str]] = READ
    lookup_field = "public_id"
    lookup_url_kwarg = "id"


class NodeViewSet(_Reads):
    scopes = READ_WRITE
    queryset = Node.objects.none()
    serializer_class = wire.NodeOutput
    filterset_class = filters.NodeFilter

    def get_queryset(self) -> Any:
        return inventory.nodes()

    @extend_schema(request=wire.ReasonInput, responses=wire.NodeOutput)
    @action(detail=True, methods=["post"])
    def cordon(self, request: Request, id: str) -> Response:
        node = self.get_object()
        cordon_node(node=node, reason=_reason(request), actor=str(request.user), now=timezone.now())
        return Response(self.get_serializer(self.get_object()).data)

    @extend_schema(request=wire.ReasonInput, responses=wire.NodeOutput)
    @action(detail=True, methods=["post"])
    def uncordon(self, request: Request, id: str) -> Response:
        node = self.get_object()
        uncordon_node(
            node=node, reason=_reason(request), actor=str(request.user), now=timezone.now()
        )
        return Response(self.get_serializer(self.get_object()).data)


class GpuViewSet(_Reads):
    queryset = Gpu.objects.none()
    serializer_class = wire.GpuOutput
    filterset_class = filters.GpuFilter

    def get_queryset(self) -> Any:
        return inventory.gpus()


class FindingViewSet(_Reads):
    queryset = HealthFinding.objects.none()
    serializer_class = wire.FindingOutput
    lookup_field = "finding_id"
    filterset_class = filters.FindingFilter

    def get_queryset(self) -> Any:
        return inventory.findings()


class RunViewSet(_Reads):
    scopes = READ_WRITE
    queryset = Run.objects.none()
    serializer_class = wire.RunOutput
    lookup_field = "run"
    lookup_value_regex = "[^/]+"
    filterset_class = filters.RunFilter

    def get_queryset(self) -> Any:
        return inventory.runs()

    @extend_schema(
        summary="Register a run and order its nodes to start it",
        request=wire.LaunchInput,
        responses={201: wire.RunOutput, 200: wire.RunOutput},
    )
    def create(self, request: Request) -> Response:
        given = wire.LaunchInput(data=request.data)
        given.is_valid(raise_exception=True)
        run, is_new = launch_run(
            tenant_id=self.tenant_id, launch=_launch(given.validated_data), now=timezone.now()
        )
        body = self.get_serializer(run).data
        return Response(body, status=status.HTTP_201_CREATED if is_new else status.HTTP_200_OK)


class LeaseViewSet(_Reads):
    queryset = Lease.objects.none()
    serializer_class = wire.LeaseOutput
    filterset_class = filters.LeaseFilter

    def get_queryset(self) -> Any:
        return inventory.leases()


class OrderViewSet(_Reads):
    scopes = READ_WRITE
    queryset = Order.objects.none()
    serializer_class = wire.OrderOutput
    filterset_class = filters.OrderFilter

    def get_queryset(self) -> Any:
        return inventory.orders()

    @extend_schema(
        summary="Tell a node to do something",
        request=wire.OrderInput,
        responses={201: wire.OrderOutput},
    )
    def create(self, request: Request) -> Response:
        given = wire.OrderInput(data=request.data)
        given.is_valid(raise_exception=True)
        wanted = given.validated_data
        node = inventory.nodes().filter(public_id=wanted["node"]).first()
        if node is None:
            raise UnknownPlaceError(f"there is no node {wanted['node']}")
        run = None
        if wanted["run"] is not None:
            run = inventory.runs().filter(tenant_id=node.tenant_id, run=wanted["run"]).first()
            if run is None:
                raise UnknownPlaceError(f"there is no run {wanted['run']}")
        order = give_order(
            node=node,
            kind=OrderKind(wanted["kind"]),
            payload=wanted["payload"],
            deadline_at=timezone.now() + timedelta(seconds=wanted["deadline_seconds"]),
            run=run,
        )
        return Response(self.get_serializer(order).data, status=status.HTTP_201_CREATED)


def _reason(request: Request) -> str:
    given = wire.ReasonInput(data=request.data)
    given.is_valid(raise_exception=True)
    reason: str = given.validated_data["reason"]
    return reason


def _launch(given: dict[str, Any]) -> Launch:
    return Launch(
        run=given["run"],
        cluster=given["cluster"],
        contract=given["contract"] or "",
        spec=given["spec"],
        world_size=given["world_size"],
        spares=given["spares"],
        priority=given["priority"],
        coordinator_node=given["coordinator_node"],
        placement=tuple(
            Placement(node=entry["node"], payload=dict(entry["payload"]))
            for entry in given["placement"]
        ),
        deadline=timedelta(seconds=given["deadline_seconds"]),
    )
