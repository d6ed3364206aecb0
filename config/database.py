"""Owns which database is spoken to, as whom: unbroken_app serves, unbroken_owner migrates."""

from __future__ import annotations

from typing import Any

from config.embedded import Place
from config.environment import Environment, database_from_url

# Of the role that serves: a stuck statement or a forgotten transaction frees its locks.
APP_OPTIONS = (
    "-c lock_timeout=10s -c statement_timeout=120s -c idle_in_transaction_session_timeout=120s"
)


def databases(environment: Environment, place: Place | None) -> dict[str, dict[str, Any]]:
    """`default` is unbroken_app; `owner` exists where its credentials do."""
    if environment.database_url is None and place is not None:
        embedded = {"NAME": "unbroken", "HOST": str(place.socket_dir), "PORT": "5432"}
        app = {**embedded, "USER": "unbroken_app", "OPTIONS": {}, "EMBEDDED": place}
        owner = {**embedded, "USER": "unbroken_owner", "OPTIONS": {}, "EMBEDDED": place}
        return {"default": _finished(app, APP_OPTIONS), "owner": _finished(owner, "")}
    found = {}
    for alias, variable, secret, options in (
        ("default", "DATABASE_URL", environment.database_url, APP_OPTIONS),
        ("owner", "DATABASE_OWNER_URL", environment.database_owner_url, ""),
    ):
        if secret is not None:
            url = secret.get_secret_value()
            found[alias] = _finished(database_from_url(variable, url), options)
    return found


def _finished(settings: dict[str, Any], options: str) -> dict[str, Any]:
    given = settings["OPTIONS"]
    joined = " ".join(part for part in (given.get("options", ""), options) if part)
    return {
        "ENGINE": "config.postgresql",
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
        **settings,
        "OPTIONS": {"connect_timeout": 10, **given, **({"options": joined} if joined else {})},
    }


class OwnerMigrates:
    """Database router: tables are made through `owner` only, rows are read through `default`."""

    def allow_migrate(self, db: str, app_label: str, **_hints: Any) -> bool:
        return db == "owner"
