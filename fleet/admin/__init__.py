"""The fleet's desks; importing registers them."""

from __future__ import annotations

from fleet.admin import happenings, places

__all__ = ["happenings", "places"]
