"""The one shape of errors: RFC 9457 problem details, for every API of the service."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db import DataError, InterfaceError, OperationalError
from django.http import Http404, HttpRequest, JsonResponse
from django.http.response import HttpResponseBase
from django.views import defaults
from rest_framework import exceptions
from rest_framework.response import Response
from rest_framework.views import set_rollback

from fleet.errors import FleetError

log = logging.getLogger("fleet.api")

RETRY_AFTER_SECONDS = 2
TITLES = {
    400: "The request is not valid",
    401: "A valid token is needed",
    403: "The token may not do this",
    404: "There is no such thing",
    405: "The method is not allowed here",
    406: "The answer cannot be given in that form",
    413: "The request is too large",
    415: "The media type is not accepted here",
    422: "The request cannot be done",
    429: "Too many requests",
    500: "The service failed",
    503: "The service cannot answer now",
}
CODES = {
    400: "invalid-request",
    401: "unauthorized",
    403: "forbidden",
    404: "not-found",
    405: "method-not-allowed",
    406: "not-acceptable",
    415: "unsupported-media-type",
    429: "too-many-requests",
    500: "internal-error",
    503: "unavailable",
}


class ProblemResponse(JsonResponse):
    """`data` is what the body says, for callers inside."""

    def __init__(self, *, status: int, body: dict[str, Any]) -> None:
        super().__init__(body, status=status, content_type="application/problem+json")
        self.data = body


def problem(
    request: HttpRequest,
    *,
    status: int,
    detail: str,
    code: str | None = None,
    title: str | None = None,
    errors: list[dict[str, str]] | None = None,
) -> ProblemResponse:
    code = code or CODES.get(status, "error")
    return ProblemResponse(
        status=status,
        body={
            "type": f"/problems/{code}",
            "title": title or TITLES.get(status, "The request failed"),
            "status": status,
            "detail": detail,
            "code": code,
            "request_id": getattr(request, "request_id", ""),
            "errors": errors or [],
        },
    )


def problem_response(error: Exception, context: Mapping[str, Any]) -> Response | ProblemResponse:
    """Django REST framework's exception handler."""
    request: HttpRequest = context["request"]._request
    set_rollback()
    match error:
        case FleetError():
            return fleet_problem(request, error)
        case Http404():
            return problem(request, status=404, detail="nothing of that id is to be seen here")
        case PermissionDenied():
            return problem(request, status=403, detail="this is not permitted")
        case exceptions.APIException():
            return _rest_problem(request, error)
        case OperationalError() | InterfaceError():
            return unavailable(request, error)
        case DataError():
            log.warning("a value did not fit: %s", error)
            return problem(request, status=400, detail="a value is out of range")
        case _:
            # With its traceback; the client gets the id to ask about.
            log.exception("request %s failed", getattr(request, "request_id", ""))
            return problem(request, status=500, detail="an error of ours; quote the request id")


def fleet_problem(request: HttpRequest, error: FleetError) -> ProblemResponse:
    """Also for the errors of other apps that have the same attributes."""
    errors = [{"pointer": fault.pointer, "detail": fault.detail} for fault in error.faults]
    response = problem(
        request,
        status=error.status,
        detail=error.detail,
        code=error.code,
        title=error.title,
        errors=errors,
    )
    if error.is_retryable:
        response["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return response


def unavailable(request: HttpRequest, error: Exception) -> ProblemResponse:
    """The database is away, restarting, or was waited for too long: send it again."""
    log.warning("the database did not answer: %s", str(error).strip().splitlines()[:1])
    response = problem(request, status=503, detail="the database does not answer; try again")
    response["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return response


def _rest_problem(request: HttpRequest, error: exceptions.APIException) -> ProblemResponse:
    errors: list[dict[str, str]] = []
    detail = str(error.detail)
    if isinstance(error, exceptions.ValidationError):
        errors = [{"pointer": where, "detail": what} for where, what in _flatten(error.detail, "")]
        detail = "; ".join(f"{e['pointer'] or 'request'}: {e['detail']}" for e in errors)
    response = problem(request, status=error.status_code, detail=detail, errors=errors)
    header = getattr(error, "auth_header", None)
    if header:
        response["WWW-Authenticate"] = header
    wait = getattr(error, "wait", None)
    if wait:
        response["Retry-After"] = str(int(wait) + 1)
    return response


def _flatten(detail: Any, pointer: str) -> Iterator[tuple[str, str]]:
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            where = pointer if name == "non_field_errors" else f"{pointer}/{name}"
            yield from _flatten(inner, where)
    elif isinstance(detail, list):
        for index, inner in enumerate(detail):
            nested = isinstance(inner, Mapping | list)
            yield from _flatten(inner, f"{pointer}/{index}" if nested else pointer)
    else:
        yield pointer, str(detail)


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    """Django's handlers, for what never reached a view of the API."""
    if _is_for_programs(request):
        return problem(request, status=400, detail="the request cannot be read")
    return defaults.bad_request(request, exception)


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponseBase:
    if _is_for_programs(request):
        return problem(request, status=404, detail=f"nothing answers at {request.path}")
    return defaults.page_not_found(request, exception)


def server_error(request: HttpRequest) -> HttpResponseBase:
    if _is_for_programs(request):
        return problem(request, status=500, detail="an error of ours; quote the request id")
    return defaults.server_error(request)


def _is_for_programs(request: HttpRequest) -> bool:
    return request.path.startswith("/api/")
