"""Fixtures for everyone: the database is made by unbroken_owner, tests run as unbroken_app."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from django.db import connections
from django.test import TransactionTestCase


@pytest.fixture(scope="session")
def django_db_setup(
    request: pytest.FixtureRequest,
    django_test_environment: None,
    django_db_blocker: Any,
    django_db_use_migrations: bool,
    django_db_modify_db_settings: None,
) -> Iterator[None]:
    """pytest-django's own would create the tables as the role that the tests run as."""
    app, owner = connections["default"], connections["owner"]
    with django_db_blocker.unblock():
        name = owner.creation.create_test_db(verbosity=0, autoclobber=True, serialize=False)
        app.close()
        app.settings_dict["NAME"] = name
        yield
        for connection in (app, owner):
            connection.close()
        owner.creation.destroy_test_db("unbroken", verbosity=0)


# Made by migrate, not by tests.
KEPT_TABLES = {"django_migrations", "django_content_type", "auth_permission"}


@pytest.fixture(autouse=True, scope="session")
def _flush_as_owner() -> Iterator[None]:
    """A transactional test ends with TRUNCATE, which unbroken_app may not."""
    original = TransactionTestCase._fixture_teardown
    TransactionTestCase._fixture_teardown = lambda self: truncate_everything()
    yield
    TransactionTestCase._fixture_teardown = original


def truncate_everything() -> None:
    """On a connection of its own: Django bars tests from connections that they did not name."""
    owner = connections["owner"]
    parameters = {**owner.get_connection_params(), "dbname": owner.settings_dict["NAME"]}
    for unknown in ("cursor_factory", "context", "prepare_threshold"):
        parameters.pop(unknown, None)
    with psycopg.connect(**parameters) as connection:
        tables = connection.execute(
            "SELECT quote_ident(tablename) FROM pg_tables WHERE schemaname = 'public'"
        ).fetchall()
        names = [name for (name,) in tables if name not in KEPT_TABLES]
        connection.execute(f"TRUNCATE {', '.join(names)} RESTART IDENTITY CASCADE")
