"""What can go wrong in the books, each with a code and an HTTP status; caught at the edge only."""

from __future__ import annotations

from typing import ClassVar


class SlaError(Exception):
    """`code` is stable; `problems` has one line each where there are several."""

    code: ClassVar = "sla_error"
    status: ClassVar = 500
    title: ClassVar = "The books could not do this"
    retryable: ClassVar = False

    def __init__(self, detail: str, problems: tuple[str, ...] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.problems = problems


class InvalidContract(SlaError):
    code = "invalid_contract"
    status = 422
    title = "The contract cannot be opened as it is"


class InvalidEntry(SlaError):
    code = "invalid_entry"
    status = 422
    title = "The entry cannot be recorded as it is"


class BooksDiverge(SlaError):
    """A revision that was made does not come out again: never overwritten, a person must look."""

    code = "books_diverge"
    title = "A recorded revision does not come out again"
