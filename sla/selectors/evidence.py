"""Evidence out of the database for the rules: a run's, a contract's, and a case of all of it.

The rules themselves are in sla.domain; nothing is decided here.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

from django.db.models import Min, QuerySet

from fleet.models import Event, EventAside
from fleet.models.choices import AsideReason, EventStatus
from runtime.events import format_time, problems_of
from sla.domain.coverage import (
    AGENT_SOURCE,
    Coverage,
    RunOrigin,
    Scope,
    cluster_of,
    coverage_of,
)
from sla.domain.evidence import record_of
from sla.domain.run import RunEvidence
from sla.models import Contract
from sla.selectors.contracts import contract_document, scopes_of
from sla.selectors.hand import hand_document

RUN_TYPES: Final = (
    "run.started",
    "run.support_changed",
    "run.progress",
    "run.witnessed",
    "run.finished",
    "failure.detected",
    "recovery.completed",
    "migration.completed",
)
CONFIRMED: Final = "prediction.confirmed"
# Stands in a contract's case for an event of a run that another contract covers: its number in
# its source's sequence counts, what it says is not this contract's to know.
FOREIGN_TYPE: Final = "event.of.another.contract"


def run_evidence(run: str, horizon_us: int) -> RunEvidence:
    """Everything in force about a run of the tenant in scope, received up to the horizon."""
    evidence = RunEvidence(run=run)
    events = Event.objects.filter(
        run=run, type__in=RUN_TYPES, status=EventStatus.ACCEPTED, received_us__lte=horizon_us
    )
    for body, received_us in events.values_list("body", "received_us").iterator():
        evidence.add(record_of(json.loads(bytes(body)), received_us))
    return evidence


def confirmed_migrations(horizon_us: int) -> frozenset[str]:
    """Ids of the migrations that confirmed predictions name (R7)."""
    confirmed = Event.objects.filter(
        type=CONFIRMED, status=EventStatus.ACCEPTED, received_us__lte=horizon_us
    )
    named = {_migration_of(body) for body in confirmed.values_list("body", flat=True)}
    return frozenset(name for name in named if name)


def named_migrations(confirmed: QuerySet[Event]) -> list[tuple[str, int]]:
    """(run, receipt instant) of each migration that these confirmed predictions name."""
    named: dict[str, int] = {}
    for body, received_us in confirmed.values_list("body", "received_us"):
        migration = _migration_of(body)
        if migration is not None:
            named[migration] = max(received_us, named.get(migration, 0))
    moved = Event.objects.filter(type="migration.completed", event_id__in=named)
    return [(run, named[event]) for run, event in moved.values_list("run", "event_id")]


def _migration_of(body: bytes | memoryview[int]) -> str | None:
    data = json.loads(bytes(body)).get("data")
    named = data.get("migration_event") if isinstance(data, dict) else None
    return named if isinstance(named, str) else None


def origins(horizon_us: int, runs: Iterable[str] | None = None) -> dict[str, RunOrigin]:
    """Where and when each run began and which contract it names (R40)."""
    events = Event.objects.filter(
        type__in=RUN_TYPES, status=EventStatus.ACCEPTED, received_us__lte=horizon_us
    )
    if runs is not None:
        events = events.filter(run__in=list(runs))
    found = {
        row["run"]: RunOrigin(
            run=row["run"], named=None, cluster=cluster_of(row["at"]), instant_us=row["first_us"]
        )
        for row in events.values("run").annotate(first_us=Min("time_us"), at=Min("source"))
    }
    starts = events.filter(type="run.started").order_by("-time_us", "-event_id", "-source")
    for run, body, source, time_us in starts.values_list("run", "body", "source", "time_us"):
        data = json.loads(bytes(body)).get("data")
        named = data.get("contract") if isinstance(data, dict) else None
        found[run] = RunOrigin(
            run=run,
            named=named if isinstance(named, str) else None,
            cluster=cluster_of(source),
            instant_us=time_us,
        )  # the last one written is the first by (time, id)
    return found


def coverages(
    horizon_us: int, scopes: list[Scope], runs: Iterable[str] | None = None
) -> dict[str, Coverage]:
    return {run: coverage_of(origin, scopes) for run, origin in origins(horizon_us, runs).items()}


def case_document(contract: Contract, as_of_us: int) -> dict[str, Any]:
    """The contract's case as `manage.py replay` reads it: what was received up to `as_of_us`."""
    covered = coverages(as_of_us, scopes_of(contract.tenant_id))
    ours = {run for run, coverage in covered.items() if coverage.number == contract.number}
    refused = sorted(run for run in ours if covered[run].refused)
    document: dict[str, Any] = {
        "contract": contract_document(contract),
        "as_of": format_time(as_of_us),
        "events": _events(contract, ours, as_of_us),
        **hand_document(contract, as_of_us),
    }
    if refused:
        document["covered_runs"] = refused
    return document


def _sources(contract: Contract, ours: set[str], as_of_us: int) -> list[str]:
    """The sources that touch the contract (R26): its runs', and its clusters' agents."""
    received = Event.objects.filter(received_us__lte=as_of_us)
    touching = set(received.filter(run__in=ours).values_list("source", flat=True).distinct())
    clusters = set(contract.clusters)
    for source in received.values_list("source", flat=True).distinct():
        agent = AGENT_SOURCE.fullmatch(source)
        if agent is not None and (not clusters or agent.group(1) in clusters):
            touching.add(source)
    return sorted(touching)


def _events(contract: Contract, ours: set[str], as_of_us: int) -> list[dict[str, Any]]:
    sources = _sources(contract, ours, as_of_us)
    events = []
    rows = Event.objects.filter(source__in=sources, received_us__lte=as_of_us)
    for event in rows.order_by("received_us", "id").iterator():
        document = json.loads(bytes(event.body)) | {"recordedtime": format_time(event.received_us)}
        foreign = event.type in RUN_TYPES and event.run not in ours
        events.append(_redacted(document) if foreign else document)
    aside = EventAside.objects.filter(source__in=sources, received_us__lte=as_of_us)
    for kept in aside.order_by("received_us", "id").iterator():
        events.append(_kept_aside(kept, ours))
    return events


def _kept_aside(kept: EventAside, ours: set[str]) -> dict[str, Any]:
    """A body without effect but for its sequence number; unreadable JSON leaves only that."""
    try:
        document = json.loads(bytes(kept.body))
    except ValueError:
        document = None
    is_foreign = bool(kept.run) and kept.run not in ours
    is_unstorable = kept.reason == AsideReason.INVALID and not problems_of(document)
    if not isinstance(document, dict) or is_foreign or is_unstorable:
        document = {"source": kept.source}
        if kept.time_us is not None:
            document["time"] = format_time(kept.time_us)
        if kept.sequence is not None:
            document["sequence"] = str(kept.sequence)
    return document | {"recordedtime": format_time(kept.received_us)}


def _redacted(document: dict[str, Any]) -> dict[str, Any]:
    kept = ("specversion", "id", "source", "time", "subject", "sequence", "recordedtime")
    redacted = {name: document[name] for name in kept if name in document}
    return redacted | {"type": FOREIGN_TYPE, "subject": "another contract's run"}
