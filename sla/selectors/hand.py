"""What people entered by hand, as the rules and the case files have it."""

from __future__ import annotations

from typing import Any

from runtime.events import format_time
from sla.domain.exclusions import Exclusion as DomainExclusion
from sla.domain.exclusions import Registration as DomainRegistration
from sla.instants import from_us, to_us
from sla.models import Contract, Exclusion, Registration, Waiver


def hand_document(contract: Contract, as_of_us: int) -> dict[str, list[dict[str, Any]]]:
    """Every entry recorded up to `as_of_us`, in the words of a case file."""
    known = {"contract": contract, "recorded_at__lte": from_us(as_of_us)}
    return {
        "exclusions": [exclusion_document(row) for row in Exclusion.objects.filter(**known)],
        "registered": [registration_document(row) for row in Registration.objects.filter(**known)],
        "waived_gaps": [waiver_document(row) for row in Waiver.objects.filter(**known)],
    }


def exclusion_document(row: Exclusion) -> dict[str, Any]:
    return {
        "failure_ids": row.failure_ids,
        "first_event": row.first_event or None,
        "reason": row.reason,
        "requested_by": row.requested_by,
        "approved_by": row.approved_by,
        "recorded_at": format_time(to_us(row.recorded_at)),
        "evidence": row.evidence,
    }


def registration_document(row: Registration) -> dict[str, Any]:
    return {
        "reason": row.reason,
        "registered_at": format_time(to_us(row.recorded_at)),
        "starts": format_time(to_us(row.starts_at)),
        "ends": format_time(to_us(row.ends_at)),
        "nodes": row.nodes,
        "runs": row.runs,
        "requested_by": row.requested_by,
        "approved_by": row.approved_by,
    }


def waiver_document(row: Waiver) -> dict[str, Any]:
    what: dict[str, Any] = {"tail": True} if row.is_tail else {"from": row.first, "to": row.last}
    return {
        "source": row.source,
        **what,
        "requested_by": row.requested_by,
        "approved_by": row.approved_by,
        "recorded_at": format_time(to_us(row.recorded_at)),
    }


def exclusions_of(contract: Contract, as_of_us: int) -> list[DomainExclusion]:
    rows = Exclusion.objects.filter(contract=contract, recorded_at__lte=from_us(as_of_us))
    return [
        DomainExclusion(
            reason=row.reason,  # type: ignore[arg-type]  # its choices are the rule's
            failure_ids=frozenset(row.failure_ids),
            first_event=row.first_event or None,
            recorded_us=to_us(row.recorded_at),
            requested_by=row.requested_by,
            approved_by=row.approved_by,
            evidence=row.evidence,
        )
        for row in rows
    ]


def registrations_of(contract: Contract, as_of_us: int) -> list[DomainRegistration]:
    rows = Registration.objects.filter(contract=contract, recorded_at__lte=from_us(as_of_us))
    return [
        DomainRegistration(
            reason=row.reason,  # type: ignore[arg-type]  # its choices are the rule's
            recorded_us=to_us(row.recorded_at),
            starts_us=to_us(row.starts_at),
            ends_us=to_us(row.ends_at),
            nodes=frozenset(row.nodes),
            runs=frozenset(row.runs),
            requested_by=row.requested_by,
            approved_by=row.approved_by,
        )
        for row in rows
    ]
