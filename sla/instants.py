"""Between instants as the rules have them (microseconds) and as the database has them."""

from __future__ import annotations

import datetime as dt

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def to_us(moment: dt.datetime) -> int:
    """Whole microseconds since the Unix epoch. Raises TypeError for a naive datetime."""
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)


def from_us(instant_us: int) -> dt.datetime:
    return _EPOCH + dt.timedelta(microseconds=instant_us)
