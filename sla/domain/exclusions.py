"""Which incidents do not count, and why (R16, R17). It changes no verdict."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal

from sla.domain.incidents import Incident
from sla.domain.run import RunEvidence

ExclusionReason = Literal[
    "unsupported_run",
    "customer_stop",
    "customer_cause",
    "maintenance",
    "force_majeure",
    "registered_drill",
]
REASON_ORDER: Final[tuple[ExclusionReason, ...]] = (
    "unsupported_run",
    "customer_stop",
    "customer_cause",
    "maintenance",
    "force_majeure",
    "registered_drill",
)


@dataclass(frozen=True, kw_only=True)
class Exclusion:
    """Two people took these incidents out, from `recorded_us` on; never a whole run."""

    reason: Literal["customer_cause", "force_majeure"]
    failure_ids: frozenset[str]
    first_event: str | None
    recorded_us: int
    requested_by: str
    approved_by: str
    evidence: object

    def names(self, incident: Incident) -> bool:
        return (
            not self.failure_ids.isdisjoint(incident.failure_ids)
            or self.first_event == incident.first_event
        )


@dataclass(frozen=True, kw_only=True)
class Registration:
    """A window [starts, ends) in which nodes or runs are worked on, registered beforehand."""

    reason: Literal["maintenance", "registered_drill"]
    recorded_us: int
    starts_us: int
    ends_us: int
    nodes: frozenset[str]
    runs: frozenset[str]
    requested_by: str
    approved_by: str

    def covers(self, incident: Incident) -> bool:
        instant_us = incident.occurred_us
        if not self.starts_us <= instant_us < self.ends_us or self.recorded_us >= instant_us:
            return False
        return incident.run in self.runs or (bool(incident.nodes) and incident.nodes <= self.nodes)


def exclusion_of(
    incident: Incident,
    run: RunEvidence,
    exclusions: Iterable[Exclusion],
    registrations: Iterable[Registration],
) -> ExclusionReason | None:
    """The first reason of R17 that applies, None where the incident counts."""
    reasons: set[ExclusionReason] = set()
    if not run.is_supported_at(incident.occurred_us):
        reasons.add("unsupported_run")
    if incident.judgement.customer_stop:
        reasons.add("customer_stop")
    reasons.update(exclusion.reason for exclusion in exclusions if exclusion.names(incident))
    reasons.update(entry.reason for entry in registrations if entry.covers(incident))
    return next((reason for reason in REASON_ORDER if reason in reasons), None)
