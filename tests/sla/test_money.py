"""R30-R32: the credit in integer minor units."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sla.domain.money import Amount, minor_units_of, split_amount
from sla.tables import exponent_of
from tests.sla.build import History


def missed(currency: str = "USD", **terms: Any) -> dict[str, Any]:
    history = History(**terms)
    history.document["contract"]["currency"] = currency
    history.incident("06-01", 1, lost=5)
    return history.year()


@pytest.mark.parametrize(
    ("terms", "minor_units"),
    [
        ({"year_fee": "1200.00"}, 30000),
        ({"year_fee": ["1200.00", "9.00"]}, 30000),
        ({"year_fee": "1200.00", "credit_rate": "1/3"}, 40000),
        ({"credit_base": "fixed", "credit_base_amount": "10"}, 250),
        ({"year_fee": "0.01"}, 1),
    ],
)
def test_r30_rate_times_base(terms: dict[str, Any], minor_units: int) -> None:
    assert missed(**terms)["credit"]["minor_units"] == minor_units


def test_r30_a_percentage_of_the_next_order_is_shown_as_written() -> None:
    year = missed(credit_base="next_order", credit_rate="25/100")

    assert year["credit"] == {"rate": "25/100", "of": "next_order"}


@pytest.mark.parametrize(
    ("currency", "fee", "amount", "minor_units"),
    [
        ("JPY", "1234567", "308642", 308642),
        ("KWD", "1.001", "0.251", 251),
        ("USD", "0.01", "0.01", 1),
        ("USD", "100.02", "25.01", 2501),
        ("CLF", "1.0001", "0.2501", 2501),
    ],
)
def test_r31_rounded_up_once_to_a_minor_unit(
    currency: str, fee: str, amount: str, minor_units: int
) -> None:
    credit = missed(currency, year_fee=fee)["credit"]

    assert credit == {"amount": amount, "minor_units": minor_units, "currency": currency}


def test_r31_exponents_are_those_of_iso_4217() -> None:
    """HUF and IQD have others in CLDR."""
    known = {name: exponent_of(name) for name in ("JPY", "USD", "KWD", "CLF", "HUF", "IQD")}

    assert known == {"JPY": 0, "USD": 2, "KWD": 3, "CLF": 4, "HUF": 2, "IQD": 3}
    assert [exponent_of(name) for name in ("XAU", "usd", "ABC", "DEM")] == [None] * 4


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**6), min_size=1, max_size=9))
def test_r31_parts_sum_exactly(total: int, weights: list[int]) -> None:
    if not any(weights):
        weights[0] = 1
    whole = sum(weights)

    parts = split_amount(Amount(minor_units=total, currency="USD", exponent=2), weights)

    assert sum(part.minor_units for part in parts) == total
    for part, weight in zip(parts, weights, strict=True):
        assert total * weight // whole <= part.minor_units <= -(-total * weight // whole)


@given(st.integers(0, 10**15), st.integers(0, 4))
def test_r31_text_and_minor_units_agree(minor_units: int, exponent: int) -> None:
    text = str(Amount(minor_units=minor_units, currency="XYZ", exponent=exponent))

    assert minor_units_of(text, exponent) == minor_units


def test_r31_currencies_never_mix() -> None:
    with pytest.raises(ValueError, match="USD and JPY do not add"):
        Amount(minor_units=1, currency="USD", exponent=2) + Amount(
            minor_units=1, currency="JPY", exponent=0
        )


@pytest.mark.parametrize(
    "terms",
    [
        {"year_fee": "0.00"},
        {"credit_rate": "0/1"},
        {"credit_rate": "0/1", "credit_base": "next_order"},
    ],
)
def test_r32_a_credit_of_zero_is_no_grant(terms: dict[str, Any]) -> None:
    year = missed(**terms)

    assert (year["outcome"], year["credit"], year["notes"]) == ("missed", None, ["zero_base"])
