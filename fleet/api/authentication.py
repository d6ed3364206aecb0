"""Who asks: a bearer token, read across tenants, that then narrows the request to its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework import exceptions
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.permissions import BasePermission
from rest_framework.request import Request

from fleet.models import Token
from fleet.services.tokens import check_token, note_use
from fleet.tenancy import set_scope

CHALLENGE = 'Bearer realm="unbroken"'


@dataclass(frozen=True, slots=True)
class Principal:
    """A program behind a token, where Django expects a user."""

    token: Token
    is_authenticated: bool = True
    is_active: bool = True
    is_staff: bool = False

    @property
    def pk(self) -> str:
        return self.token.public_id

    def __str__(self) -> str:
        return f"token {self.token.public_id} ({self.token.label})"


class TokenAuthentication(BaseAuthentication):
    """`Authorization: Bearer unb_…`; needs the transaction that TenantAPIView opens."""

    def authenticate(self, request: Request) -> tuple[Principal, Token] | None:
        words = get_authorization_header(request).split()
        if not words or words[0].lower() != b"bearer":
            return None
        now = timezone.now()
        # Whose the token is, only the token says; the view narrows the scope right after.
        set_scope(None)
        plaintext = words[1].decode("ascii", "replace") if len(words) == 2 else ""
        token = check_token(plaintext=plaintext, now=now)
        if token is None:
            raise exceptions.AuthenticationFailed("the token is unknown, expired or disabled")
        note_use(token=token, now=now)
        return Principal(token), token

    def authenticate_header(self, request: Request) -> str:
        return CHALLENGE


class HasScope(BasePermission):
    """The view names the scope that each method needs in `scopes`; none named, none admitted."""

    def has_permission(self, request: Request, view: Any) -> bool:
        if not isinstance(request.auth, Token):
            return False
        needed = getattr(view, "scopes", {}).get(request.method)
        if request.method == "OPTIONS":
            return True
        if needed is None or needed not in request.auth.scopes:
            self.message = f"the token lacks the scope {needed}"
            return False
        return True


class TokenScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    target_class = "fleet.api.authentication.TokenAuthentication"
    name = "token"

    def get_security_definition(self, auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer", "description": "unb_<key>.<secret>"}
