"""A contract year as it stands: its last assessment, or before the close the running figures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sla.domain.assessment import Counts, YearState, percent_text
from sla.domain.timeline import state_of
from sla.instants import to_us
from sla.models import Assessment, Contract, ContractYear
from sla.selectors.contracts import grace_of, version_in_force
from sla.selectors.incidents import counts_by_year


@dataclass(frozen=True, kw_only=True)
class YearFacts:
    """`assessment` is None until the year closes; so are `outcome` and `credit`."""

    year: ContractYear
    state: YearState
    revision: int
    counts: Counts
    outcome: str | None
    credit: dict[str, Any] | None
    notes: list[str]
    assessment: Assessment | None

    @property
    def ratio(self) -> str | None:
        return f"{self.counts.zero_loss}/{self.counts.counted}" if self.counts.counted else None

    @property
    def percent(self) -> str | None:
        """Display only, truncated (R21)."""
        return percent_text(self.counts.zero_loss, self.counts.counted)


def year_facts(contract: Contract, now_us: int) -> list[YearFacts]:
    """The years that have started by `now_us`, in order."""
    running = counts_by_year(contract)
    last: dict[int, Assessment] = {}
    for assessment in contract.assessments.order_by("year_id", "revision"):
        last[assessment.year_id] = assessment
    grace_us = grace_of(version_in_force(contract).terms)
    return [
        _facts(year, last.get(year.pk), running.get(year.index, Counts()), (now_us, grace_us))
        for year in contract.years.order_by("index")
        if to_us(year.starts_at) <= now_us
    ]


def _facts(
    year: ContractYear, last: Assessment | None, running: Counts, clock: tuple[int, int]
) -> YearFacts:
    now_us, grace_us = clock
    revision = last.revision if last else 0
    end_us = to_us(year.ends_at)
    counts = running
    if last is not None:
        counts = Counts(
            zero_loss=last.zero_loss,
            rollback=last.rollback,
            excluded=last.excluded,
            pending=last.pending,
        )
    return YearFacts(
        year=year,
        state=state_of(revision, end_us=end_us, grace_end_us=end_us + grace_us, now_us=now_us),
        revision=revision,
        counts=counts,
        outcome=last.outcome if last else None,
        credit=last.credit if last else None,
        notes=list(last.notes) if last else [],
        assessment=last,
    )
