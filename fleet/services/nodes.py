"""Nodes: enrolment, cordon and its lifting; each leaves a line in the node's record."""

from __future__ import annotations

from datetime import datetime

from django.core.exceptions import ValidationError
from django.db import transaction

from fleet import scopes
from fleet.errors import FleetError, NodeNotBoundError, UnknownPlaceError
from fleet.models import Cluster, Node, NodeChange, Token
from fleet.models.choices import NodeAction
from fleet.services.tokens import Minted, TokenTerms, mint_token


class TokenSpentError(FleetError):
    code = "token-spent"
    status = 401
    title = "The enrolment token has been used"


class ReasonMissingError(FleetError):
    code = "reason-missing"
    status = 422
    title = "A reason is needed"


def enroll_node(*, token: Token, name: str, now: datetime) -> tuple[Node, Minted]:
    """Spend a one-time token for the node's own credential, which replaces any it had.

    Raises TokenSpentError, NodeNotBoundError, UnknownPlaceError. Call inside the tenant's scope.
    """
    cluster = token.cluster
    if cluster is None or not token.is_single_use:
        raise UnknownPlaceError("the enrolment token is not a single-use token of a cluster")
    if token.node is not None and token.node.name != name:
        raise NodeNotBoundError(f"the token enrols {token.node.name}, not {name}")
    with transaction.atomic():
        # The row is taken once, by whoever updates it first.
        spent = Token.objects.filter(pk=token.pk, used_at=None).update(used_at=now)
        if spent != 1:
            raise TokenSpentError("ask an operator for another")
        node = find_or_create_node(cluster=cluster, name=name)
        Token.objects.filter(node=node, is_single_use=False).update(is_enabled=False)
        minted = mint_token(
            terms=TokenTerms(
                label=f"node {name}",
                scopes=(scopes.EVENTS_WRITE, scopes.HEARTBEATS_WRITE),
                tenant=cluster.tenant,
                cluster=cluster,
                node=node,
            )
        )
        _record(node, NodeAction.ENROLLED, "", f"token {token.public_id}", now)
    return node, minted


def find_or_create_node(*, cluster: Cluster, name: str) -> Node:
    """Raises UnknownPlaceError for a name that cannot stand in a source."""
    node = Node.objects.filter(cluster=cluster, name=name).select_related("cluster").first()
    if node is not None:
        return node
    node = Node(tenant_id=cluster.tenant_id, cluster=cluster, name=name)
    try:
        node.clean_fields(exclude=["tenant", "cluster"])
    except ValidationError as error:
        raise UnknownPlaceError(f"{name!r} is no name of a node: {error.messages[0]}") from error
    Node.objects.bulk_create([node], ignore_conflicts=True)
    return Node.objects.select_related("cluster").get(cluster=cluster, name=name)


def cordon_node(*, node: Node, reason: str, actor: str, now: datetime) -> Node:
    """Nothing new is put on it. Doing it again only adds the reason to its record."""
    _need(reason)
    with transaction.atomic():
        locked = Node.objects.select_for_update().get(pk=node.pk)
        if locked.cordoned_at is None:
            locked.cordoned_at, locked.cordon_reason = now, reason
            locked.save(update_fields=["cordoned_at", "cordon_reason"])
        _record(locked, NodeAction.CORDONED, reason, actor, now)
    return locked


def uncordon_node(*, node: Node, reason: str, actor: str, now: datetime) -> Node:
    _need(reason)
    with transaction.atomic():
        locked = Node.objects.select_for_update().get(pk=node.pk)
        locked.cordoned_at, locked.cordon_reason = None, ""
        locked.save(update_fields=["cordoned_at", "cordon_reason"])
        _record(locked, NodeAction.UNCORDONED, reason, actor, now)
    return locked


def _need(reason: str) -> None:
    if not reason.strip():
        raise ReasonMissingError("say why, for whoever looks at this node next")


def _record(node: Node, action: NodeAction, reason: str, actor: str, now: datetime) -> None:
    NodeChange.objects.create(
        tenant_id=node.tenant_id, node=node, action=action, reason=reason[:500], actor=actor, at=now
    )
