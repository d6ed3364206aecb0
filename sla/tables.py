"""What the world knows and the rules are told: ISO 4217 exponents and IANA time zones."""

from __future__ import annotations

import datetime as dt
import zoneinfo
from typing import Final

from iso4217 import Currency

from sla.domain.case import Tables


def exponent_of(currency: str) -> int | None:
    """The ISO 4217 exponent; None where there is no such currency, or none one can pay in."""
    try:
        return Currency(currency).exponent
    except ValueError:
        return None


def zone_of(name: str) -> dt.tzinfo | None:
    """The IANA zone; None where there is no such zone."""
    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return None


TABLES: Final = Tables(exponent_of=exponent_of, zone_of=zone_of)
