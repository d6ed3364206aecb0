"""Owns the moment of the first connection: only then is the embedded PostgreSQL started.

Commands that never open a connection (check, replay) therefore start nothing.
"""

from __future__ import annotations

from typing import Any

from django.db.backends.postgresql import base

from config import embedded


class DatabaseWrapper(base.DatabaseWrapper):
    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        place = self.settings_dict.get("EMBEDDED")
        if place is not None:
            embedded.join(place)
        return super().get_new_connection(conn_params)
