"""Everything received up to one instant, and the incidents and counts that follow from it.

It is fed in the order of receipt and asked at an instant; it closes nothing.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field

from sla.domain.assessment import Counts, count_incidents
from sla.domain.calendar import year_at
from sla.domain.completeness import Sequences, Waiver
from sla.domain.evidence import Confirmed, Reading, Status
from sla.domain.exclusions import Exclusion, ExclusionReason, Registration, exclusion_of
from sla.domain.incidents import Cache, Incident, incidents_of
from sla.domain.run import RunEvidence
from sla.domain.terms import Contract

Judged = tuple[Incident, ExclusionReason | None]


@dataclass
class Books:
    """The state of one contract's evidence.

    `covered_runs`: runs that are the contract's although their first start names another that
    their tenant does not own (R40).
    """

    contract: Contract
    covered_runs: frozenset[str] = frozenset()
    sequences: Sequences = field(default_factory=Sequences)
    statuses: Counter[Status] = field(default_factory=Counter)
    _runs: dict[str, RunEvidence] = field(default_factory=dict)
    _judged: dict[str, list[Judged]] = field(default_factory=dict)
    _tallies: dict[str, dict[int | None, Counts]] = field(default_factory=dict)
    _totals: dict[int | None, Counts] = field(default_factory=lambda: defaultdict(Counts))
    _caches: dict[str, Cache] = field(default_factory=lambda: defaultdict(dict))
    _deadlines: dict[str, int] = field(default_factory=dict)
    _stale: set[str] = field(default_factory=set)
    _confirmed: set[str] = field(default_factory=set)
    _exclusions: list[Exclusion] = field(default_factory=list)
    _registrations: list[Registration] = field(default_factory=list)

    def take(self, entry: Reading | Exclusion | Registration | Waiver) -> None:
        match entry:
            case Reading():
                self._take_reading(entry)
            case Waiver():
                self.sequences.waive(entry)
            case Exclusion():
                self._exclusions.append(entry)
                self._stale.update(self._runs)
            case Registration():
                self._registrations.append(entry)
                self._stale.update(self._runs)

    def _take_reading(self, reading: Reading) -> None:
        self.statuses[reading.status] += 1
        self.sequences.add(reading)
        record = reading.record
        if record is None:
            return
        if isinstance(record, Confirmed):
            if record.migration_event is not None:
                self._confirmed.add(record.migration_event)
                if self.contract.terms.count_confirmed_predictions:
                    self._stale.update(self._runs)
            return
        run = self._runs.get(record.run)
        if run is None:
            run = self._runs[record.run] = RunEvidence(run=record.run)
        if run.add(record):
            self._stale.add(record.run)

    def judge(self, now_us: int) -> None:
        """Judge again the runs of which something came in, or whose time ran out (R5)."""
        self._stale.update(run for run, at_us in self._deadlines.items() if at_us <= now_us)
        for name in sorted(self._stale):
            self._judge_run(self._runs[name], now_us)
        self._stale.clear()

    def _judge_run(self, run: RunEvidence, now_us: int) -> None:
        found: list[Incident] = []
        if run.run in self.covered_runs or run.belongs_to(self.contract.number):  # R40
            cache = self._caches[run.run]
            confirmed = frozenset(self._confirmed)
            found = incidents_of(run, confirmed, self.contract.terms, now_us, cache)
        judged = [
            (incident, exclusion_of(incident, run, self._exclusions, self._registrations))
            for incident in found
        ]
        self._judged[run.run] = judged
        by_year: dict[int | None, list[Judged]] = defaultdict(list)
        for item in judged:
            year = year_at(self.contract.years, item[0].occurred_us)
            by_year[year.index if year else None].append(item)
        for index, counts in self._tallies.get(run.run, {}).items():
            self._totals[index] -= counts
        self._tallies[run.run] = {index: count_incidents(items) for index, items in by_year.items()}
        for index, counts in self._tallies[run.run].items():
            self._totals[index] += counts
        deadlines = [i.judgement.deadline_us for i in found if i.judgement.deadline_us is not None]
        self._deadlines.pop(run.run, None)
        if deadlines:
            self._deadlines[run.run] = min(deadlines)

    def counts(self, year_index: int) -> Counts:
        """As of the last `judge`."""
        return self._totals[year_index]

    def next_deadline(self) -> int | None:
        """The first instant at which a pending incident becomes a rollback by itself (R5)."""
        return min(self._deadlines.values(), default=None)

    def judged(self) -> list[Judged]:
        """Every incident with its exclusion, in order, as of the last `judge`."""
        return sorted(
            (item for items in self._judged.values() for item in items),
            key=lambda item: item[0].order,
        )
