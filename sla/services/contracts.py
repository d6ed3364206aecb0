"""Opening a contract: its first version and its years, fixed in one transaction."""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import IntegrityError, transaction

from sla.domain.case import read_contract
from sla.domain.reading import Node
from sla.domain.terms import Contract as DomainContract
from sla.errors import InvalidContractError
from sla.instants import from_us
from sla.models import Contract, ContractVersion, ContractYear, Customer, JudgedRun
from sla.tables import TABLES


@dataclass(frozen=True, kw_only=True)
class NewContract:
    """What is signed; `terms` in the words of a case file, dates in the contract's zone.

    `clusters` empty covers every cluster of the customer's tenant (R40).
    """

    number: str
    currency: str
    timezone: str
    starts_on: dt.date
    ends_on: dt.date
    terms: dict[str, Any]
    clusters: Sequence[str] = field(default_factory=tuple)
    signed_on: dt.date | None = None


def create_customer(*, tenant_id: int, name: str) -> Customer:
    return Customer.objects.create(tenant_id=tenant_id, name=name)


@transaction.atomic
def open_contract(
    *, customer: Customer, new: NewContract, recorded_by: str, now: dt.datetime
) -> Contract:
    """Raises InvalidContractError, with every problem, where it is not a contract of the rules."""
    known = check_contract(customer, new)
    try:
        with transaction.atomic():
            contract = Contract.objects.create(
                tenant_id=customer.tenant_id,
                customer=customer,
                number=new.number,
                currency=new.currency,
                timezone=new.timezone,
                starts_on=new.starts_on,
                ends_on=new.ends_on,
                signed_on=new.signed_on or now.date(),
                clusters=list(new.clusters),
            )
    except IntegrityError as error:
        problem = f"contract.number: {new.number!r} is taken"
        raise InvalidContractError.of_problems([problem]) from error
    ContractVersion.objects.create(
        tenant_id=customer.tenant_id,
        contract=contract,
        number=1,
        terms=new.terms,
        effective_on=new.starts_on,
        recorded_at=now,
        recorded_by=recorded_by,
    )
    ContractYear.objects.bulk_create(
        ContractYear(
            tenant_id=customer.tenant_id,
            contract=contract,
            index=year.index,
            starts_at=from_us(year.start_us),
            ends_at=from_us(year.end_us),
        )
        for year in known.years
    )
    # Runs that were judged before it may be its own (R40): all of the tenant's are due again.
    JudgedRun.objects.filter(tenant_id=customer.tenant_id).update(judged_us=0)
    return contract


def check_contract(customer: Customer, new: NewContract) -> DomainContract:
    """The contract as the rules read it; writes nothing. Raises InvalidContractError."""
    document = {
        "number": new.number,
        "customer": customer.name,
        "currency": new.currency,
        "timezone": new.timezone,
        "starts": new.starts_on.isoformat(),
        "ends": new.ends_on.isoformat(),
        "terms": new.terms,
    }
    problems: list[str] = []
    known = read_contract(Node(document, "contract", problems), TABLES)
    if known is None:
        raise InvalidContractError.of_problems(problems)
    return known
