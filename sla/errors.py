"""What can go wrong in the books, each with a stable code; caught at the edge only."""

from __future__ import annotations

from typing import ClassVar

from fleet.errors import Fault


class SlaError(Exception):
    """Same attributes as fleet.errors.FleetError, so one handler answers for both."""

    code: ClassVar[str] = "sla-error"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "The books could not do this"
    is_retryable: ClassVar[bool] = False

    def __init__(self, detail: str, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.faults = faults

    @classmethod
    def of_problems(cls, problems: list[str]) -> SlaError:
        """From lines such as `contract.terms.target: ...`, each with its place."""
        faults = []
        for problem in problems:
            place, _, detail = problem.partition(": ")
            faults.append(Fault("/" + place.replace(".", "/"), detail))
        return cls("; ".join(problems), tuple(faults))


class InvalidContractError(SlaError):
    code = "invalid-contract"
    status = 422
    title = "The contract cannot be opened as it is"


class InvalidEntryError(SlaError):
    code = "invalid-entry"
    status = 422
    title = "The entry cannot be recorded as it is"


class BooksDivergeError(SlaError):
    """A recorded revision does not come out again: never overwritten, a person must look."""

    code = "books-diverge"
    title = "A recorded revision does not come out again"
