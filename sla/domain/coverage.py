"""Which contract a run belongs to (R40), in the service; a replay file has one contract only."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

RUN_SOURCE: Final = re.compile(r"/clusters/([^/]+)/runs/([^/]+)/[^/]+")
AGENT_SOURCE: Final = re.compile(r"/clusters/([^/]+)/nodes/[^/]+/agent")


@dataclass(frozen=True, kw_only=True)
class Scope:
    """What a contract covers; no cluster named means every cluster of its tenant.

    `signed` orders contracts by when they were signed.
    """

    number: str
    clusters: frozenset[str]
    start_us: int
    end_us: int
    signed: tuple[int, int]

    def covers_cluster(self, cluster: str) -> bool:
        return not self.clusters or cluster in self.clusters


@dataclass(frozen=True, kw_only=True)
class RunOrigin:
    """A run's first start by (time, id): what it names, where and when; else its first event."""

    run: str
    named: str | None
    cluster: str
    instant_us: int


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """`refused`: the run named a contract that is not its tenant's (note `contract_refused`)."""

    number: str | None
    refused: bool


def coverage_of(origin: RunOrigin, scopes: Iterable[Scope]) -> Coverage:
    """R40: the contract it names, else its cluster's: most specific first, then earliest signed."""
    scopes = list(scopes)
    if origin.named is not None and any(scope.number == origin.named for scope in scopes):
        return Coverage(number=origin.named, refused=False)
    fitting = [
        scope
        for scope in scopes
        if scope.covers_cluster(origin.cluster)
        and scope.start_us <= origin.instant_us < scope.end_us
    ]
    fitting.sort(key=lambda scope: (not scope.clusters, scope.signed, scope.number))
    return Coverage(number=fitting[0].number if fitting else None, refused=origin.named is not None)


def cluster_of(source: str) -> str:
    """The cluster that a source names; empty where it names none."""
    match = re.match(r"/clusters/([^/]+)/", source)
    return match.group(1) if match else ""
