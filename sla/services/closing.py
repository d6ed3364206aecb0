"""Closing and restating years (R25-R27): appends assessments and grants, never edits one.

What becomes of a year is walked by sla.domain over the contract's whole evidence up to a horizon,
so a close that was late, or was killed half way, comes out as if it had been on time.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Exists, Max, OuterRef

from fleet.locks import fix_horizon
from fleet.models import Event, EventAside, Tenant
from fleet.tenancy import every_tenant, tenant_scope
from runtime.events import canonical_json, parse_time, sha256_hex
from sla.domain.case import read_case
from sla.domain.money import Amount, credit_as_json
from sla.domain.replay import notes_of, walk
from sla.domain.terms import HOUR_US, RULES_VERSION
from sla.domain.timeline import Revision, YearCourse
from sla.errors import BooksDivergeError
from sla.instants import from_us, to_us
from sla.models import (
    Assessment,
    Contract,
    ContractSweep,
    ContractYear,
    Exclusion,
    Grant,
    GrantVoid,
    JudgedRun,
    Registration,
    Waiver,
)
from sla.selectors.contracts import domain_contract, grace_of, version_in_force
from sla.selectors.evidence import case_document
from sla.tables import TABLES

log = logging.getLogger("sla.closing")
RETRY_US = HOUR_US // 60


@dataclass(frozen=True, kw_only=True)
class Closing:
    """What one sweep did; `failed` contracts are tried again a minute later."""

    looked_at: int
    failed: int
    appended: int


def close_due_years() -> Closing:
    """Close and restate whatever is due.

    Safe to run many times at once; one contract that cannot be closed stops no other.
    """
    horizon_us = fix_horizon()
    with every_tenant():  # sweeps look after all tenants
        tenants = list(Tenant.objects.order_by("pk").values_list("pk", flat=True))
    looked_at = failed = appended = 0
    for tenant_id in tenants:
        for contract_id in _due_contracts(tenant_id, horizon_us):
            try:
                count = _close_claimed(tenant_id, contract_id, horizon_us)
            except Exception as error:
                log.exception("contract %s was not closed", contract_id)
                _note_failure(tenant_id, contract_id, horizon_us, error)
                failed += 1
            else:
                looked_at += count is not None
                appended += count or 0
    return Closing(looked_at=looked_at, failed=failed, appended=appended)


def _due_contracts(tenant_id: int, horizon_us: int) -> list[int]:
    """Contracts with a year whose grace has passed, and news since they were last looked at."""
    with tenant_scope(tenant_id):
        ended = ContractYear.objects.filter(
            contract=OuterRef("pk"), ends_at__lte=from_us(horizon_us)
        )
        candidates = Contract.objects.filter(Exists(ended)).order_by("pk")
        news_us = _last_news(horizon_us)
        return [
            contract.pk
            for contract in candidates.select_related("sweep")
            if _is_due(contract, horizon_us, news_us)
        ]


def _last_news(horizon_us: int) -> int:
    """The last instant at which the tenant in scope received anything, or something fell due."""
    instants = [
        model.objects.filter(received_us__lte=horizon_us).aggregate(at=Max("received_us"))["at"]
        for model in (Event, EventAside)
    ]
    for entry in (Exclusion, Registration, Waiver):
        at = entry.objects.aggregate(at=Max("recorded_at"))["at"]
        instants.append(to_us(at) if at else None)
    overdue = JudgedRun.objects.filter(deadline_us__lte=horizon_us)
    instants.append(overdue.aggregate(at=Max("deadline_us"))["at"])
    return max((instant for instant in instants if instant is not None), default=0)


def _is_due(contract: Contract, horizon_us: int, news_us: int) -> bool:
    sweep: ContractSweep | None = getattr(contract, "sweep", None)
    swept_us = sweep.swept_us if sweep else 0
    if sweep and sweep.retry_us > horizon_us:
        return False
    grace_us = grace_of(version_in_force(contract).terms)
    ends = [to_us(year.ends_at) + grace_us for year in contract.years.all()]
    passed = [end_us for end_us in ends if end_us <= horizon_us]
    return bool(passed) and (news_us > swept_us or max(passed) > swept_us)


def _close_claimed(tenant_id: int, contract_id: int, horizon_us: int) -> int | None:
    """None where another worker has it, or has just done it."""
    with tenant_scope(tenant_id):
        ContractSweep.objects.bulk_create(
            [ContractSweep(tenant_id=tenant_id, contract_id=contract_id)], ignore_conflicts=True
        )
        claim = ContractSweep.objects.select_for_update(skip_locked=True)
        sweep = claim.filter(contract_id=contract_id, swept_us__lt=horizon_us).first()
        if sweep is None:
            return None
        appended = close_contract(contract=sweep.contract, horizon_us=horizon_us)
        ContractSweep.objects.filter(pk=sweep.pk).update(swept_us=horizon_us, error="", retry_us=0)
        return appended


def _note_failure(tenant_id: int, contract_id: int, horizon_us: int, error: Exception) -> None:
    text = f"{type(error).__name__}: {error}"[:1000]
    with tenant_scope(tenant_id):
        ContractSweep.objects.update_or_create(
            contract_id=contract_id,
            defaults={
                "tenant_id": tenant_id,
                "error": text,
                "retry_us": horizon_us + RETRY_US,
            },
        )


@transaction.atomic
def close_contract(*, contract: Contract, horizon_us: int) -> int:
    """Append every revision that the evidence up to the horizon gives and that is not there yet.

    Returns how many. Raises BooksDivergeError where a recorded revision does not come out again.
    """
    document = case_document(contract, horizon_us)
    timeline = walk(read_case(document, TABLES), years=domain_contract(contract).years)
    years = {year.index: year for year in contract.years.all()}
    appended = 0
    for course in timeline.courses:
        appended += _record(contract, years[course.year.index], course, document)
    return appended


def _record(
    contract: Contract, year: ContractYear, course: YearCourse, document: dict[str, Any]
) -> int:
    recorded = {assessment.revision: assessment for assessment in year.assessments.all()}
    appended = 0
    for revision in course.revisions:
        columns = _columns(revision, course)
        known = recorded.get(revision.number)
        if known is None:
            known = Assessment.objects.create(
                tenant_id=contract.tenant_id,
                contract=contract,
                year=year,
                revision=revision.number,
                supersedes=recorded.get(revision.number - 1),
                inputs_digest=inputs_digest(document, revision.at_us),
                rules_version=RULES_VERSION,
                terms_version=version_in_force(contract),
                **columns,
            )
            recorded[revision.number] = known
            appended += 1
            _settle_grant(known, revision)
        elif any(getattr(known, name) != value for name, value in columns.items()):
            raise BooksDivergeError(
                f"{contract} {year} revision {revision.number} is recorded as {known}, "
                f"the evidence now gives {columns}"
            )
    return appended


def _columns(revision: Revision, course: YearCourse) -> dict[str, Any]:
    figures = revision.figures
    return {
        "as_of": from_us(revision.at_us),
        "zero_loss": figures.counts.zero_loss,
        "rollback": figures.counts.rollback,
        "excluded": figures.counts.excluded,
        "pending": figures.counts.pending,
        "outcome": figures.outcome,
        "credit": credit_as_json(figures.credit),
        "notes": notes_of(course, figures),
    }


def _settle_grant(assessment: Assessment, revision: Revision) -> None:
    """Met to missed grants, missed to met voids (R27); one grant in each chain (R33)."""
    year, credit = assessment.year, revision.figures.credit
    live = Grant.objects.filter(year=year, void=None).first()
    if credit is None and live is not None:
        GrantVoid.objects.create(
            tenant_id=assessment.tenant_id,
            grant=live,
            assessment=assessment,
            voided_at=assessment.as_of,
        )
    if credit is None or live is not None:
        return
    is_amount = isinstance(credit, Amount)
    num, den = (None, None) if is_amount else (int(part) for part in str(credit).split("/"))
    contract = domain_contract(assessment.contract)
    Grant.objects.create(
        tenant_id=assessment.tenant_id,
        contract=assessment.contract,
        year=year,
        assessment=assessment,
        chain=Grant.objects.filter(year=year).count() + 1,
        currency=contract.currency,
        exponent=contract.exponent,
        minor_units=credit.minor_units if isinstance(credit, Amount) else None,
        rate_num=num,
        rate_den=den,
        granted_at=assessment.as_of,
    )


def inputs_digest(document: dict[str, Any], as_of_us: int) -> str:
    """SHA-256 over all that an assessment rests on: the contract and what was received by then."""

    def known(entries: list[dict[str, Any]], name: str) -> list[str]:
        return sorted(
            sha256_hex(canonical_json(entry))
            for entry in entries
            if parse_time(entry[name]) <= as_of_us
        )

    return sha256_hex(
        canonical_json(
            {
                "contract": document["contract"],
                "events": known(document["events"], "recordedtime"),
                "exclusions": known(document["exclusions"], "recorded_at"),
                "registered": known(document["registered"], "registered_at"),
                "waived_gaps": known(document["waived_gaps"], "recorded_at"),
                "covered_runs": document.get("covered_runs", []),
            }
        )
    )
