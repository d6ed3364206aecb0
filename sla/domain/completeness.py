"""Is the evidence of a year whole (R26, R42)? Holes in sequences, missing tails, and waivers."""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from sla.domain.evidence import Reading, SourceEdge
from sla.domain.terms import Year


@dataclass(frozen=True, kw_only=True)
class Waiver:
    """Two people let missing numbers [first, last] of a source pass, or its tail."""

    source: str
    first: int
    last: int
    tail: bool
    recorded_us: int
    requested_by: str
    approved_by: str


@dataclass(frozen=True, kw_only=True)
class Hole:
    """Missing numbers [first, last] of a source; `None` as start means: any time before its end."""

    source: str
    first: int
    last: int
    from_us: int | None
    to_us: int

    def touches(self, year: Year) -> bool:
        return year.start_us <= self.to_us and (self.from_us is None or self.from_us < year.end_us)


@dataclass
class _Source:
    filled: list[int] = field(default_factory=list)
    times: dict[int, int] = field(default_factory=dict)
    holes: dict[int, int] = field(default_factory=dict)  # number before the hole → number after
    opened_us: int | None = None
    latest_us: int | None = None
    sealed_at: int | None = None

    def fill(self, number: int, time_us: int) -> None:
        if number in self.times:
            return  # the first received counts
        self.times[number] = time_us
        place = bisect.bisect(self.filled, number)
        before = self.filled[place - 1] if place else 0
        after = self.filled[place] if place < len(self.filled) else None
        self.filled.insert(place, number)
        self.holes.pop(before, None)
        if number - before > 1:
            self.holes[before] = number
        if after is not None and after - number > 1:
            self.holes[number] = after

    def hear(self, time_us: int) -> None:
        self.latest_us = time_us if self.latest_us is None else max(self.latest_us, time_us)

    def hole(self, name: str, before: int, after: int) -> Hole:
        times = [self.times[number] for number in (before, after) if number in self.times]
        return Hole(
            source=name,
            first=before + 1,
            last=after - 1,
            from_us=min(times) if before else None,
            to_us=max(times),
        )

    def lacks_tail(self, year: Year) -> bool:
        """R42: nothing of the source is known from the year's end on, and it is not sealed."""
        if self.opened_us is None or year.end_us <= self.opened_us:
            return False
        if self.latest_us is not None and self.latest_us >= year.end_us:
            return False
        reached = self.filled[-1] if self.filled else 0
        return self.sealed_at is None or reached < self.sealed_at


@dataclass
class Sequences:
    """The sequence numbers received so far, source by source."""

    _sources: dict[str, _Source] = field(default_factory=lambda: defaultdict(_Source))
    _waivers: list[Waiver] = field(default_factory=list)

    def add(self, reading: Reading) -> None:
        if reading.source is None or reading.time_us is None:
            return
        source = self._sources[reading.source]
        if reading.sequence is not None:
            source.fill(reading.sequence, reading.time_us)
        if reading.status != "quarantined":  # R24: without effect, its number apart
            source.hear(reading.time_us)
        edge = reading.record
        if isinstance(edge, SourceEdge):
            self._mark_edge(source, edge)

    @staticmethod
    def _mark_edge(source: _Source, edge: SourceEdge) -> None:
        if not edge.sealed:
            known_us = source.opened_us
            source.opened_us = edge.time_us if known_us is None else min(known_us, edge.time_us)
        elif edge.last_sequence is not None:
            source.sealed_at = max(edge.last_sequence, source.sealed_at or 0)

    def heartbeat(self, source: str, head_time_us: int) -> None:
        """In the service a heartbeat that states the source's head is a sign of its tail (R42)."""
        self._sources[source].hear(head_time_us)

    def waive(self, waiver: Waiver) -> None:
        self._waivers.append(waiver)

    def holes(self) -> list[Hole]:
        return [
            source.hole(name, before, after)
            for name, source in sorted(self._sources.items())
            for before, after in sorted(source.holes.items())
        ]

    def verdict_on(self, year: Year) -> tuple[bool, bool]:
        """(is the year blocked, does a waived hole touch it)."""
        blocked, waived = False, False
        for hole in self.holes():
            if hole.touches(year):
                open_numbers = self._unwaived(hole)
                blocked |= open_numbers > 0
                waived |= open_numbers < hole.last - hole.first + 1
        tails = {waiver.source for waiver in self._waivers if waiver.tail}
        for name, source in self._sources.items():
            if source.lacks_tail(year):
                waived |= name in tails
                blocked |= name not in tails
        return blocked, waived

    def _unwaived(self, hole: Hole) -> int:
        """How many numbers of the hole no waiver covers."""
        spans = [
            (max(waiver.first, hole.first), min(waiver.last, hole.last))
            for waiver in self._waivers
            if not waiver.tail and waiver.source == hole.source
        ]
        return hole.last - hole.first + 1 - _covered(span for span in spans if span[0] <= span[1])


def _covered(spans: Iterable[tuple[int, int]]) -> int:
    """The size of the union of spans, both ends included."""
    covered, reached = 0, 0
    for first, last in sorted(spans):
        covered += max(0, last - max(first - 1, reached))
        reached = max(reached, last)
    return covered
