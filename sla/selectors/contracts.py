"""Contracts out of the database, as the rules and the case files have them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sla.domain.case import BadCase, read_contract
from sla.domain.coverage import Scope
from sla.domain.reading import Node
from sla.domain.terms import DAY_US, Terms, Year
from sla.domain.terms import Contract as DomainContract
from sla.instants import to_us
from sla.models import Contract, ContractVersion
from sla.tables import TABLES


def version_in_force(contract: Contract) -> ContractVersion:
    """The latest version; amendments by mode come with the books' next issue (R39)."""
    return max(contract.versions.all(), key=lambda version: version.number)


def grace_of(terms: dict[str, Any]) -> int:
    """Microseconds between a year's end and its first possible close."""
    days = terms.get("evidence_grace_days")
    return Terms().evidence_grace_us if days is None else int(days) * DAY_US


def contract_document(contract: Contract, terms: dict[str, Any] | None = None) -> dict[str, Any]:
    """The contract in the words of a case file."""
    return {
        "number": contract.number,
        "customer": contract.customer.name,
        "currency": contract.currency,
        "timezone": contract.timezone,
        "starts": contract.starts_on.isoformat(),
        "ends": contract.ends_on.isoformat(),
        "terms": version_in_force(contract).terms if terms is None else terms,
    }


def domain_contract(contract: Contract) -> DomainContract:
    """The contract as the rules see it, with the years that were fixed when it was opened (R23)."""
    problems: list[str] = []
    known = read_contract(Node(contract_document(contract), "contract", problems), TABLES)
    if known is None:
        raise BadCase(problems)
    years = tuple(
        Year(index=year.index, start_us=to_us(year.starts_at), end_us=to_us(year.ends_at))
        for year in contract.years.order_by("index")
    )
    return replace(known, years=years)


def scopes_of(tenant_id: int) -> list[Scope]:
    """What each contract of the tenant covers (R40)."""
    contracts = Contract.objects.filter(tenant_id=tenant_id).prefetch_related("years")
    scopes = []
    for contract in contracts:
        years = list(contract.years.all())
        scopes.append(
            Scope(
                number=contract.number,
                clusters=frozenset(contract.clusters),
                start_us=to_us(years[0].starts_at),
                end_us=to_us(years[-1].ends_at),
                signed=(contract.signed_on.toordinal(), contract.pk),
            )
        )
    return scopes
