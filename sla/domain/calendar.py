"""Contract years (R23): where each begins and ends. It knows nothing of what happened in them."""

from __future__ import annotations

import datetime as dt
from itertools import pairwise

from sla.domain.terms import Year

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SECOND = dt.timedelta(seconds=1)


def anniversary(anchor: dt.date, years: int) -> dt.date:
    """`anchor + years`; 29 February clamps to the 28th and comes back in leap years (R23)."""
    try:
        return anchor.replace(year=anchor.year + years)
    except ValueError:
        if (anchor.month, anchor.day) != (2, 29):
            raise
        return dt.date(anchor.year + years, 2, 28)


def local_midnight(day: dt.date, zone: dt.tzinfo) -> int:
    """Microseconds since the Unix epoch of the first instant of `day` in `zone` (R23).

    A midnight that does not exist becomes the first instant after the gap; an ambiguous one is
    the earlier (fold 0).
    """
    wall = dt.datetime(day.year, day.month, day.day, tzinfo=zone)
    before = wall.replace(tzinfo=dt.UTC) - _offset(wall)
    if (before.astimezone(zone)).replace(tzinfo=None) == wall.replace(tzinfo=None):
        return _micros(before)
    # In a gap: read with the offset after it, the wall clock lies before the change; read with the
    # offset before it, at or after. The change itself is the first instant of the day.
    low = wall.replace(tzinfo=dt.UTC) - _offset(wall.replace(fold=1))
    high, after = before, _offset(before.astimezone(zone))
    while high - low > _SECOND:
        middle = low + (high - low) // _SECOND // 2 * _SECOND
        if _offset(middle.astimezone(zone)) == after:
            high = middle
        else:
            low = middle
    return _micros(high)


def years_of(starts: dt.date, ends: dt.date, zone: dt.tzinfo) -> tuple[Year, ...]:
    """The contract's years; they tile [starts, ends), the last may be short (R23).

    Raises ValueError where the contract ends before it starts.
    """
    if ends <= starts:
        raise ValueError("a contract ends after it starts")
    days = [starts]
    while (day := anniversary(starts, len(days))) < ends:
        days.append(day)
    bounds = [local_midnight(day, zone) for day in [*days, ends]]
    return tuple(
        Year(index=index, start_us=start, end_us=end)
        for index, (start, end) in enumerate(pairwise(bounds), start=1)
    )


def year_at(years: tuple[Year, ...], instant_us: int) -> Year | None:
    """The year that contains the instant, None outside the contract."""
    for year in years:
        if year.start_us <= instant_us < year.end_us:
            return year
    return None


def _offset(moment: dt.datetime) -> dt.timedelta:
    return moment.utcoffset() or dt.timedelta(0)


def _micros(moment: dt.datetime) -> int:
    return (moment - _EPOCH) // dt.timedelta(microseconds=1)
