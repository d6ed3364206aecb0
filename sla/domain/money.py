"""Money (R30-R32) in integer minor units of one currency; it never sees a float."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sla.domain.terms import Contract

_DECIMAL = re.compile(r"(\d+)(?:\.(\d+))?", re.ASCII)


@dataclass(frozen=True, kw_only=True)
class Amount:
    """`minor_units` of `currency`, whose ISO 4217 exponent is `exponent`."""

    minor_units: int
    currency: str
    exponent: int

    def __str__(self) -> str:
        sign, digits = "-" if self.minor_units < 0 else "", str(abs(self.minor_units))
        if self.exponent == 0:
            return sign + digits
        digits = digits.rjust(self.exponent + 1, "0")
        return f"{sign}{digits[: -self.exponent]}.{digits[-self.exponent :]}"

    def __add__(self, other: Amount) -> Amount:
        if (self.currency, self.exponent) != (other.currency, other.exponent):
            raise ValueError(f"{self.currency} and {other.currency} do not add")
        return Amount(
            minor_units=self.minor_units + other.minor_units,
            currency=self.currency,
            exponent=self.exponent,
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "amount": str(self),
            "minor_units": self.minor_units,
            "currency": self.currency,
        }


def minor_units_of(text: str, exponent: int) -> int:
    """A decimal text such as "1200000.00" → minor units.

    Raises ValueError for anything else, and for more digits than the currency has.
    """
    match = _DECIMAL.fullmatch(text)
    if match is None:
        raise ValueError(f'{text!r} is not an amount such as "1200000.00"')
    fraction = (match.group(2) or "").rstrip("0")
    if len(fraction) > exponent:
        raise ValueError(f"{text!r} has more than the {exponent} decimals of its currency")
    return int(match.group(1) + fraction.ljust(exponent, "0"))


def round_up(exact: Fraction) -> int:
    """The only rounding there is: up to a whole minor unit, once, at grant (R31)."""
    return -(-exact.numerator // exact.denominator)


def split_amount(total: Amount, weights: Sequence[int]) -> list[Amount]:
    """Parts in proportion to `weights` by the largest remainder: they sum to `total` exactly (R31).

    Ties go to the earlier part. Raises ValueError without a positive weight.
    """
    whole = sum(weights)
    if whole <= 0 or min(weights) < 0:
        raise ValueError("an amount is split by weights of 0 or more, not all of them 0")
    shares = [divmod(total.minor_units * weight, whole) for weight in weights]
    parts = [share for share, _ in shares]
    by_remainder = sorted(range(len(shares)), key=lambda place: -shares[place][1])
    for place in by_remainder[: total.minor_units - sum(parts)]:
        parts[place] += 1
    return [
        Amount(minor_units=part, currency=total.currency, exponent=total.exponent) for part in parts
    ]


def credit_of(contract: Contract, year_index: int) -> Amount | str | None:
    """The credit of a missed year (R30): an amount, the rate of the next order, or None for zero.

    The text is the rate as written, of an order whose amount is not known yet.
    """
    terms = contract.terms
    if terms.credit_base == "next_order":
        return str(terms.credit_rate) if terms.credit_rate.num else None
    if terms.credit_base == "fixed":
        base = terms.credit_base_amount
    else:
        base = terms.year_fees[year_index - 1]
    if base is None:
        raise ValueError("a fixed credit base without its amount")  # refused when terms are read
    minor_units = round_up(terms.credit_rate.value * base)
    if minor_units == 0:
        return None  # R32
    return Amount(minor_units=minor_units, currency=contract.currency, exponent=contract.exponent)


def credit_as_json(credit: Amount | str | None) -> dict[str, Any] | None:
    if isinstance(credit, str):
        return {"rate": credit, "of": "next_order"}
    return None if credit is None else credit.as_json()
