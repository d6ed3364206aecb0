"""What can go wrong in the fleet, each with the code, status and title an API client sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong: `pointer` is a JSON pointer into the request, "" for all of it."""

    pointer: str
    detail: str


class FleetError(Exception):
    """`is_retryable`: sending the same again later may succeed."""

    code: ClassVar[str] = "fleet-error"
    status: ClassVar[int] = 500
    title: ClassVar[str] = "The fleet service failed"
    is_retryable: ClassVar[bool] = False

    def __init__(self, detail: str, faults: tuple[Fault, ...] = ()) -> None:
        super().__init__(detail)
        self.detail = detail
        self.faults = faults


class MalformedBodyError(FleetError):
    code = "malformed-body"
    status = 400
    title = "The body cannot be read"


class BodyTooLargeError(FleetError):
    code = "too-large"
    status = 413
    title = "The request is too large"


class MediaTypeError(FleetError):
    code = "unsupported-media-type"
    status = 415
    title = "The media type is not accepted here"


class SourceNotBoundError(FleetError):
    code = "source-not-bound"
    status = 403
    title = "The token is not bound to this source"


class NodeNotBoundError(FleetError):
    code = "node-not-bound"
    status = 403
    title = "The token is not bound to this node"


class UnknownPlaceError(FleetError):
    code = "unknown-place"
    status = 422
    title = "The request names something that does not exist"


class RunConflictError(FleetError):
    code = "run-conflict"
    status = 409
    title = "The run is registered already, otherwise"
