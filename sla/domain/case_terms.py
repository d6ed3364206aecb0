"""Reads the terms of a contract; an unknown or impossible one is a problem, never a default."""

from __future__ import annotations

import re
from dataclasses import fields
from fractions import Fraction
from typing import Any, Final

from sla.domain.money import minor_units_of
from sla.domain.reading import Node
from sla.domain.terms import DAY_US, HOUR_US, Ratio, Terms

_RATIO: Final = re.compile(r"(0|[1-9]\d*)/([1-9]\d*)", re.ASCII)
KNOWN: Final = (
    "target",
    "credit_rate",
    "credit_base",
    "year_fee",
    "credit_base_amount",
    "allow_exact_checkpoint",
    "count_confirmed_predictions",
    "recovery_deadline_hours",
    "max_recovery_seconds",
    "min_incidents",
    "evidence_grace_days",
    "restatement_days",
    "dispute_days",
    "aggregation",
    "clawback",
)
DEFAULTS: Final = {field.name: field.default for field in fields(Terms)}


def read_terms(node: Node, exponent: int, years: int) -> Terms:
    """Terms of a contract of `years` years in a currency with `exponent`; see `node.problems`."""
    for name in node.value:
        if name not in KNOWN:
            node.complain(name, f"there is no such term; the terms are {', '.join(KNOWN)}")
    base = "year_fee"
    if "credit_base" in node.value:
        base = node.choice("credit_base", ("year_fee", "next_order", "fixed"))
    if "aggregation" in node.value:
        node.choice("aggregation", ("pooled",))
    default = Terms()
    known: dict[str, Any] = {
        "target": _ratio(node, "target", default.target),
        "credit_rate": _ratio(node, "credit_rate", default.credit_rate),
        "credit_base": base,
        "year_fees": _year_fees(node, exponent, years, required=base == "year_fee"),
        "credit_base_amount": _fixed_base(node, exponent, required=base == "fixed"),
        "allow_exact_checkpoint": node.flag("allow_exact_checkpoint", False),
        "count_confirmed_predictions": node.flag("count_confirmed_predictions", False),
        "recovery_deadline_us": _hours(node, "recovery_deadline_hours", 24),
        "max_recovery_seconds": (
            node.number("max_recovery_seconds", Fraction(0))
            if node.has("max_recovery_seconds")
            else None
        ),
        "min_incidents": node.whole("min_incidents", 0),
        "evidence_grace_us": node.whole("evidence_grace_days", 30) * DAY_US,
        "restatement_us": node.whole("restatement_days", 365) * DAY_US,
        "dispute_us": node.whole("dispute_days", 60) * DAY_US,
        "clawback": node.flag("clawback", False),
    }
    return Terms(**known)


def _ratio(node: Node, name: str, default: Ratio) -> Ratio:
    if name not in node.value:
        return default
    value = node.value[name]
    match = _RATIO.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        node.complain(name, f'{value!r} is not a fraction such as "{default}"')
        return default
    ratio = Ratio(num=int(match.group(1)), den=int(match.group(2)))
    if ratio.num > ratio.den:
        node.complain(name, f"{value!r} is more than the whole")
    return ratio


def _hours(node: Node, name: str, default: int) -> int:
    exact = node.number(name, Fraction(default)) * HOUR_US
    if exact.denominator != 1:
        node.complain(name, "is not a whole number of microseconds")
    return int(exact)


def _amount(node: Node, name: str, value: object, exponent: int) -> int:
    if isinstance(value, str):
        try:
            return minor_units_of(value, exponent)
        except ValueError as error:
            node.complain(name, str(error))
            return 0
    node.complain(name, f'{value!r} is not an amount as text, such as "1200000.00"')
    return 0


def _year_fees(node: Node, exponent: int, years: int, *, required: bool) -> tuple[int, ...]:
    """One fee a year; a single value holds for every year as it stands (R30)."""
    value = node.value.get("year_fee")
    if value is None:
        if required:
            node.complain("year_fee", "the base of the credit is required; it is never zero")
        return ()
    if not isinstance(value, list):
        return (_amount(node, "year_fee", value, exponent),) * years
    if len(value) != years:
        node.complain("year_fee", f"gives {len(value)} fees for a contract of {years} years")
    return tuple(
        _amount(node, f"year_fee[{index}]", fee, exponent) for index, fee in enumerate(value)
    )


def _fixed_base(node: Node, exponent: int, *, required: bool) -> int | None:
    value = node.value.get("credit_base_amount")
    if value is None:
        if required:
            node.complain("credit_base_amount", "the base of the credit is required")
        return None
    return _amount(node, "credit_base_amount", value, exponent)
