"""Reads a delivered body into events, each with its bytes as received. Pure: no clock, no store.

What an event must hold to be readable is said in runtime.events alone (rule R15); here it is only
made sure that what was read can be stored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from runtime.events import canonical_json, parse_time, problems_of, run_of, sha256_hex

MOST_EVENTS: Final = 1_000
MOST_EVENT_BYTES: Final = 64 * 1024
LONGEST: Final = {"source": 500, "id": 200, "type": 100, "subject": 500, "bootid": 100}
LONGEST_RUN: Final = 200
LARGEST_BIGINT: Final = 2**63 - 1


class MalformedBodyError(ValueError):
    """The body as a whole is not JSON of the promised shape."""


class TooManyEventsError(ValueError):
    """More events than one delivery may hold."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One event as far as it could be read; `problems` empty: it is readable.

    `content` is the canonical JSON without `recordedtime`: two bodies are the same iff it is.
    """

    body: bytes
    problems: tuple[str, ...]
    source: str
    event_id: str
    event_type: str
    run: str
    subject: str
    boot_id: str
    time_us: int | None
    sequence: int | None
    content: bytes
    fields: Mapping[str, Any]

    @property
    def identity(self) -> tuple[str, str]:
        return self.source, self.event_id

    @property
    def body_sha256(self) -> str:
        return sha256_hex(self.body)

    @property
    def content_sha256(self) -> str:
        return sha256_hex(self.content)


def read_batch(body: bytes) -> list[Reading]:
    """Of a JSON array; raises MalformedBodyError, TooManyEventsError."""
    text = _text_of(body)
    start = _skip_blanks(text, 0)
    if text[start : start + 1] != "[":
        raise MalformedBodyError("a batch is a JSON array of events")
    readings: list[Reading] = []
    position = _skip_blanks(text, start + 1)
    if text[position : position + 1] == "]":
        raise MalformedBodyError("a batch holds at least one event")
    while True:
        if len(readings) == MOST_EVENTS:
            raise TooManyEventsError(f"a batch holds at most {MOST_EVENTS} events")
        value, end = _decode(text, position)
        readings.append(read_event(text[position:end].encode(), value))
        position = _skip_blanks(text, end)
        mark = text[position : position + 1]
        position = _skip_blanks(text, position + 1)
        if mark == "]":
            break
        if mark != ",":
            raise MalformedBodyError(f"a comma or ] is missing at character {position}")
    if position != len(text):
        raise MalformedBodyError(f"something follows the batch at character {position}")
    return readings


def read_single(body: bytes) -> list[Reading]:
    """Of one JSON object; raises MalformedBodyError."""
    text = _text_of(body)
    value, end = _decode(text, _skip_blanks(text, 0))
    if _skip_blanks(text, end) != len(text):
        raise MalformedBodyError(f"something follows the event at character {end}")
    return [read_event(body, value)]


def read_event(body: bytes, value: object) -> Reading:
    """Never raises: what cannot be read is said in `problems`."""
    problems = problems_of(value)
    fields: Mapping[str, Any] = value if isinstance(value, Mapping) else {}
    if len(body) > MOST_EVENT_BYTES:
        problems.append(f"{len(body)} bytes: an event has at most {MOST_EVENT_BYTES}")
    problems += _unstorable(fields)
    try:
        content = canonical_json({k: v for k, v in fields.items() if k != "recordedtime"})
    except ValueError:
        content = body
        problems.append("a number is out of range")
    return Reading(
        body=body,
        problems=tuple(problems),
        source=_storable(fields, "source"),
        event_id=_storable(fields, "id"),
        event_type=_storable(fields, "type"),
        run=_run(fields),
        subject=_storable(fields, "subject"),
        boot_id=_storable(fields, "bootid"),
        time_us=_time(fields.get("time")),
        sequence=_sequence(fields.get("sequence")),
        content=content,
        fields=fields,
    )


def _text_of(body: bytes) -> str:
    try:
        return body.decode()
    except UnicodeDecodeError as error:
        raise MalformedBodyError(f"not UTF-8 at byte {error.start}") from error


def _no_constants(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_decoder: Final = json.JSONDecoder(parse_constant=_no_constants)


def _decode(text: str, position: int) -> tuple[Any, int]:
    """The value at a position and where it ends, so that its bytes can be kept as they came."""
    try:
        return _decoder.raw_decode(text, position)
    except RecursionError as error:
        raise MalformedBodyError("nested too deep") from error
    except ValueError as error:
        raise MalformedBodyError(f"not JSON: {error}") from error


def _skip_blanks(text: str, position: int) -> int:
    while position < len(text) and text[position] in " \t\r\n":
        position += 1
    return position


def _fits(value: object, longest: int) -> bool:
    """PostgreSQL's text holds no NUL, and UTF-8 no lone surrogate."""
    if not isinstance(value, str) or len(value) > longest or "\x00" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _unstorable(fields: Mapping[str, Any]) -> list[str]:
    problems = [
        f"{name} is longer than {longest} characters or holds one that cannot be stored"
        for name, longest in LONGEST.items()
        if isinstance(fields.get(name), str) and not _fits(fields[name], longest)
    ]
    run = run_of(fields)
    if run is not None and not _fits(run, LONGEST_RUN):
        problems.append(f"the run's name is longer than {LONGEST_RUN} characters or not text")
    return problems


def _storable(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    return value if isinstance(value, str) and _fits(value, LONGEST[name]) else ""


def _run(fields: Mapping[str, Any]) -> str:
    run = run_of(fields)
    return run if run is not None and _fits(run, LONGEST_RUN) else ""


def _time(value: object) -> int | None:
    try:
        return parse_time(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _sequence(value: object) -> int | None:
    """A decimal string from "1"; anything else is no number that could fill a hole."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 19:
        number = int(value)
        return number if 0 < number <= LARGEST_BIGINT else None
    return None
