"""Entries by hand (R17, R26, R42), recorded at an instant of the evidence clock."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import F
from django.db.models.functions import Greatest

from fleet.locks import receipt_instant
from runtime.events import format_time
from sla.domain.case_hand import read_exclusion, read_registration, read_waiver
from sla.domain.reading import Node
from sla.errors import InvalidEntryError
from sla.instants import from_us
from sla.models import Contract, Exclusion, JudgedRun, Registration, Waiver


@transaction.atomic
def record_exclusion(*, contract: Contract, entry: dict[str, Any]) -> Exclusion:
    """`entry` in the words of a case file, without `recorded_at`. Raises InvalidEntryError."""
    recorded_us = receipt_instant()
    node = _node(entry, "recorded_at", recorded_us)
    known = read_exclusion(node)
    _refuse(node)
    row = Exclusion.objects.create(
        tenant_id=contract.tenant_id,
        contract=contract,
        reason=known.reason,
        failure_ids=sorted(known.failure_ids),
        first_event=known.first_event or "",
        evidence=str(known.evidence),
        requested_by=known.requested_by,
        approved_by=known.approved_by,
        recorded_at=from_us(recorded_us),
    )
    _touch_runs(contract, recorded_us)
    return row


@transaction.atomic
def record_registration(*, contract: Contract, entry: dict[str, Any]) -> Registration:
    """Excludes only what happens after this instant (R17). Raises InvalidEntryError."""
    recorded_us = receipt_instant()
    node = _node(entry, "registered_at", recorded_us)
    known = read_registration(node)
    _refuse(node)
    row = Registration.objects.create(
        tenant_id=contract.tenant_id,
        contract=contract,
        reason=known.reason,
        starts_at=from_us(known.starts_us),
        ends_at=from_us(known.ends_us),
        nodes=sorted(known.nodes),
        runs=sorted(known.runs),
        requested_by=known.requested_by,
        approved_by=known.approved_by,
        recorded_at=from_us(recorded_us),
    )
    _touch_runs(contract, recorded_us)
    return row


@transaction.atomic
def record_waiver(*, contract: Contract, entry: dict[str, Any]) -> Waiver:
    """Raises InvalidEntryError."""
    recorded_us = receipt_instant()
    node = _node(entry, "recorded_at", recorded_us)
    known = read_waiver(node)
    _refuse(node)
    return Waiver.objects.create(
        tenant_id=contract.tenant_id,
        contract=contract,
        source=known.source,
        first=None if known.tail else known.first,
        last=None if known.tail else known.last,
        is_tail=known.tail,
        requested_by=known.requested_by,
        approved_by=known.approved_by,
        recorded_at=from_us(recorded_us),
    )


def _node(entry: dict[str, Any], instant: str, recorded_us: int) -> Node:
    return Node(entry | {instant: format_time(recorded_us)}, "", [])


def _refuse(node: Node) -> None:
    if node.problems:
        raise InvalidEntryError.of_problems(node.problems)


def _touch_runs(contract: Contract, recorded_us: int) -> None:
    """Runs with incidents of this contract are judged again; later ones see it anyway."""
    runs = contract.incidents.values_list("run", flat=True).distinct()
    JudgedRun.objects.filter(tenant_id=contract.tenant_id, run__in=list(runs)).update(
        touched_us=Greatest(F("touched_us"), recorded_us)
    )
