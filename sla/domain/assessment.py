"""One year's figures and their outcome (R18-R20, R30, R32); when they count is not asked here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from sla.domain.exclusions import ExclusionReason
from sla.domain.incidents import Incident
from sla.domain.money import Amount, credit_of
from sla.domain.terms import Contract, Terms

Outcome = Literal["met", "missed", "no_failures", "too_few"]
YearState = Literal["open", "settling", "blocked", "closed", "restated"]


@dataclass(frozen=True, kw_only=True)
class Counts:
    """`excluded` ones count nowhere else; `counted` is neither excluded nor pending (R18)."""

    zero_loss: int = 0
    rollback: int = 0
    excluded: int = 0
    pending: int = 0

    @property
    def counted(self) -> int:
        return self.zero_loss + self.rollback

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            zero_loss=self.zero_loss + other.zero_loss,
            rollback=self.rollback + other.rollback,
            excluded=self.excluded + other.excluded,
            pending=self.pending + other.pending,
        )

    def __sub__(self, other: Counts) -> Counts:
        return Counts(
            zero_loss=self.zero_loss - other.zero_loss,
            rollback=self.rollback - other.rollback,
            excluded=self.excluded - other.excluded,
            pending=self.pending - other.pending,
        )

    @property
    def ratio(self) -> tuple[int, int] | None:
        """R19: no ratio without a counted incident."""
        return (self.zero_loss, self.counted) if self.counted else None


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What a closed year says; `credit` is a text for the rate of the next order (R30)."""

    counts: Counts
    outcome: Outcome
    credit: Amount | str | None

    @property
    def is_zero_base(self) -> bool:
        return self.outcome == "missed" and self.credit is None  # R32


def count_incidents(judged: Iterable[tuple[Incident, ExclusionReason | None]]) -> Counts:
    zero_loss = rollback = excluded = pending = 0
    for incident, reason in judged:
        verdict = incident.judgement.verdict
        if reason is not None:
            excluded += 1
        elif verdict == "pending":
            pending += 1
        elif verdict == "zero_loss":
            zero_loss += 1
        else:
            rollback += 1
    return Counts(zero_loss=zero_loss, rollback=rollback, excluded=excluded, pending=pending)


def outcome_of(counts: Counts, terms: Terms) -> Outcome:
    """R18-R20 in integers: exactly the target is met."""
    if counts.counted == 0:
        return "no_failures"
    if counts.counted < terms.min_incidents:
        return "too_few"
    is_met = counts.zero_loss * terms.target.den >= terms.target.num * counts.counted
    return "met" if is_met else "missed"


def assess(contract: Contract, year_index: int, counts: Counts) -> Figures:
    outcome = outcome_of(counts, contract.terms)
    credit = credit_of(contract, year_index) if outcome == "missed" else None
    return Figures(counts=counts, outcome=outcome, credit=credit)


def percent_text(zero_loss: int, counted: int) -> str | None:
    """Display only, truncated (R21): 89.96 shows 89.9."""
    if counted == 0:
        return None
    tenths = zero_loss * 1000 // counted
    return f"{tenths // 10}.{tenths % 10}"
