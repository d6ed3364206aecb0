"""The whole chain from events to credit on one case, as the document that replay prints."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from runtime.events import canonical_json, format_time, sha256_hex
from sla.domain.assessment import Figures
from sla.domain.books import Judged
from sla.domain.calendar import year_at
from sla.domain.completeness import Waiver
from sla.domain.evidence import STATUSES, read_events
from sla.domain.exclusions import Exclusion, Registration
from sla.domain.money import credit_as_json
from sla.domain.terms import Contract, Year
from sla.domain.timeline import Entry, Timeline, YearCourse


@dataclass(frozen=True, kw_only=True)
class Case:
    """A contract, everything received about it, and the instant at which it is looked at."""

    contract: Contract
    as_of_us: int
    events: Sequence[object]
    exclusions: tuple[Exclusion, ...] = ()
    registrations: tuple[Registration, ...] = ()
    waivers: tuple[Waiver, ...] = ()
    covered_runs: frozenset[str] = frozenset()


def walk(case: Case, years: tuple[Year, ...] = ()) -> Timeline:
    """The contract's years and incidents as they stand at the case's instant.

    `years`: as they were fixed when the contract was opened, in place of the case's own.
    """
    entries: list[tuple[int, Entry]] = [
        (reading.received_us, reading) for reading in read_events(case.events, case.as_of_us)
    ]
    by_hand: list[Exclusion | Registration | Waiver] = [
        *case.exclusions,
        *case.registrations,
        *case.waivers,
    ]
    entries.extend((entry.recorded_us, entry) for entry in by_hand)
    timeline = Timeline(
        contract=replace(case.contract, years=years) if years else case.contract,
        as_of_us=case.as_of_us,
        covered_runs=case.covered_runs,
    )
    timeline.run(entries)
    return timeline


def replay(case: Case) -> dict[str, Any]:
    return document_of(walk(case))


def document_of(timeline: Timeline) -> dict[str, Any]:
    """The document of wire.md: incidents, years, what became of the events, and the digest."""
    incidents = [incident_as_json(timeline.contract, item) for item in timeline.books.judged()]
    years = [year_as_json(timeline, course) for course in timeline.courses]
    statuses = timeline.books.statuses
    return {
        "incidents": incidents,
        "years": years,
        "events": {status: statuses[status] for status in STATUSES},
        "digest": sha256_hex(canonical_json({"incidents": incidents, "years": years})),
    }


def incident_as_json(contract: Contract, item: Judged) -> dict[str, Any]:
    incident, excluded = item
    year = year_at(contract.years, incident.occurred_us)
    return {
        "run": incident.run,
        "first_event": incident.first_event,
        "occurred_at": format_time(incident.occurred_us),
        "year": year.index if year else None,
        "failures": len(incident.failure_ids),
        "verdict": incident.judgement.verdict,
        "reasons": list(incident.judgement.reasons),
        "lost_steps": incident.judgement.lost_steps,
        "excluded": excluded,
    }


def year_as_json(timeline: Timeline, course: YearCourse) -> dict[str, Any]:
    """A closed year shows its last revision; before that, things as they stand."""
    year = course.year
    closed: Figures | None = course.revisions[-1].figures if course.revisions else None
    counts = closed.counts if closed else timeline.books.counts(year.index)
    return {
        "index": year.index,
        "start": format_time(year.start_us),
        "end": format_time(year.end_us),
        "state": course.state_at(timeline.as_of_us),
        "revision": len(course.revisions),
        "counted": counts.counted,
        "zero_loss": counts.zero_loss,
        "rollback": counts.rollback,
        "excluded": counts.excluded,
        "pending": counts.pending,
        "outcome": closed.outcome if closed else None,
        "credit": credit_as_json(closed.credit) if closed else None,
        "notes": notes_of(course, closed),
    }


def notes_of(course: YearCourse, closed: Figures | None) -> list[str]:
    """Sorted; `waived_gap` is settled at the close (R26), `zero_base` belongs to a result (R32)."""
    notes = []
    if course.waived_gap:
        notes.append("waived_gap")
    if closed and closed.is_zero_base:
        notes.append("zero_base")
    return notes
