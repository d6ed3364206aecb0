"""The two doors of an agent: enrolment, and the heartbeat whose answer carries its orders."""

from __future__ import annotations

from typing import Any, ClassVar

import orjson
from django.http import HttpResponse
from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework import status
from rest_framework.request import Request
from rest_framework.response import Response

from fleet import scopes
from fleet.api.serializers import EnrollInput, EnrollOutput, HeartbeatOutput
from fleet.api.views import TenantAPIView
from fleet.domain.heartbeats import Heartbeat, HeartbeatError, read_heartbeat
from fleet.errors import Fault, MalformedBodyError, NodeNotBoundError
from fleet.models import Node, Order, Token
from fleet.services.heartbeats import record_heartbeat
from fleet.services.nodes import enroll_node, find_or_create_node
from runtime.events import format_time

MOST_HEARTBEAT_BYTES = 1024 * 1024


class HeartbeatsView(TenantAPIView):
    scopes: ClassVar = {"POST": scopes.HEARTBEATS_WRITE}
    parser_classes = ()

    @extend_schema(
        operation_id="fleet_heartbeat",
        summary="Say how a node is, hear what it shall do",
        description=(
            "node, cluster, boot_id, agent_version, driver, gpus, runs, blind, specs, sources "
            "(name to head sequence), orders (id, state, detail: what became of them)."
        ),
        request={"application/json": OpenApiTypes.OBJECT},
        responses=HeartbeatOutput,
    )
    def post(self, request: Request) -> HttpResponse:
        heartbeat = _read(request)
        node = _node_of(self.token, heartbeat)
        answer = record_heartbeat(node=node, heartbeat=heartbeat, now=timezone.now())
        body = {
            "orders": [_order(order) for order in answer.orders],
            "interval_seconds": answer.interval_seconds,
        }
        return HttpResponse(orjson.dumps(body), content_type="application/json")


class EnrollView(TenantAPIView):
    scopes: ClassVar = {"POST": scopes.ENROLL}

    @extend_schema(
        operation_id="fleet_enroll",
        summary="Change a one-time enrolment token for the node's own",
        request=EnrollInput,
        responses={201: EnrollOutput},
    )
    def post(self, request: Request) -> Response:
        given = EnrollInput(data=request.data)
        given.is_valid(raise_exception=True)
        cluster = given.validated_data.get("cluster")
        if cluster and (self.token.cluster is None or self.token.cluster.name != cluster):
            raise NodeNotBoundError(f"the token does not enrol nodes of {cluster}")
        node, minted = enroll_node(
            token=self.token, name=given.validated_data["node"], now=timezone.now()
        )
        body = EnrollOutput({"node": node.public_id, "token": minted.plaintext}).data
        return Response(body, status=status.HTTP_201_CREATED)


def _read(request: Request) -> Heartbeat:
    body = request._request.read(MOST_HEARTBEAT_BYTES + 1)
    if len(body) > MOST_HEARTBEAT_BYTES:
        raise MalformedBodyError(f"a heartbeat has at most {MOST_HEARTBEAT_BYTES} bytes")
    try:
        return read_heartbeat(orjson.loads(body))
    except HeartbeatError as error:
        fault = Fault(error.pointer, error.detail)
        raise MalformedBodyError(str(error), (fault,)) from error
    except orjson.JSONDecodeError as error:
        raise MalformedBodyError(f"not JSON: {error}") from error


def _node_of(token: Token, heartbeat: Heartbeat) -> Node:
    """A node's own token speaks for it alone; a cluster's for any node, known or new."""
    cluster = token.cluster
    if cluster is None or heartbeat.cluster not in ("", cluster.name):
        raise NodeNotBoundError(f"the token is not bound to the cluster {heartbeat.cluster}")
    if token.node is None:
        return find_or_create_node(cluster=cluster, name=heartbeat.node)
    if token.node.name != heartbeat.node:
        raise NodeNotBoundError(f"the token speaks for {token.node.name}, not {heartbeat.node}")
    return token.node


def _order(order: Order) -> dict[str, Any]:
    deadline_us = int(order.deadline_at.timestamp()) * 1_000_000 + order.deadline_at.microsecond
    return {
        "id": order.public_id,
        "kind": order.kind,
        "payload": order.payload,
        "deadline": format_time(deadline_us),
    }
