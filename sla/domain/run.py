"""The evidence of one run, gathered by epoch and by source as it comes in; it judges nothing."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from sla.domain.evidence import (
    Failure,
    Finished,
    Movement,
    Progress,
    Record,
    Started,
)
from sla.domain.verdict import Episode, largest


@dataclass
class RunEvidence:
    """Everything in force about one run. What is read from it does not depend on arrival (R13)."""

    run: str
    failures: dict[int, list[Failure]] = field(default_factory=lambda: defaultdict(list))
    movements: dict[int, list[Movement]] = field(default_factory=lambda: defaultdict(list))
    progress: dict[str, list[Progress]] = field(default_factory=lambda: defaultdict(list))
    seen_committed: dict[int, int] = field(default_factory=dict)
    starts: list[Started] = field(default_factory=list)
    finishes: list[Finished] = field(default_factory=list)
    drops: dict[str, list[tuple[Progress, Progress]]] = field(default_factory=dict)
    # How often something about an epoch came in: what was judged of it before that is stale.
    versions: dict[int, int] = field(default_factory=dict)

    def add(self, record: Record) -> bool:
        """Whether the incidents may differ with it; ordinary progress changes none."""
        match record:
            case Failure():
                self.failures[record.epoch].append(record)
                self._see(record.epoch, record.committed_step)
            case Progress():
                self._see(record.epoch, record.committed_step)
                return self._add_progress(record)
            case Movement():
                self.movements[record.from_epoch].append(record)
                self._stale(record.from_epoch)
            case Started():
                self.starts.append(record)
            case Finished():
                self.finishes.append(record)
            case _:
                return False
        return True

    def _add_progress(self, report: Progress) -> bool:
        reports = self.progress[report.source]
        bisect.insort(reports, report, key=_progress_order)
        is_plain = reports[-1] is report and (
            len(reports) == 1 or reports[-2].committed_step <= report.committed_step
        )
        if not is_plain:
            self.drops[report.source] = drops_of(reports)
        epoch = report.epoch
        return not is_plain or bool(self.failures.get(epoch) or self.movements.get(epoch))

    def _see(self, epoch: int, committed_step: int) -> None:
        self.seen_committed[epoch] = max(committed_step, self.seen_committed.get(epoch, 0))
        self._stale(epoch)

    def _stale(self, epoch: int) -> None:
        self.versions[epoch] = self.versions.get(epoch, 0) + 1

    def episode(self, epoch: int) -> Episode:
        movements = sorted(self.movements.get(epoch, ()), key=lambda move: move.key)
        failures = self.failures.get(epoch, ())
        return Episode(
            epoch=epoch,
            base_committed=self.seen_committed.get(epoch),
            movements=tuple(movements),
            first_failure_us=min((failure.time_us for failure in failures), default=None),
        )

    def committed_in(self, epoch: int) -> int | None:
        """The largest step that any event of the epoch reports as committed (R1)."""
        reported = [move.committed_step for move in self.movements.get(epoch, ())]
        return largest([self.seen_committed.get(epoch), *reported])

    def is_failed(self, epoch: int) -> bool:
        """An epoch has failed where a failure says so, or a recovery stands for one (R10)."""
        return bool(self.failures.get(epoch)) or any(
            not move.planned for move in self.movements.get(epoch, ())
        )

    def epochs(self) -> list[int]:
        """Every epoch with a failure or a movement, ascending."""
        return sorted({*self.failures, *self.movements})

    def belongs_to(self, contract: str) -> bool:
        """R40 in a replay file: the contract's, unless the first start names another."""
        opened = [start for start in self.starts if start.opens]
        if not opened:
            return True
        named = min(opened, key=lambda start: start.key).contract
        return named is None or named == contract

    def is_supported_at(self, instant_us: int) -> bool:
        """R16: the latest word at or before the instant; a bad one must have been received then."""
        words = [
            start
            for start in self.starts
            if start.time_us <= instant_us
            and not (start.supported is False and start.received_us >= instant_us)
        ]
        if not words:
            return True
        return max(words, key=lambda start: start.key).supported is not False


def _progress_order(report: Progress) -> tuple[int, int, str]:
    return (report.epoch, report.time_us, report.id)  # R41


def drops_of(reports: Sequence[Progress]) -> list[tuple[Progress, Progress]]:
    """Neighbours among one source's ordered reports where the later has fewer steps (R41)."""
    return [
        (before, after)
        for before, after in pairwise(reports)
        if after.committed_step < before.committed_step
    ]
