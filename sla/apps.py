"""The app of what the fleet's record means under a contract."""

from __future__ import annotations

from django.apps import AppConfig


class SlaConfig(AppConfig):
    name = "sla"
    verbose_name = "Guarantee"

    def ready(self) -> None:
        from fleet.scopes import declare_scope
        from fleet.signals import events_accepted
        from sla import scopes, tasks

        for name, meaning in scopes.MEANINGS.items():
            declare_scope(name, meaning)
        events_accepted.connect(tasks.ring, dispatch_uid="sla.ring")
