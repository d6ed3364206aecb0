"""The shapes of events on the wire: typed, torch-free, Django-free; it sends nothing.

Envelope: CloudEvents 1.0 in JSON. Instants inside our code are whole microseconds since the Unix
epoch in UTC; on the wire they are RFC 3339 text with six digits of fraction.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Final, Literal, NotRequired, TypedDict

SPEC_VERSION: Final = "1.0"

EventType = Literal[
    "source.opened",
    "source.sealed",
    "run.started",
    "run.support_changed",
    "run.progress",
    "failure.detected",
    "recovery.completed",
    "migration.completed",
    "prediction.confirmed",
    "run.witnessed",
    "run.finished",
    "health.finding",
]
MOVEMENT_TYPES: Final = frozenset({"recovery.completed", "migration.completed"})

Mode = Literal["live_migration", "replica_rebuild", "checkpoint_rollback"]
StateSource = Literal["source_memory", "replica", "checkpoint"]
RunStatus = Literal["completed", "cancelled", "failed", "parked"]
Severity = Literal["info", "degraded", "failing", "failed"]
Memory = Literal["readable", "other_process", "local_only", "untrusted", "gone"]
Action = Literal["none", "restart_app", "reset_gpu", "reboot_node", "inspect", "investigate"]
CauseKind = Literal[
    "process_exit",
    "host_lost",
    "hang",
    "straggler",
    "xid",
    "ecc",
    "thermal",
    "nvlink",
    "pcie",
    "fabric",
    "sdc",
    "nan",
    "user_error",
    "oom",
    "preempted",
    "unknown",
]

Event = TypedDict(
    "Event",
    {
        "specversion": str,
        "id": str,
        "source": str,
        "type": str,
        "time": str,
        "subject": NotRequired[str],
        "datacontenttype": NotRequired[str],
        "sequence": NotRequired[str],
        "bootid": NotRequired[str],
        "recordedtime": NotRequired[str],
        "data": dict[str, Any],
    },
)


class Mesh(TypedDict):
    """Ranks = replicate * shard."""

    replicate: int
    shard: int


class RunStarted(TypedDict):
    run: str
    contract: str | None
    resumed_step: NotRequired[int | None]
    cluster: str
    world_size: int
    mesh: Mesh
    commit_unit: str
    framework: str
    checkpoint_every_steps: int | None
    priority: int
    spares: int
    supported: bool
    support_reasons: list[str]
    gpu_model: str | None


class RunProgress(TypedDict):
    run: str
    epoch: int
    committed_step: int
    step_seconds: float | None
    samples_per_second: float | None
    tokens_per_second: float | None
    mfu: float | None
    lost_seconds: float


class Cause(TypedDict):
    kind: CauseKind
    code: int | str | None
    detail: str


class FailureDetected(TypedDict):
    failure_id: str
    run: str
    epoch: int
    ranks: list[int]
    nodes: list[str]
    gpus: list[str]
    committed_step: int
    cause: Cause
    cause_id: str | None
    detector: str
    planned: bool


# One rank's move between slots: bytes received, seconds on the wire, digest of the restored
# state. The functional form, since "from" is a keyword.
MovedEntry = TypedDict(
    "MovedEntry",
    {"rank": int, "from": str, "to": str, "bytes": int, "seconds": float, "digest": str},
)


class PhaseSeconds(TypedDict):
    detect: float
    decide: float
    regroup: float
    transfer: float
    total: float


class RecoveryCompleted(TypedDict):
    """Also the data of `migration.completed`, which adds `reason`."""

    failure_ids: list[str]
    run: str
    from_epoch: int
    to_epoch: int
    mode: Mode
    state_source: StateSource
    committed_step: int
    resumed_step: int
    recomputed_steps: int
    samples_skipped: int
    moved: list[MovedEntry]
    seconds: PhaseSeconds
    reason: NotRequired[str]


class RunFinished(TypedDict):
    run: str
    status: RunStatus
    committed_step: int
    by: Literal["customer", "operator", "system"]


class GpuRef(TypedDict):
    uuid: str
    serial: str | None
    pci_bus_id: str | None
    slot: int | None


class HealthFinding(TypedDict):
    finding_id: str
    state: Literal["opened", "updated", "cleared"]
    check: str
    stage: str
    severity: Severity
    node: str
    gpu: GpuRef | None
    memory: Memory
    action: Action
    evidence: dict[str, Any]
    policy_version: str
    migrate: NotRequired[bool]  # whether policy wants the runs moved off this GPU


def coordinator_source(cluster: str, run: str) -> str:
    """The `source` of a run's coordinator."""
    return f"/clusters/{cluster}/runs/{run}/coordinator"


def agent_source(cluster: str, node: str) -> str:
    """The `source` of a node's agent."""
    return f"/clusters/{cluster}/nodes/{node}/agent"


_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt](\d\d):(\d\d):(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII
)
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def parse_time(text: str) -> int:
    """RFC 3339 → microseconds since the Unix epoch; digits past the sixth are cut.

    Raises ValueError, with the text in the message, for anything else.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not an RFC 3339 time such as 2026-05-01T00:00:00Z")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, zone = match.group(7) or "", match.group(8)
    offset = dt.timedelta(0)
    if zone not in "Zz":
        hours, minutes = int(zone[1:3]), int(zone[4:6])
        if hours > 23 or minutes > 59:
            raise ValueError(f"{text!r} is not a time: no zone is {zone} away from UTC")
        offset = dt.timedelta(hours=hours, minutes=minutes) * (-1 if zone[0] == "-" else 1)
    try:
        local = dt.datetime(year, month, day, hour, minute, second, tzinfo=dt.UTC)
        instant = local - offset
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{text!r} is not a time: {error}") from error
    whole = (instant - _EPOCH) // dt.timedelta(microseconds=1)
    return whole + int(fraction[:6].ljust(6, "0"))


def format_time(instant_us: int) -> str:
    """Microseconds since the Unix epoch → RFC 3339 in Z, six digits of fraction or none."""
    instant = _EPOCH + dt.timedelta(microseconds=instant_us)
    text = instant.replace(tzinfo=None).isoformat(timespec="seconds")
    fraction = instant_us % 1_000_000
    return f"{text}.{fraction:06d}Z" if fraction else f"{text}Z"


def canonical_json(value: object) -> bytes:
    """Keys sorted, no spaces, non-ASCII escaped: equal values give equal bytes."""
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    ).encode()


def sha256_hex(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()


def uuid7(instant_us: int, random_bytes: bytes) -> str:
    """A UUIDv7 (RFC 9562) from an instant and ten random bytes."""
    if len(random_bytes) != 10:
        raise ValueError("uuid7 needs ten random bytes")
    value = ((instant_us // 1000) & ((1 << 48) - 1)) << 80 | int.from_bytes(random_bytes, "big")
    value = value & ~(0xF << 76) | 0x7 << 76
    value = value & ~(0x3 << 62) | 0x2 << 62
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))


def make_event(
    *, event_id: str, source: str, event_type: EventType, time_us: int, data: Mapping[str, Any]
) -> Event:
    """An event without its sequence, which the outbox gives it when it is stored."""
    run = data.get("run")
    event: Event = {
        "specversion": SPEC_VERSION,
        "id": event_id,
        "source": source,
        "type": event_type,
        "time": format_time(time_us),
        "datacontenttype": "application/json",
        "data": dict(data),
    }
    if isinstance(run, str):
        event["subject"] = run
    return event


LARGEST_NUMBER: Final = 2**63 - 1  # what a database column and most languages can hold
_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "failure.detected": ("epoch", "committed_step"),
    "run.progress": ("epoch", "committed_step"),
    "run.witnessed": ("epoch", "committed_step"),
    "recovery.completed": ("from_epoch", "to_epoch"),
    "migration.completed": ("from_epoch", "to_epoch"),
}


def run_of(event: Mapping[str, Any]) -> str | None:
    """The run an event speaks of: `data.run`, else `subject`; None where neither is a name."""
    data = event.get("data")
    run = data.get("run") if isinstance(data, Mapping) else None
    if run is None:
        run = event.get("subject")
    return run if isinstance(run, str) and run else None


def problems_of(event: object) -> list[str]:
    """Why an event cannot be read (rule R15), one line each; empty where it can.

    The only place that decides it, for ingest and for the books alike. Only what the rules need is
    asked for: everything else may be absent, wrong or new.
    """
    if not isinstance(event, Mapping):
        return ["an event is a JSON object"]
    problems = []
    if event.get("specversion") != SPEC_VERSION:
        problems.append('specversion is not "1.0"')
    for name in ("id", "source", "type", "time"):
        value = event.get(name)
        if not isinstance(value, str) or not value:
            problems.append(f"{name} is not a text of at least one character")
    if isinstance(event.get("time"), str) and event["time"]:
        try:
            parse_time(event["time"])
        except ValueError as error:
            problems.append(f"time: {error}")
    if run_of(event) is None:
        problems.append("neither data.run nor subject names a run")
    return problems + _problems_of_data(event)


def _problems_of_data(event: Mapping[str, Any]) -> list[str]:
    event_type = event.get("type")
    if not isinstance(event_type, str) or event_type not in _FIELDS:
        return []
    data = event.get("data")
    if not isinstance(data, Mapping):
        return ["data is not a JSON object"]
    problems = []
    if event_type == "failure.detected":
        failure_id = data.get("failure_id")
        if not isinstance(failure_id, str) or not failure_id:
            problems.append("data.failure_id is not a text of at least one character")
    for name in _FIELDS[event_type]:
        value = data.get(name)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            problems.append(f"data.{name} is not a whole number of 0 or more")
        elif value > LARGEST_NUMBER:
            problems.append(f"data.{name} is larger than any step or epoch can be")
    return problems
