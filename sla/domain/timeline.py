"""When a year closes and when it is restated (R25-R27), walked over receipt instants.

The walk only looks at instants from the first possible close on; before it, evidence is gathered
without being judged. Runs are judged again when something about them came in.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass, field

from sla.domain.assessment import Counts, Figures, YearState, assess
from sla.domain.books import Books
from sla.domain.completeness import Waiver
from sla.domain.evidence import Reading
from sla.domain.exclusions import Exclusion, Registration
from sla.domain.terms import Contract, Year

Entry = Reading | Exclusion | Registration | Waiver


@dataclass(frozen=True, kw_only=True)
class Revision:
    """One assessment of a year: made at `at_us`, `number` counts from 1."""

    number: int
    at_us: int
    figures: Figures


def state_of(revisions: int, *, end_us: int, grace_end_us: int, now_us: int) -> YearState:
    """R25: a year that has not closed once its grace has passed is blocked."""
    if revisions:
        return "closed" if revisions == 1 else "restated"
    if now_us < end_us:
        return "open"
    return "settling" if now_us < grace_end_us else "blocked"


@dataclass
class YearCourse:
    """What became of one year so far."""

    year: Year
    grace_end_us: int
    revisions: list[Revision] = field(default_factory=list)
    waived_gap: bool = False

    @property
    def closed_us(self) -> int | None:
        return self.revisions[0].at_us if self.revisions else None

    def state_at(self, now_us: int) -> YearState:
        return state_of(
            len(self.revisions),
            end_us=self.year.end_us,
            grace_end_us=self.grace_end_us,
            now_us=now_us,
        )


@dataclass
class Timeline:
    """Entries go in by their instants; afterwards `courses` and `books` stand at `as_of_us`."""

    contract: Contract
    as_of_us: int
    covered_runs: frozenset[str] = frozenset()
    books: Books = field(init=False)
    courses: list[YearCourse] = field(init=False)

    def __post_init__(self) -> None:
        self.books = Books(contract=self.contract, covered_runs=self.covered_runs)
        self.courses = [
            YearCourse(year=year, grace_end_us=year.end_us + self.contract.terms.evidence_grace_us)
            for year in self.contract.years
            if year.start_us <= self.as_of_us
        ]

    def run(self, entries: Iterable[tuple[int, Entry]]) -> None:
        """Walk to `as_of_us`; entries are (instant at which it was recorded, entry)."""
        queue = sorted(
            ((at_us, entry) for at_us, entry in entries if at_us <= self.as_of_us),
            key=lambda item: item[0],
        )
        instants = {at_us for at_us, _ in queue}
        instants.update(c.grace_end_us for c in self.courses if c.grace_end_us <= self.as_of_us)
        agenda = sorted(instants)
        place = 0
        while agenda:
            now_us = heapq.heappop(agenda)
            received = False
            while place < len(queue) and queue[place][0] <= now_us:
                entry = queue[place][1]
                self.books.take(entry)
                received |= not isinstance(entry, Waiver)
                place += 1
            self._settle(now_us, agenda, received=received)
        self.books.judge(self.as_of_us)
        self._settle_notes()

    def _settle(self, now_us: int, agenda: list[int], *, received: bool) -> None:
        due = [c for c in self.courses if c.closed_us is None and c.grace_end_us <= now_us]
        closed = [c for c in self.courses if received and self._may_restate(c, now_us)]
        if not due and not closed:
            return
        self.books.judge(now_us)
        for course in closed:
            self._restate(course, now_us)
        for course in due:
            self._close(course, now_us)
        if any(course.closed_us is None for course in due):
            deadline_us = self.books.next_deadline()
            if deadline_us is not None and now_us < deadline_us <= self.as_of_us:
                heapq.heappush(agenda, deadline_us)

    def _may_restate(self, course: YearCourse, now_us: int) -> bool:
        closed_us = course.closed_us
        limit_us = self.contract.terms.restatement_us
        return closed_us is not None and closed_us < now_us <= closed_us + limit_us  # R27

    def _close(self, course: YearCourse, now_us: int) -> None:
        counts = self.books.counts(course.year.index)
        blocked, waived = self.books.sequences.verdict_on(course.year)
        if blocked or counts.pending:
            return
        course.waived_gap = waived
        self._revise(course, now_us, counts)

    def _restate(self, course: YearCourse, now_us: int) -> None:
        counts = self.books.counts(course.year.index)
        figures = assess(self.contract, course.year.index, counts)
        if figures != course.revisions[-1].figures:
            self._revise(course, now_us, counts)

    def _revise(self, course: YearCourse, now_us: int, counts: Counts) -> None:
        course.revisions.append(
            Revision(
                number=len(course.revisions) + 1,
                at_us=now_us,
                figures=assess(self.contract, course.year.index, counts),
            )
        )

    def _settle_notes(self) -> None:
        """A year that has not closed bears the note of a waived gap as things stand (R26)."""
        for course in self.courses:
            if course.closed_us is None:
                course.waived_gap = self.books.sequences.verdict_on(course.year)[1]
