"""The books' tables; every row carries its tenant."""

from __future__ import annotations

from sla.models.assessments import Assessment, Grant, GrantVoid
from sla.models.contracts import Contract, ContractVersion, ContractYear, Customer
from sla.models.hand import Exclusion, Registration, Waiver
from sla.models.incidents import Incident, JudgedRun, Judgement, SweepCursor
from sla.models.sweeps import ContractSweep

__all__ = [
    "Assessment",
    "Contract",
    "ContractSweep",
    "ContractVersion",
    "ContractYear",
    "Customer",
    "Exclusion",
    "Grant",
    "GrantVoid",
    "Incident",
    "JudgedRun",
    "Judgement",
    "Registration",
    "SweepCursor",
    "Waiver",
]
