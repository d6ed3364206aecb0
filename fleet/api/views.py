"""What all views of the API share: one transaction, in the scope of the token's tenant."""

from __future__ import annotations

from typing import Any

from django.db import InterfaceError, OperationalError, transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from rest_framework import exceptions
from rest_framework.request import Request
from rest_framework.views import APIView

from fleet.api.problems import unavailable
from fleet.models import Token
from fleet.tenancy import set_scope


class TenantAPIView(APIView):
    """The answer leaves after the commit; an error rolls everything back."""

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        try:
            with transaction.atomic():
                response = super().dispatch(request, *args, **kwargs)
                if response.status_code >= 400:
                    transaction.set_rollback(True)
            return response
        except (OperationalError, InterfaceError) as error:
            return unavailable(request, error)

    def perform_authentication(self, request: Request) -> None:
        super().perform_authentication(request)
        if isinstance(request.auth, Token):
            set_scope(request.auth.tenant_id)

    @property
    def token(self) -> Token:
        auth = self.request.auth
        if not isinstance(auth, Token):
            raise exceptions.NotAuthenticated
        return auth

    @property
    def tenant_id(self) -> int:
        """Of a token that is bound to a tenant; the vendor's own tokens are not."""
        if self.token.tenant_id is None:
            raise exceptions.PermissionDenied("this needs the token of a tenant")
        return self.token.tenant_id
