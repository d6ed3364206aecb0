"""Every advisory lock of the service, numbered for ever; the order in which they are taken.

1. EVIDENCE_CLOCK, then row locks. Ingest holds it shared from before it reads its receipt
instant until its commit. A judge or closer takes it exclusively for a moment: once it has it, no
event with a receipt instant up to its horizon is still on its way.
"""

from __future__ import annotations

from enum import IntEnum

from django.db import connection

SPACE = 0x554E42  # "UNB": keeps these numbers apart from other programs' in one database


class Lock(IntEnum):
    EVIDENCE_CLOCK = 1


def receipt_instant() -> int:
    """Take the evidence clock shared until commit, then read it: microseconds since the epoch.

    Waits behind a judge that fixes its horizon, which takes one round trip. Needs a transaction.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_advisory_xact_lock_shared(%s, %s)", [SPACE, int(Lock.EVIDENCE_CLOCK)]
        )
        return _clock(cursor)


def fix_horizon() -> int:
    """The instant up to which all evidence is committed: microseconds since the epoch.

    Takes the evidence clock exclusively (waits for running ingests), reads it and lets it go at
    once: later ingests get later instants. Read the evidence in a statement after this call, in
    READ COMMITTED; a snapshot taken before it may miss what it promises.
    """
    with connection.cursor() as cursor:
        key = [SPACE, int(Lock.EVIDENCE_CLOCK)]
        cursor.execute("SELECT pg_advisory_lock(%s, %s)", key)
        try:
            return _clock(cursor)
        finally:
            cursor.execute("SELECT pg_advisory_unlock(%s, %s)", key)


def _clock(cursor: object) -> int:
    cursor.execute("SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint")  # type: ignore[attr-defined]
    return int(cursor.fetchone()[0])  # type: ignore[attr-defined]
