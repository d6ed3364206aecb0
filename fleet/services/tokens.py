"""Makes and checks bearer tokens; the secret leaves here once and is kept nowhere."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import string
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from django.conf import settings
from django.db.models import Q

from fleet.errors import FleetError
from fleet.models import Cluster, Node, Tenant, Token
from fleet.scopes import EVENTS_WRITE, declared_scopes

USE_IS_NOTED_EVERY: Final = timedelta(minutes=1)
_CLUSTER_OF_SOURCE: Final = re.compile(r"/clusters/([^/*]+)/.")
_ALPHABET: Final = string.ascii_letters + string.digits
_SHAPE: Final = re.compile(r"unb_([A-Za-z0-9]{12})\.([A-Za-z0-9]{40})")


class TokenRequestError(FleetError):
    code = "token-request"
    status = 422
    title = "Such a token cannot be made"


@dataclass(frozen=True, slots=True)
class Minted:
    """`plaintext` is shown once."""

    token: Token
    plaintext: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTerms:
    """What a token may do, for whom, bound to what; see models.Token."""

    label: str
    scopes: tuple[str, ...]
    tenant: Tenant | None = None
    cluster: Cluster | None = None
    node: Node | None = None
    sources: tuple[str, ...] = ()
    expires_at: datetime | None = None
    is_single_use: bool = False


def mint_token(*, terms: TokenTerms) -> Minted:
    """Raises TokenRequestError when the terms contradict each other."""
    _check(terms)
    key = "".join(secrets.choice(_ALPHABET) for _ in range(12))
    secret = "".join(secrets.choice(_ALPHABET) for _ in range(40))
    pepper_id = max(settings.TOKEN_PEPPERS)
    token = Token.objects.create(
        tenant=terms.tenant,
        label=terms.label,
        key=key,
        pepper_id=pepper_id,
        digest=_digest(secret, pepper_id),
        scopes=sorted(set(terms.scopes)),
        expires_at=terms.expires_at,
        is_single_use=terms.is_single_use,
        cluster=terms.cluster,
        node=terms.node,
        sources=list(terms.sources),
    )
    return Minted(token, f"unb_{key}.{secret}")


def check_token(*, plaintext: str, now: datetime) -> Token | None:
    """The usable token of that secret, or None: one answer for a wrong key and a wrong secret.

    Reads across tenants, since only the token says whose it is; call it in `every_tenant`.
    """
    match = _SHAPE.fullmatch(plaintext)
    if match is None:
        return None
    key, secret = match.groups()
    token = Token.objects.select_related("cluster", "node", "tenant").filter(key=key).first()
    pepper_id = token.pepper_id if token else max(settings.TOKEN_PEPPERS)
    if pepper_id not in settings.TOKEN_PEPPERS:
        return None
    expected = token.digest if token else "0" * 64
    if not hmac.compare_digest(_digest(secret, pepper_id), expected) or token is None:
        return None
    return token if token.is_usable(now) else None


def note_use(*, token: Token, now: datetime) -> None:
    """At most once a minute; a request that finds the row taken by another lets it be."""
    since = now - USE_IS_NOTED_EVERY
    if token.last_used_at is not None and token.last_used_at > since:
        return
    free = (
        Token.objects.filter(Q(last_used_at=None) | Q(last_used_at__lte=since), pk=token.pk)
        .select_for_update(skip_locked=True)
        .values("pk")
    )
    Token.objects.filter(pk__in=free).update(last_used_at=now)


def _digest(secret: str, pepper_id: int) -> str:
    pepper = settings.TOKEN_PEPPERS[pepper_id].encode()
    return hmac.new(pepper, secret.encode(), hashlib.sha256).hexdigest()


def _check(terms: TokenTerms) -> None:
    unknown = sorted(set(terms.scopes) - set(declared_scopes()))
    if unknown or not terms.scopes:
        known = ", ".join(sorted(declared_scopes()))
        raise TokenRequestError(f"scopes {unknown or 'are missing'}; there are {known}")
    if terms.tenant is None and (EVENTS_WRITE in terms.scopes or terms.cluster):
        raise TokenRequestError("a token that writes events, or of a cluster, needs its tenant")
    if terms.cluster is not None and terms.cluster.tenant_id != getattr(terms.tenant, "pk", None):
        raise TokenRequestError(f"the cluster {terms.cluster} is not of this tenant")
    if terms.node is not None and terms.node.cluster_id != getattr(terms.cluster, "pk", None):
        raise TokenRequestError(f"the node {terms.node} is not in this cluster")
    if EVENTS_WRITE in terms.scopes and not (terms.sources or terms.node):
        raise TokenRequestError("a token that writes events needs a node or sources")
    _check_sources(terms)


def _check_sources(terms: TokenTerms) -> None:
    """A tenant speaks for its own clusters only; names of clusters are unique among tenants."""
    if not terms.sources:
        return
    clusters = {str(cluster) for cluster in Cluster.objects.filter(tenant=terms.tenant)}
    for source in terms.sources:
        match = _CLUSTER_OF_SOURCE.match(source)
        if match is None or match.group(1) not in clusters:
            raise TokenRequestError(
                f"{source} does not begin with /clusters/ and a cluster of this tenant"
            )
