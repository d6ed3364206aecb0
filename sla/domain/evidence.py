"""Events as evidence: which are in force (R15, R24) and what each of them says. It judges nothing.

An event enters as the JSON object that was received. What it says is kept in small frozen records;
a value of the wrong type is absent there, since contradictory or missing numbers are for R8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final, Literal

from runtime.events import (
    MOVEMENT_TYPES,
    canonical_json,
    parse_time,
    problems_of,
    run_of,
)

Status = Literal["accepted", "duplicate", "conflict", "quarantined", "invalid"]
STATUSES: Final[tuple[Status, ...]] = (
    "accepted",
    "duplicate",
    "conflict",
    "quarantined",
    "invalid",
)
FUTURE_LIMIT_US: Final = 5 * 60 * 1_000_000
STATE_SOURCES: Final = frozenset({"source_memory", "replica", "checkpoint"})


@dataclass(frozen=True, kw_only=True)
class Record:
    """What every event says: `key` orders events of a run for good."""

    id: str
    source: str
    type: str
    run: str
    time_us: int
    received_us: int

    @property
    def key(self) -> tuple[int, str, str]:
        return (self.time_us, self.id, self.source)


@dataclass(frozen=True, kw_only=True)
class Failure(Record):
    failure_id: str
    epoch: int
    committed_step: int
    nodes: frozenset[str]


@dataclass(frozen=True, kw_only=True)
class Progress(Record):
    """`run.progress`, or the word of the customer's own witness."""

    epoch: int
    committed_step: int


@dataclass(frozen=True, kw_only=True)
class Movement(Record):
    """A recovery, or a migration where `planned`; None stands for a fact that is not given."""

    planned: bool
    from_epoch: int
    to_epoch: int
    committed_step: int | None
    resumed_step: int | None
    recomputed_steps: int | None
    samples_skipped: int | None
    state_source: str | None
    total_seconds: Fraction | None


@dataclass(frozen=True, kw_only=True)
class Started(Record):
    """`run.started` or `run.support_changed`; `opens` tells the first from the second."""

    opens: bool
    contract: str | None
    supported: bool | None
    resumed_step: int | None


@dataclass(frozen=True, kw_only=True)
class Finished(Record):
    status: str | None
    by: str | None
    committed_step: int | None


@dataclass(frozen=True, kw_only=True)
class Confirmed(Record):
    migration_event: str | None


@dataclass(frozen=True, kw_only=True)
class SourceEdge(Record):
    """`source.opened`, or `source.sealed` with the `last_sequence` that it names."""

    sealed: bool
    last_sequence: int | None


@dataclass(frozen=True, kw_only=True)
class Reading:
    """One received event and what became of it.

    `record` is there where the event is in force. `source` and `time_us` are there where they can
    be read, whatever became of the event: they fill its `sequence` number (R26).
    """

    status: Status
    received_us: int
    source: str | None
    sequence: int | None
    time_us: int | None
    record: Record | None
    problems: tuple[str, ...] = ()


@dataclass
class Desk:
    """Reads events in the order of their receipt; it remembers which identities it has seen."""

    _in_force: dict[tuple[str, str], bytes] = field(default_factory=dict)

    def read(self, event: object, received_us: int, body: bytes | None) -> Reading:
        """`body` is the canonical JSON without `recordedtime`, None where there is none."""
        problems = problems_of(event)
        if (
            isinstance(event, Mapping)
            and _time(event.get("recordedtime", event.get("time"))) is None
        ):
            problems.append("its receipt instant is not a time")
        if body is None:
            problems.append("a number in it is not finite")
        if problems or not isinstance(event, Mapping) or body is None:
            return self._reading("invalid", event, received_us, problems=tuple(problems))
        identity = (event["source"], event["id"])
        known = self._in_force.get(identity)
        if known is not None:  # R15
            status: Status = "duplicate" if known == body else "conflict"
            return self._reading(status, event, received_us)
        self._in_force[identity] = body
        if parse_time(event["time"]) - received_us > FUTURE_LIMIT_US:  # R24
            return self._reading("quarantined", event, received_us)
        return self._reading("accepted", event, received_us, record=record_of(event, received_us))

    @staticmethod
    def _reading(
        status: Status,
        event: object,
        received_us: int,
        *,
        record: Record | None = None,
        problems: tuple[str, ...] = (),
    ) -> Reading:
        source, time_us, sequence = None, None, None
        if isinstance(event, Mapping):
            source = _text(event.get("source")) or None
            time_us = _time(event.get("time"))
            sequence = _sequence(event.get("sequence"))
        return Reading(
            status=status,
            received_us=received_us,
            source=source,
            sequence=sequence,
            time_us=time_us,
            record=record,
            problems=problems,
        )


def read_events(events: Iterable[object], as_of_us: int) -> list[Reading]:
    """Every event received up to and including `as_of_us`, in the order of receipt.

    At one receipt instant the smaller canonical JSON comes first (R15), so the order in which the
    events are given means nothing (R13).
    """
    arrivals = []
    for event in events:
        received_us, body = receipt_of(event), body_of(event)
        if received_us <= as_of_us:
            arrivals.append((received_us, body or b"", body, event))
    arrivals.sort(key=lambda arrival: arrival[:2])
    desk = Desk()
    return [desk.read(event, received_us, body) for received_us, _, body, event in arrivals]


def receipt_of(event: object) -> int:
    """The receipt instant: `recordedtime`, else `time`; 0 for an event that bears neither."""
    if not isinstance(event, Mapping):
        return 0
    received_us = _time(event.get("recordedtime"))
    return received_us if received_us is not None else _time(event.get("time")) or 0


def body_of(event: object) -> bytes | None:
    """The canonical JSON, `recordedtime` aside (R15); None where a number in it is not finite."""
    if isinstance(event, Mapping):
        event = {name: value for name, value in event.items() if name != "recordedtime"}
    try:
        return canonical_json(event)
    except (ValueError, TypeError, RecursionError):
        return None


def record_of(event: Mapping[str, Any], received_us: int) -> Record:
    """What a readable event says."""
    data = event.get("data")
    data = data if isinstance(data, Mapping) else {}
    event_type = event["type"]
    base: dict[str, Any] = {
        "id": event["id"],
        "source": event["source"],
        "type": event_type,
        "run": run_of(event) or "",
        "time_us": parse_time(event["time"]),
        "received_us": received_us,
    }
    if event_type == "failure.detected":
        nodes = data.get("nodes")
        return Failure(
            **base,
            failure_id=data["failure_id"],
            epoch=data["epoch"],
            committed_step=data["committed_step"],
            nodes=frozenset(
                node for node in (nodes if isinstance(nodes, list) else []) if isinstance(node, str)
            ),
        )
    if event_type in {"run.progress", "run.witnessed"}:
        return Progress(**base, epoch=data["epoch"], committed_step=data["committed_step"])
    if event_type in MOVEMENT_TYPES:
        return _movement(base, data)
    return _other(base, data)


def _movement(base: dict[str, Any], data: Mapping[str, Any]) -> Movement:
    state_source = data.get("state_source")
    seconds = data.get("seconds")
    return Movement(
        **base,
        planned=base["type"] == "migration.completed",
        from_epoch=data["from_epoch"],
        to_epoch=data["to_epoch"],
        committed_step=_whole(data.get("committed_step")),
        resumed_step=_whole(data.get("resumed_step")),
        recomputed_steps=_whole(data.get("recomputed_steps")),
        samples_skipped=_whole(data.get("samples_skipped")),
        state_source=(
            state_source
            if isinstance(state_source, str) and state_source in STATE_SOURCES
            else None
        ),
        total_seconds=_exact(seconds.get("total")) if isinstance(seconds, Mapping) else None,
    )


def _other(base: dict[str, Any], data: Mapping[str, Any]) -> Record:
    match base["type"]:
        case "run.started" | "run.support_changed":
            supported = data.get("supported")
            return Started(
                **base,
                opens=base["type"] == "run.started",
                contract=_text(data.get("contract")),
                supported=supported if isinstance(supported, bool) else None,
                resumed_step=_whole(data.get("resumed_step")),
            )
        case "run.finished":
            return Finished(
                **base,
                status=_text(data.get("status")),
                by=_text(data.get("by")),
                committed_step=_whole(data.get("committed_step")),
            )
        case "prediction.confirmed":
            return Confirmed(**base, migration_event=_text(data.get("migration_event")))
        case "source.opened" | "source.sealed":
            last = data.get("last_sequence")
            return SourceEdge(
                **base,
                sealed=base["type"] == "source.sealed",
                last_sequence=_sequence(last) if isinstance(last, str) else _whole(last),
            )
    return Record(**base)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _exact(value: object) -> Fraction | None:
    """A JSON number as written: 4.1 is 41/10, not the binary number next to it."""
    if isinstance(value, float):
        return Fraction(Decimal(repr(value)))
    whole = _whole(value)
    return None if whole is None else Fraction(whole)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _time(value: object) -> int | None:
    if not isinstance(value, str):
        return None
    try:
        return parse_time(value)
    except ValueError:
        return None


def _sequence(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        return int(value) or None
    return None
