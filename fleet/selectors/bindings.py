"""What a token is bound to, in the terms of the domain."""

from __future__ import annotations

from fleet.domain.sources import Binding
from fleet.models import Run, Token


def binding_of(token: Token) -> Binding:
    return Binding(
        patterns=tuple(token.sources),
        cluster=token.cluster.name if token.cluster else None,
        node=token.node.name if token.node else None,
    )


def coordinated_runs(token: Token) -> frozenset[str]:
    """The runs whose coordinator this token's node hosts; empty for one without a node."""
    if token.node_id is None:
        return frozenset()
    return frozenset(
        Run.objects.filter(coordinator_node_id=token.node_id).values_list("run", flat=True)
    )
