"""Takes delivered events into the log: once for ever each, set-based, in one transaction.

Order of locks: the evidence clock shared, then rows by (source, id), so that deliveries that
overlap wait for each other and never deadlock.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from django.db import connection, transaction

from fleet.domain.envelopes import Reading
from fleet.locks import receipt_instant
from fleet.models.choices import AsideReason, EventStatus
from fleet.services.projections import project
from fleet.signals import events_accepted

log = logging.getLogger("fleet.ingest")

LONGEST_FUTURE_US: Final = 5 * 60 * 1_000_000  # R24
Identity = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one event, in the words of the wire."""

    event_id: str | None
    status: str
    detail: str | None = None


@dataclass(frozen=True, slots=True)
class Aside:
    reading: Reading
    reason: AsideReason
    detail: str


def ingest_events(*, tenant_id: int, readings: Sequence[Reading]) -> list[Result]:
    """One result for each reading, in order. Call inside the tenant's scope.

    A delivery sent again gives the same state, whatever became of the first (R15).
    """
    with transaction.atomic():
        received_us = receipt_instant()
        candidates = _first_of_each(readings)
        new = _insert(tenant_id, received_us, candidates)
        in_force = {key: reading.content_sha256 for key, reading in candidates.items()}
        known = [key for key in candidates if key not in new]
        in_force |= _contents(tenant_id, known)
        results, asides = _judge(readings, new, in_force, received_us)
        kept_aside = _insert_asides(tenant_id, received_us, asides)
        accepted = [candidates[key] for key in new if not _is_future(candidates[key], received_us)]
        project(tenant_id=tenant_id, readings=accepted)
        if new or kept_aside:
            _ring_on_commit(tenant_id, received_us, readings)
    return results


def _is_future(reading: Reading, received_us: int) -> bool:
    return (reading.time_us or 0) > received_us + LONGEST_FUTURE_US


def _first_of_each(readings: Sequence[Reading]) -> dict[Identity, Reading]:
    """The body of each identity that would be in force: at one receipt instant, the smaller."""
    first: dict[Identity, Reading] = {}
    for reading in readings:
        if reading.problems:
            continue
        standing = first.get(reading.identity)
        if standing is None or reading.content < standing.content:
            first[reading.identity] = reading
    return first


_INSERT_EVENTS: Final = """
INSERT INTO fleet_event (tenant_id, source, event_id, type, run, subject, time_us, received_us,
                         sequence, boot_id, status, body, body_sha256, content_sha256)
SELECT %s, source, event_id, type, run, subject, time_us, %s,
       sequence, boot_id, status, body, body_sha256, content_sha256
  FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[],
              %s::bigint[], %s::text[], %s::text[], %s::bytea[], %s::text[], %s::text[])
    AS given (source, event_id, type, run, subject, time_us,
              sequence, boot_id, status, body, body_sha256, content_sha256)
 ORDER BY source, event_id
ON CONFLICT (tenant_id, source, event_id) DO NOTHING
RETURNING source, event_id
"""


def _insert(
    tenant_id: int, received_us: int, candidates: dict[Identity, Reading]
) -> dict[Identity, None]:
    """The identities that were new, in the order of the delivery."""
    if not candidates:
        return {}
    rows = list(candidates.values())
    statuses = [
        EventStatus.QUARANTINED if _is_future(row, received_us) else EventStatus.ACCEPTED
        for row in rows
    ]
    with connection.cursor() as cursor:
        cursor.execute(
            _INSERT_EVENTS,
            [
                tenant_id,
                received_us,
                [row.source for row in rows],
                [row.event_id for row in rows],
                [row.event_type for row in rows],
                [row.run for row in rows],
                [row.subject for row in rows],
                [row.time_us for row in rows],
                [row.sequence for row in rows],
                [row.boot_id for row in rows],
                [str(status) for status in statuses],
                [row.body for row in rows],
                [row.body_sha256 for row in rows],
                [row.content_sha256 for row in rows],
            ],
        )
        inserted = set(cursor.fetchall())
    return {key: None for key in candidates if key in inserted}


def _contents(tenant_id: int, identities: list[Identity]) -> dict[Identity, str]:
    """The content of what is in force already under these identities."""
    if not identities:
        return {}
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT e.source, e.event_id, e.content_sha256 FROM fleet_event e"
            " JOIN unnest(%s::text[], %s::text[]) AS given (source, event_id)"
            " ON (e.source, e.event_id) = (given.source, given.event_id)"
            " WHERE e.tenant_id = %s",
            [[key[0] for key in identities], [key[1] for key in identities], tenant_id],
        )
        return {(source, event_id): content for source, event_id, content in cursor.fetchall()}


def _judge(
    readings: Sequence[Reading],
    new: dict[Identity, None],
    in_force: dict[Identity, str],
    received_us: int,
) -> tuple[list[Result], list[Aside]]:
    results: list[Result] = []
    asides: list[Aside] = []
    told: set[Identity] = set()
    for reading in readings:
        event_id = reading.event_id or None
        if reading.problems:
            detail = "; ".join(reading.problems)[:1000]
            asides.append(Aside(reading, AsideReason.INVALID, detail))
            results.append(Result(event_id, "invalid", detail))
        elif reading.content_sha256 != in_force[reading.identity]:
            detail = "another body was received first under this source and id"
            asides.append(Aside(reading, AsideReason.CONFLICT, detail))
            results.append(Result(event_id, "conflict", detail))
        elif reading.identity not in new or reading.identity in told:
            results.append(Result(event_id, "duplicate"))
        elif _is_future(reading, received_us):
            told.add(reading.identity)
            detail = "its time is more than 5 minutes ahead of its receipt"
            results.append(Result(event_id, "quarantined", detail))
        else:
            told.add(reading.identity)
            results.append(Result(event_id, "accepted"))
    return results, asides


_INSERT_ASIDES: Final = """
INSERT INTO fleet_eventaside (tenant_id, reason, detail, source, event_id, run, time_us,
                              received_us, sequence, body, body_sha256)
SELECT %s, reason, detail, source, event_id, run, time_us, %s, sequence, body, body_sha256
  FROM unnest(%s::text[], %s::text[], %s::text[], %s::text[], %s::text[], %s::bigint[],
              %s::bigint[], %s::bytea[], %s::text[])
    AS given (reason, detail, source, event_id, run, time_us, sequence, body, body_sha256)
 ORDER BY source, event_id, body_sha256
ON CONFLICT (tenant_id, source, event_id, body_sha256) DO NOTHING
"""


def _insert_asides(tenant_id: int, received_us: int, asides: list[Aside]) -> int:
    """How many bodies were not kept before."""
    if not asides:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            _INSERT_ASIDES,
            [
                tenant_id,
                received_us,
                [str(aside.reason) for aside in asides],
                [aside.detail for aside in asides],
                [aside.reading.source for aside in asides],
                [aside.reading.event_id for aside in asides],
                [aside.reading.run for aside in asides],
                [aside.reading.time_us for aside in asides],
                [aside.reading.sequence for aside in asides],
                [aside.reading.body for aside in asides],
                [aside.reading.body_sha256 for aside in asides],
            ],
        )
        return int(cursor.rowcount)


def _ring_on_commit(tenant_id: int, received_us: int, readings: Sequence[Reading]) -> None:
    runs = frozenset(reading.run for reading in readings if reading.run)
    sources = frozenset(reading.source for reading in readings if reading.source)

    def ring() -> None:
        answers = events_accepted.send_robust(
            sender=None,
            tenant_id=tenant_id,
            runs=runs,
            sources=sources,
            received_us=received_us,
        )
        for receiver, answer in answers:
            if isinstance(answer, Exception):
                log.warning("events_accepted was not heard by %r: %r", receiver, answer)

    transaction.on_commit(ring)
