"""Reads a case file's document into a Case, or says what is wrong with it and where.

Currencies and time zones are looked up by the caller: the rules do no I/O.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sla.domain.calendar import years_of
from sla.domain.case_hand import read_exclusion, read_registration, read_waiver
from sla.domain.case_terms import read_terms
from sla.domain.reading import Node
from sla.domain.replay import Case
from sla.domain.terms import Contract, Year


class BadCase(ValueError):
    """The document is not a case; `problems` has one line each, with its place in the file."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, kw_only=True)
class Tables:
    """What the world knows: ISO 4217 exponents and IANA zones; None for an unknown name."""

    exponent_of: Callable[[str], int | None]
    zone_of: Callable[[str], dt.tzinfo | None]


def read_case(document: object, tables: Tables, *, place: str = "") -> Case:
    """Raises BadCase with every problem found; a bad event is none of them (R15)."""
    problems: list[str] = []
    if not isinstance(document, Mapping):
        raise BadCase([f"{place or 'the file'}: an object is required"])
    node = Node(document, place, problems)
    contract = read_contract(node.child("contract"), tables)
    as_of_us = node.instant("as_of")
    events = node.items("events", required=True)
    exclusions = tuple(read_exclusion(child) for child in node.children("exclusions"))
    registrations = tuple(read_registration(child) for child in node.children("registered"))
    waivers = tuple(read_waiver(child) for child in node.children("waived_gaps"))
    if problems or contract is None or as_of_us is None:
        raise BadCase(problems)
    return Case(
        contract=contract,
        as_of_us=as_of_us,
        events=events,
        exclusions=exclusions,
        registrations=registrations,
        waivers=waivers,
        covered_runs=node.names("covered_runs"),
    )


def read_contract(node: Node, tables: Tables) -> Contract | None:
    """The contract with its years; None, and complaints, where something is wrong with it."""
    before = len(node.problems)
    number, customer = node.text("number"), node.text("customer")
    currency, timezone = node.text("currency"), node.text("timezone")
    exponent = tables.exponent_of(currency) if currency else None
    if currency and exponent is None:
        node.complain("currency", f"{currency!r} is not a currency of ISO 4217")
    years = _read_years(node, timezone, tables)
    terms = read_terms(
        node.child("terms"), 2 if exponent is None else exponent, len(years) if years else 1
    )
    starts, ends = node.value.get("starts"), node.value.get("ends")
    if len(node.problems) > before or exponent is None or not years:
        return None
    return Contract(
        number=number,
        customer=customer,
        currency=currency,
        exponent=exponent,
        timezone=timezone,
        starts=dt.date.fromisoformat(str(starts)),
        ends=dt.date.fromisoformat(str(ends)),
        years=years,
        terms=terms,
    )


def _read_years(node: Node, timezone: str, tables: Tables) -> tuple[Year, ...]:
    starts, ends = node.day("starts"), node.day("ends")
    zone = tables.zone_of(timezone) if timezone else None
    if timezone and zone is None:
        node.complain("timezone", f"{timezone!r} is not a zone of the IANA database")
    if starts is None or ends is None or zone is None:
        return ()
    try:
        return years_of(starts, ends, zone)
    except (ValueError, OverflowError) as error:
        node.complain("ends", str(error))
        return ()
