"""What surrounds every request: its id, and the tenant of the person who asks."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable

from django.db import transaction
from django.http import HttpRequest, HttpResponse

from fleet.tenancy import set_scope

Handler = Callable[[HttpRequest], HttpResponse]
_ACCEPTED_ID = re.compile(r"[A-Za-z0-9._-]{8,64}")


class RequestIdMiddleware:
    """Takes a sane X-Request-ID from the proxy or makes one; the answer carries it."""

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        given = request.headers.get("X-Request-ID", "")
        request_id = given if _ACCEPTED_ID.fullmatch(given) else uuid.uuid4().hex
        request.request_id = request_id  # type: ignore[attr-defined]
        response = self.get_response(request)
        response["X-Request-ID"] = request_id
        return response


class TenantMiddleware:
    """For people: one transaction around the page, rendering included, in the tenant's scope.

    The API does its own (fleet.api.views), since tokens are read there.
    """

    def __init__(self, get_response: Handler) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        if request.path.startswith("/api/") or not request.user.is_authenticated:
            return self.get_response(request)
        if request.user.tenant_id is None and not request.user.is_staff:
            return self.get_response(request)
        with transaction.atomic():
            set_scope(request.user.tenant_id)
            response = self.get_response(request)
            if response.status_code >= 500:
                transaction.set_rollback(True)
            return response
