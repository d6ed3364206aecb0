"""Incidents as they stand: each with its last judgement."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, QuerySet

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
    for index, verdict, excluded in rows.values_list("year__index", "verdict", "excluded"):
        tally = found.setdefault(index, dict.fromkeys(("zero_loss", "rollback", "pending"), 0))
        key = "excluded" if excluded else verdict
        tally[key] = tally.get(key, 0) + 1
    return {index: Counts(**tally) for index, tally in found.items()}
