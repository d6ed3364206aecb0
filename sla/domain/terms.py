"""What a contract says: its terms with their defaults. It judges nothing."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from fractions import Fraction
from typing import Final, Literal

RULES_VERSION: Final = "1"

HOUR_US: Final = 3_600_000_000
DAY_US: Final = 24 * HOUR_US

CreditBase = Literal["year_fee", "next_order", "fixed"]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """A fraction as it was written, so that it can be printed as it was signed."""

    num: int
    den: int

    def __str__(self) -> str:
        return f"{self.num}/{self.den}"

    @property
    def value(self) -> Fraction:
        return Fraction(self.num, self.den)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Every field a contract may set; the defaults are those of docs/rules.md.

    `year_fees` and `credit_base_amount` are in minor units of the contract's currency; `year_fees`
    has one entry for every year of the contract.
    """

    target: Ratio = Ratio(num=9, den=10)
    credit_rate: Ratio = Ratio(num=1, den=4)
    credit_base: CreditBase = "year_fee"
    year_fees: tuple[int, ...] = ()
    credit_base_amount: int | None = None
    allow_exact_checkpoint: bool = False
    count_confirmed_predictions: bool = False
    recovery_deadline_us: int = 24 * HOUR_US
    max_recovery_seconds: Fraction | None = None
    min_incidents: int = 0
    evidence_grace_us: int = 30 * DAY_US
    restatement_us: int = 365 * DAY_US
    dispute_us: int = 60 * DAY_US
    aggregation: Literal["pooled"] = "pooled"
    clawback: bool = False


@dataclass(frozen=True, kw_only=True)
class Contract:
    """`exponent` is that of the currency in ISO 4217; `years` are those of `calendar.years_of`."""

    number: str
    customer: str
    currency: str
    exponent: int
    timezone: str
    starts: dt.date
    ends: dt.date
    years: tuple[Year, ...]
    terms: Terms


@dataclass(frozen=True, kw_only=True)
class Year:
    """A half-open span [start, end) in microseconds since the Unix epoch; `index` counts from 1."""

    index: int
    start_us: int
    end_us: int
