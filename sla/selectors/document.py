"""The replay document out of the rows that judging and closing wrote: what reconciling compares."""

from __future__ import annotations

from typing import Any

from runtime.events import canonical_json, format_time, sha256_hex
from sla.domain.case import read_case
from sla.domain.completeness import Sequences
from sla.domain.evidence import read_events
from sla.domain.terms import Year
from sla.instants import to_us
from sla.models import Contract, Judgement
from sla.selectors.evidence import case_document
from sla.selectors.incidents import current_judgements
from sla.selectors.years import YearFacts, year_facts
from sla.tables import TABLES


def books_document(contract: Contract, as_of_us: int) -> dict[str, Any]:
    """{incidents, years, digest} as the database has them once both sweeps reached `as_of_us`."""
    judgements = current_judgements().filter(incident__contract=contract)
    incidents = [_incident(judgement) for judgement in judgements]
    facts = year_facts(contract, as_of_us)
    noted = _waived_years(contract, facts, as_of_us)
    years = [_year(item, waived=item.year.index in noted) for item in facts]
    return {
        "incidents": incidents,
        "years": years,
        "digest": sha256_hex(canonical_json({"incidents": incidents, "years": years})),
    }


def _incident(judgement: Judgement) -> dict[str, Any]:
    incident = judgement.incident
    return {
        "run": incident.run,
        "first_event": incident.first_event,
        "occurred_at": format_time(to_us(incident.occurred_at)),
        "year": judgement.year.index if judgement.year else None,
        "failures": len(judgement.failure_ids),
        "verdict": judgement.verdict,
        "reasons": judgement.reasons,
        "lost_steps": judgement.lost_steps,
        "excluded": judgement.excluded or None,
    }


def _year(facts: YearFacts, *, waived: bool) -> dict[str, Any]:
    return {
        "index": facts.year.index,
        "start": format_time(to_us(facts.year.starts_at)),
        "end": format_time(to_us(facts.year.ends_at)),
        "state": facts.state,
        "revision": facts.revision,
        "counted": facts.counts.counted,
        "zero_loss": facts.counts.zero_loss,
        "rollback": facts.counts.rollback,
        "excluded": facts.counts.excluded,
        "pending": facts.counts.pending,
        "outcome": facts.outcome,
        "credit": facts.credit,
        "notes": ["waived_gap"] if waived else facts.notes,
    }


def _waived_years(contract: Contract, facts: list[YearFacts], as_of_us: int) -> set[int]:
    """Years that have not closed and that a waived gap touches as things stand (R26)."""
    unclosed = [item.year for item in facts if item.assessment is None]
    if not unclosed or not contract.waivers.exists():
        return set()
    case = read_case(case_document(contract, as_of_us), TABLES)
    sequences = Sequences()
    for reading in read_events(case.events, as_of_us):
        sequences.add(reading)
    for waiver in case.waivers:
        sequences.waive(waiver)
    spans = [
        Year(index=year.index, start_us=to_us(year.starts_at), end_us=to_us(year.ends_at))
        for year in unclosed
    ]
    return {span.index for span in spans if sequences.verdict_on(span)[1]}
