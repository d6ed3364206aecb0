"""Reads a heartbeat's body into what the service keeps of it; pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.domain import facts

MOST_GPUS: Final = 256
MOST_ORDERS: Final = 1000
FINAL_STATES: Final = frozenset({"completed", "refused", "failed", "expired"})
REPORTED_STATES: Final = FINAL_STATES | {"acknowledged"}


class HeartbeatError(ValueError):
    """`pointer` says where in the body."""

    def __init__(self, pointer: str, detail: str) -> None:
        super().__init__(f"{pointer or 'body'}: {detail}")
        self.pointer = pointer
        self.detail = detail


@dataclass(frozen=True, slots=True)
class GpuBrief:
    uuid: str
    serial: str
    pci_bus_id: str
    slot: int | None
    model: str
    brief: dict[str, Any]


@dataclass(frozen=True, slots=True)
class OrderReport:
    order_id: str
    state: str
    detail: str


@dataclass(frozen=True, slots=True)
class Heartbeat:
    node: str
    cluster: str
    boot_id: str
    agent_version: str
    driver_version: str
    gpus: tuple[GpuBrief, ...] = ()
    runs: list[dict[str, Any]] = field(default_factory=list)
    blind: list[dict[str, Any]] = field(default_factory=list)
    specs: dict[str, Any] = field(default_factory=dict)
    source_heads: dict[str, int] = field(default_factory=dict)
    orders: tuple[OrderReport, ...] = ()


def read_heartbeat(body: object) -> Heartbeat:
    """Raises HeartbeatError. Fields it does not know are let pass: agents may be newer."""
    if not isinstance(body, Mapping):
        raise HeartbeatError("", "a heartbeat is a JSON object")
    node = facts.text(body, "node", 200)
    if not node:
        raise HeartbeatError("/node", "the name of the node is missing")
    return Heartbeat(
        node=node,
        cluster=facts.text(body, "cluster", 100),
        boot_id=facts.text(body, "boot_id", 100),
        agent_version=facts.text(body, "agent_version", 50),
        driver_version=facts.text(body, "driver", 50),
        gpus=_gpus(_list(body, "gpus", MOST_GPUS)),
        runs=_objects(body, "runs"),
        blind=_objects(body, "blind"),
        specs=facts.mapping(body, "specs"),
        source_heads=_heads(facts.mapping(body, "sources")),
        orders=_orders(_list(body, "orders", MOST_ORDERS)),
    )


def _list(body: Mapping[str, Any], name: str, most: int) -> list[Any]:
    value = body.get(name, [])
    if not isinstance(value, list) or len(value) > most:
        raise HeartbeatError(f"/{name}", f"a list of at most {most} is expected")
    return value


def _objects(body: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    entries = _list(body, name, MOST_ORDERS)
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise HeartbeatError(f"/{name}/{index}", "an object is expected")
    return [facts.clean_json(entry) for entry in entries]


def _gpus(entries: list[Any]) -> tuple[GpuBrief, ...]:
    """One for each UUID; a GPU that has not said its UUID yet is left out."""
    found: dict[str, GpuBrief] = {}
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping):
            raise HeartbeatError(f"/gpus/{index}", "an object is expected")
        uuid = facts.text(entry, "uuid", 100)
        if uuid:
            found[uuid] = GpuBrief(
                uuid=uuid,
                serial=facts.text(entry, "serial", 100),
                pci_bus_id=facts.text(entry, "pci_bus_id", 40),
                slot=facts.whole(entry, "slot", facts.LARGEST_INTEGER),
                model=facts.text(entry, "name", 100),
                brief=facts.clean_json(entry),
            )
    return tuple(found.values())


def _heads(sources: Mapping[str, Any]) -> dict[str, int]:
    for source in sources:
        if facts.whole(sources, source) is None:
            raise HeartbeatError("/sources", f"the head of {source} is no sequence number")
    return dict(sources)


def _orders(entries: list[Any]) -> tuple[OrderReport, ...]:
    reports = []
    for index, entry in enumerate(entries):
        if not isinstance(entry, Mapping) or not isinstance(entry.get("id"), str):
            raise HeartbeatError(f"/orders/{index}", "an object with the order's id is expected")
        state = entry.get("state")
        if state not in REPORTED_STATES:
            known = ", ".join(sorted(REPORTED_STATES))
            raise HeartbeatError(f"/orders/{index}/state", f"one of {known} is expected")
        reports.append(OrderReport(entry["id"], state, facts.text(entry, "detail", 1000)))
    return tuple(reports)
