"""Reads what people enter by hand: exclusions, registrations, waivers (R17, R26, R42).

Everything entered by hand needs two different people; an entry without them is a problem.
"""

from __future__ import annotations

from typing import Any

from sla.domain.completeness import Waiver
from sla.domain.exclusions import Exclusion, Registration
from sla.domain.reading import Node


def read_exclusion(node: Node) -> Exclusion:
    """Names incidents, never a whole run, and rests on evidence (R17)."""
    reason: Any = node.choice("reason", ("customer_cause", "force_majeure"))
    failure_ids = node.names("failure_ids")
    first_event = node.text("first_event") if node.has("first_event") else None
    if not failure_ids and first_event is None:
        node.complain("failure_ids", "names no incident: failure ids or a first event are required")
    evidence = node.value.get("evidence")
    if not evidence or not isinstance(evidence, str | list | dict):
        node.complain("evidence", "evidence is required")
    requested_by, approved_by = _two_people(node)
    return Exclusion(
        reason=reason,
        failure_ids=failure_ids,
        first_event=first_event,
        recorded_us=node.instant("recorded_at") or 0,
        requested_by=requested_by,
        approved_by=approved_by,
        evidence=evidence,
    )


def read_registration(node: Node) -> Registration:
    """A half-open window of nodes or runs (R17)."""
    reason: Any = node.choice("reason", ("maintenance", "registered_drill"))
    starts_us, ends_us = node.instant("starts"), node.instant("ends")
    if starts_us is not None and ends_us is not None and ends_us <= starts_us:
        node.complain("ends", "the window ends before it starts")
    nodes, runs = node.names("nodes"), node.names("runs")
    if not nodes and not runs:
        node.complain("nodes", "the window names neither a node nor a run")
    requested_by, approved_by = _two_people(node)
    return Registration(
        reason=reason,
        recorded_us=node.instant("registered_at") or 0,
        starts_us=starts_us or 0,
        ends_us=ends_us or 0,
        nodes=nodes,
        runs=runs,
        requested_by=requested_by,
        approved_by=approved_by,
    )


def read_waiver(node: Node) -> Waiver:
    """Missing numbers of a source, or its tail in place of from and to (R26, R42)."""
    source = node.text("source")
    tail = node.flag("tail", False)
    first = last = 0
    if tail:
        for name in ("from", "to"):
            if node.has(name):
                node.complain(name, "stands beside a tail: a waiver has the one or the other")
    else:
        first, last = _number(node, "from"), _number(node, "to")
        if last < first:
            node.complain("to", f"{last} comes before {first}")
    requested_by, approved_by = _two_people(node)
    return Waiver(
        source=source,
        first=first,
        last=last,
        tail=tail,
        recorded_us=node.instant("recorded_at") or 0,
        requested_by=requested_by,
        approved_by=approved_by,
    )


def _two_people(node: Node) -> tuple[str, str]:
    requested_by, approved_by = node.text("requested_by"), node.text("approved_by")
    if requested_by and requested_by.strip() == approved_by.strip():
        node.complain("approved_by", f"{approved_by!r} asked for it too: two people are required")
    return requested_by, approved_by


def _number(node: Node, name: str) -> int:
    """A sequence number: whole, or as decimal text as in the events themselves."""
    value = node.value.get(name)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    node.complain(name, f"{value!r} is not a sequence number of 1 or more")
    return 1
