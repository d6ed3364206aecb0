"""Incidents as they stand: each with its last judgement."""

from __future__ import annotations

from django.db.models import Count, Exists, OuterRef, QuerySet

from fleet.models import Event
from runtime.events import format_time
from sla.domain.assessment import Counts
from sla.models import Contract, Judgement


def current_judgements() -> QuerySet[Judgement]:
    """The last judgement of every incident that still is one, in order of occurrence."""
    later = Judgement.objects.filter(
        incident_id=OuterRef("incident_id"), number__gt=OuterRef("number")
    )
    return (
        Judgement.objects.filter(~Exists(later), is_withdrawn=False)
        .select_related("incident", "incident__contract", "year")
        .order_by("incident__occurred_at", "incident__run", "incident__first_event", "incident_id")
    )


def counts_by_year(contract: Contract) -> dict[int | None, Counts]:
    """Figures as they stand, by the index of the year; None for incidents outside every year."""
    found: dict[int | None, dict[str, int]] = {}
    rows = current_judgements().filter(incident__contract=contract).order_by()
    grouped = rows.values_list("year__index", "verdict", "excluded").annotate(Count("pk"))
    for index, verdict, excluded, count in grouped:
        tally = found.setdefault(index, {})
        key = "excluded" if excluded else verdict
        tally[key] = tally.get(key, 0) + count
    return {index: Counts(**tally) for index, tally in found.items()}


def evidence_of(judgement: Judgement) -> list[dict[str, str]]:
    """The events that a judgement rests on, in its order, as they lie in the log."""
    identities = [(source, event_id) for source, event_id in judgement.evidence]
    rows = Event.objects.filter(
        source__in={source for source, _ in identities},
        event_id__in={event_id for _, event_id in identities},
    )
    events = {
        (event.source, event.event_id): event
        for event in rows.only("source", "event_id", "type", "time_us", "body_sha256")
    }
    return [
        {
            "source": event.source,
            "id": event.event_id,
            "type": event.type,
            "time": format_time(event.time_us),
            "sha256": event.body_sha256,
        }
        for event in (events[identity] for identity in identities if identity in events)
    ]
