"""`POST /api/v1/events`: the delivery of events, as wire.md section 1 says."""

from __future__ import annotations

import zlib
from typing import Any, ClassVar, Final

import orjson
from django.http import HttpResponse
from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework import serializers
from rest_framework.request import Request

from fleet import scopes
from fleet.api.views import TenantAPIView
from fleet.domain.envelopes import (
    MOST_EVENT_BYTES,
    MOST_EVENTS,
    MalformedBodyError,
    Reading,
    TooManyEventsError,
    read_batch,
    read_single,
)
from fleet.errors import (
    BodyTooLargeError,
    Fault,
    MediaTypeError,
    SourceNotBoundError,
)
from fleet.errors import MalformedBodyError as MalformedRequestError
from fleet.selectors.bindings import binding_of, coordinated_runs
from fleet.services.ingest import ingest_events

BATCH: Final = "application/cloudevents-batch+json"
SINGLE: Final = "application/cloudevents+json"
MOST_BYTES: Final = MOST_EVENTS * (MOST_EVENT_BYTES + 16)


class EventResultOutput(serializers.Serializer[Any]):
    id = serializers.CharField(allow_null=True)
    status = serializers.ChoiceField(
        choices=["accepted", "duplicate", "conflict", "quarantined", "invalid"]
    )
    detail = serializers.CharField(allow_null=True)


class DeliveryOutput(serializers.Serializer[Any]):
    results = EventResultOutput(many=True)


class EventsView(TenantAPIView):
    """Reads the body itself: the bytes of each event are evidence and are kept as they came."""

    scopes: ClassVar = {"POST": scopes.EVENTS_WRITE}
    parser_classes = ()

    @extend_schema(
        operation_id="events_deliver",
        summary="Deliver 1 to 1,000 events",
        description="A bad event never rejects the rest. 200 only after the commit.",
        request={
            BATCH: {
                "type": "array",
                "minItems": 1,
                "maxItems": MOST_EVENTS,
                "items": {"type": "object", "additionalProperties": True},
            },
            SINGLE: {"type": "object", "additionalProperties": True},
        },
        responses={200: OpenApiResponse(DeliveryOutput, "one result for each event, in order")},
    )
    def post(self, request: Request) -> HttpResponse:
        readings = _read(request)
        self._refuse_foreign(readings)
        results = ingest_events(tenant_id=self.tenant_id, readings=readings)
        body = {
            "results": [
                {"id": result.event_id, "status": result.status, "detail": result.detail}
                for result in results
            ]
        }
        return HttpResponse(orjson.dumps(body), content_type="application/json")

    def _refuse_foreign(self, readings: list[Reading]) -> None:
        binding = binding_of(self.token)
        runs = coordinated_runs(self.token)
        named = {reading.source for reading in readings if reading.source}
        foreign = {source for source in named if not binding.covers(source, runs)}
        if foreign:
            faults = tuple(
                Fault(f"/{index}/source", f"not bound to {reading.source}")
                for index, reading in enumerate(readings)
                if reading.source in foreign
            )
            raise SourceNotBoundError(f"not bound to {', '.join(sorted(foreign)[:3])}", faults)


def _read(request: Request) -> list[Reading]:
    media_type = (request.content_type or "").split(";")[0].strip().lower()
    if media_type not in (BATCH, SINGLE):
        raise MediaTypeError(f"send {BATCH} or {SINGLE}, not {media_type or 'nothing'}")
    body = _body(request)
    try:
        return read_batch(body) if media_type == BATCH else read_single(body)
    except TooManyEventsError as error:
        raise BodyTooLargeError(str(error)) from error
    except MalformedBodyError as error:
        raise MalformedRequestError(str(error)) from error


def _body(request: Request) -> bytes:
    """Unpacked, and never more of it than a full delivery may have."""
    raw: bytes = request._request.read(MOST_BYTES + 1)
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding in ("", "identity"):
        body = raw
    elif encoding == "gzip":
        body = _gunzip(raw)
    else:
        raise MediaTypeError(f"Content-Encoding may be gzip, not {encoding}")
    if len(body) > MOST_BYTES:
        raise BodyTooLargeError(f"a delivery has at most {MOST_BYTES} bytes, unpacked")
    return body


def _gunzip(raw: bytes) -> bytes:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        body = unpacker.decompress(raw, MOST_BYTES + 1)
    except zlib.error as error:
        raise MalformedRequestError(f"not gzip: {error}") from error
    if len(body) <= MOST_BYTES and not unpacker.eof:
        raise MalformedRequestError("the gzip stream ends early")
    return body
