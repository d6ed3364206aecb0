"""What a token may do. Other apps declare theirs at start, so that one list names them all."""

from __future__ import annotations

from typing import Final

EVENTS_WRITE: Final = "events:write"
HEARTBEATS_WRITE: Final = "heartbeats:write"
ENROLL: Final = "enroll"
FLEET_READ: Final = "fleet:read"
FLEET_WRITE: Final = "fleet:write"

_declared: Final[dict[str, str]] = {
    EVENTS_WRITE: "deliver events of the sources it is bound to",
    HEARTBEATS_WRITE: "send heartbeats of the node it is bound to",
    ENROLL: "enrol one node",
    FLEET_READ: "read nodes, GPUs, findings, runs, leases and orders",
    FLEET_WRITE: "register runs, cordon nodes",
}


def declare_scope(name: str, meaning: str) -> None:
    _declared[name] = meaning


def declared_scopes() -> dict[str, str]:
    return dict(_declared)
