"""Judging runs when something of them came in: appends judgements, never edits one.

The verdicts are those of sla.domain on the evidence up to a horizon (fleet.locks.fix_horizon).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import F, Max, Q

from fleet.locks import fix_horizon
from fleet.models import Event, Tenant
from fleet.tenancy import every_tenant, tenant_scope
from runtime.events import LARGEST_NUMBER
from sla.domain.calendar import year_at
from sla.domain.exclusions import exclusion_of
from sla.domain.incidents import Incident as DomainIncident
from sla.domain.incidents import incidents_of
from sla.domain.terms import RULES_VERSION
from sla.instants import from_us
from sla.models import Contract, Incident, JudgedRun, Judgement, SweepCursor
from sla.selectors.contracts import domain_contract, scopes_of
from sla.selectors.evidence import (
    CONFIRMED,
    RUN_TYPES,
    confirmed_migrations,
    coverages,
    named_migrations,
    run_evidence,
)
from sla.selectors.hand import exclusions_of, registrations_of

log = logging.getLogger("sla.judging")
RETRY_US = 60_000_000
Identity = tuple[int, str, str, str, str]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """What one sweep did; `failed` runs are tried again a minute later."""

    judged: int
    failed: int
    appended: int


def judge_due_runs() -> Sweep:
    """Judge every run of which something was received, or whose deadline has passed.

    Safe to run many times at once: a run is claimed by its row's lock, and one that another
    worker holds is skipped. A run that cannot be judged stops no other.
    """
    horizon_us = fix_horizon()
    with every_tenant():  # sweeps look after all tenants
        tenants = list(Tenant.objects.order_by("pk").values_list("pk", flat=True))
    judged = failed = appended = 0
    for tenant_id in tenants:
        mark_touched_runs(tenant_id=tenant_id, horizon_us=horizon_us)
        for run in _due_runs(tenant_id, horizon_us):
            try:
                count = _judge_claimed(tenant_id, run, horizon_us)
            except Exception as error:
                log.exception("run %s of tenant %s was not judged", run, tenant_id)
                _note_failure(tenant_id, run, horizon_us, error)
                failed += 1
            else:
                judged += count is not None
                appended += count or 0
    return Sweep(judged=judged, failed=failed, appended=appended)


def mark_touched_runs(*, tenant_id: int, horizon_us: int) -> None:
    """Look through what the tenant received since the last look, for the runs it is about."""
    with tenant_scope(tenant_id):
        cursor, _ = SweepCursor.objects.get_or_create(tenant_id=tenant_id)
        cursor = SweepCursor.objects.select_for_update().get(pk=cursor.pk)
        if cursor.horizon_us >= horizon_us:
            return
        received = Event.objects.filter(
            received_us__gt=cursor.horizon_us, received_us__lte=horizon_us
        )
        touched: dict[str, int] = {
            row["run"]: row["last_us"]
            for row in received.filter(type__in=RUN_TYPES)
            .order_by()
            .values("run")
            .annotate(last_us=Max("received_us"))
        }
        for run, received_us in named_migrations(received.filter(type=CONFIRMED)):
            touched[run] = max(received_us, touched.get(run, 0))
        JudgedRun.objects.bulk_create(
            [
                JudgedRun(tenant_id=tenant_id, run=run, touched_us=touched_us)
                for run, touched_us in sorted(touched.items())
            ],
            update_conflicts=True,
            update_fields=["touched_us"],
            unique_fields=["tenant", "run"],
        )
        SweepCursor.objects.filter(pk=cursor.pk).update(horizon_us=horizon_us)


def _is_due(horizon_us: int) -> Q:
    touched = Q(touched_us__gt=F("judged_us"))
    overdue = Q(deadline_us__lte=horizon_us)
    return (touched | overdue) & Q(retry_us__lte=horizon_us)


def _due_runs(tenant_id: int, horizon_us: int) -> list[str]:
    with tenant_scope(tenant_id):
        due = JudgedRun.objects.filter(_is_due(horizon_us)).order_by("touched_us", "pk")
        return list(due.values_list("run", flat=True))


def _judge_claimed(tenant_id: int, run: str, horizon_us: int) -> int | None:
    """None where another worker has it, or has just done it."""
    with tenant_scope(tenant_id):
        claim = JudgedRun.objects.select_for_update(skip_locked=True)
        row = claim.filter(_is_due(horizon_us), run=run, judged_us__lt=horizon_us).first()
        if row is None:
            return None
        return judge_run(row=row, horizon_us=horizon_us)


def _note_failure(tenant_id: int, run: str, horizon_us: int, error: Exception) -> None:
    text = f"{type(error).__name__}: {error}"[:1000]
    with tenant_scope(tenant_id):
        JudgedRun.objects.filter(run=run).update(error=text, retry_us=horizon_us + RETRY_US)


@transaction.atomic
def judge_run(*, row: JudgedRun, horizon_us: int) -> int:
    """Judge one run (its `row` is locked) on what was received up to the horizon.

    Returns how many judgements were appended; none where nothing differs.
    """
    coverage = coverages(horizon_us, scopes_of(row.tenant_id), [row.run]).get(row.run)
    contract = None
    if coverage is not None and coverage.number is not None:
        contract = Contract.objects.get(number=coverage.number)
    wanted: dict[Identity, dict[str, Any]] = {}
    deadline_us: int | None = None
    found: list[tuple[Identity, DomainIncident]] = []
    if contract is not None:
        wanted, found, deadline_us = _judged_incidents(contract, row.run, horizon_us)
    appended = _append(row, wanted, found, horizon_us)
    JudgedRun.objects.filter(pk=row.pk).update(
        judged_us=horizon_us, deadline_us=deadline_us, error="", retry_us=0
    )
    return appended


def _judged_incidents(
    contract: Contract, run: str, horizon_us: int
) -> tuple[dict[Identity, dict[str, Any]], list[tuple[Identity, DomainIncident]], int | None]:
    known = domain_contract(contract)
    evidence = run_evidence(run, horizon_us)
    confirmed: frozenset[str] = frozenset()
    if known.terms.count_confirmed_predictions:
        confirmed = confirmed_migrations(horizon_us)
    exclusions = exclusions_of(contract, horizon_us)
    registrations = registrations_of(contract, horizon_us)
    years = {year.index: year.pk for year in contract.years.all()}
    wanted, found, deadlines = {}, [], []
    for incident in incidents_of(evidence, confirmed, known.terms, horizon_us):
        year = year_at(known.years, incident.occurred_us)
        excluded = exclusion_of(incident, evidence, exclusions, registrations)
        identity = _identity(contract.pk, incident)
        wanted[identity] = _columns(incident, years[year.index] if year else None, excluded)
        found.append((identity, incident))
        if incident.judgement.deadline_us is not None:
            deadlines.append(incident.judgement.deadline_us)
    return wanted, found, min(deadlines, default=None)


def _identity(contract_id: int, incident: DomainIncident) -> Identity:
    return (
        contract_id,
        incident.run,
        incident.kind,
        incident.first_source,
        incident.first_event,
    )


def _columns(incident: DomainIncident, year_id: int | None, excluded: str | None) -> dict[str, Any]:
    judgement = incident.judgement
    return {
        "is_withdrawn": False,
        "year_id": year_id,
        "verdict": judgement.verdict,
        "reasons": list(judgement.reasons),
        "lost_steps": min(judgement.lost_steps, LARGEST_NUMBER),
        "excluded": excluded or "",
        "epochs": list(incident.epochs),
        "failure_ids": sorted(incident.failure_ids),
        "nodes": sorted(incident.nodes),
        "evidence": [list(item) for item in incident.evidence],
        "rules_version": RULES_VERSION,
    }


def _append(
    row: JudgedRun,
    wanted: dict[Identity, dict[str, Any]],
    found: Sequence[tuple[Identity, DomainIncident]],
    horizon_us: int,
) -> int:
    incidents = _incident_rows(row, found)
    last = {
        judgement.incident_id: judgement
        for judgement in Judgement.objects.filter(incident__run=row.run)
        .order_by("incident_id", "-number")
        .distinct("incident_id")
    }
    new = []
    for identity, incident in incidents.items():
        columns = wanted.get(identity)
        before = last.get(incident.pk)
        if columns is None:
            if before is None or before.is_withdrawn:
                continue
            columns = _withdrawn(before)
        elif before is not None and all(
            getattr(before, name) == value for name, value in columns.items()
        ):
            continue
        new.append(
            Judgement(
                tenant_id=row.tenant_id,
                incident=incident,
                number=before.number + 1 if before else 1,
                judged_at=from_us(horizon_us),
                **columns,
            )
        )
    Judgement.objects.bulk_create(new)
    return len(new)


def _withdrawn(before: Judgement) -> dict[str, Any]:
    """Later evidence shows that there is no such incident, or that it is part of another."""
    return {
        "is_withdrawn": True,
        "year_id": before.year_id,
        "verdict": before.verdict,
        "excluded": before.excluded,
        "rules_version": RULES_VERSION,
    }


def _incident_rows(
    row: JudgedRun, found: Sequence[tuple[Identity, DomainIncident]]
) -> dict[Identity, Incident]:
    """Every incident that this run has or had; new ones are made."""

    def known() -> dict[Identity, Incident]:
        rows = Incident.objects.filter(run=row.run)
        return {(r.contract_id, r.run, r.kind, r.first_source, r.first_event): r for r in rows}

    rows = known()
    missing = [(identity, incident) for identity, incident in found if identity not in rows]
    if not missing:
        return rows
    Incident.objects.bulk_create(
        Incident(
            tenant_id=row.tenant_id,
            contract_id=identity[0],
            run=incident.run,
            kind=incident.kind,
            first_source=incident.first_source,
            first_event=incident.first_event,
            occurred_at=from_us(incident.occurred_us),
        )
        for identity, incident in missing
    )
    return known()
