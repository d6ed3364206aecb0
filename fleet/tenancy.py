"""Owns whose rows a transaction sees: PostgreSQL's row-level security, set per transaction.

Without one of these scopes no tenant's row is visible and none can be written. The setting ends
with its transaction (SET LOCAL), so a pooled connection never carries it to the next request.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django.db import connection, transaction

SETTING = "unbroken.tenant"
EVERY_TENANT = "*"


@contextmanager
def tenant_scope(tenant_id: int) -> Iterator[None]:
    """Opens a transaction (or savepoint) that sees this tenant's rows only."""
    with _scope(str(tenant_id)):
        yield


@contextmanager
def every_tenant() -> Iterator[None]:
    """For the vendor's staff, sweepers and authentication: all rows. Say why at the call."""
    with _scope(EVERY_TENANT):
        yield


def set_scope(tenant_id: int | None) -> str:
    """Set it for the rest of the running transaction; None means every tenant.

    Returns the setting as it was. Raises RuntimeError outside a transaction, where it would
    last for no statement at all.
    """
    return _set(EVERY_TENANT if tenant_id is None else str(tenant_id))


@contextmanager
def _scope(value: str) -> Iterator[None]:
    with transaction.atomic():
        before = _set(value)
        yield
        # Where the block raises, the rollback restores it.
        _set(before)


def _set(value: str) -> str:
    if not connection.in_atomic_block:
        raise RuntimeError("a tenant is set per transaction: open one first")
    with connection.cursor() as cursor:
        # The old value is read by a subquery of its own, before the new one is set.
        cursor.execute(
            "WITH old AS MATERIALIZED (SELECT coalesce(current_setting(%s, true), '') AS value)"
            " SELECT old.value, set_config(%s, %s, true) FROM old",
            [SETTING, SETTING, value],
        )
        row = cursor.fetchone()
    return str(row[0])
