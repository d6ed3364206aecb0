"""The account manager's desk; importing registers it."""

from __future__ import annotations

from sla.admin import contracts, incidents, results

__all__ = ["contracts", "incidents", "results"]
