"""Takes values out of an event's data only where a column can hold them; wrong ones are absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

LARGEST_INTEGER: Final = 2**31 - 1
LARGEST_BIGINT: Final = 2**63 - 1
LARGEST_FLOAT: Final = 1e300


def whole(data: Mapping[str, Any], name: str, largest: int = LARGEST_BIGINT) -> int | None:
    """A whole number from 0."""
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= largest:
        return None
    return value


def signed(data: Mapping[str, Any], name: str) -> int | None:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > LARGEST_INTEGER:
        return None
    return value


def measure(data: Mapping[str, Any], name: str) -> float | None:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if abs(value) <= LARGEST_FLOAT else None


def text(data: Mapping[str, Any], name: str, longest: int) -> str:
    """Empty where it is no text; cut where it is too long."""
    value = data.get(name)
    return clean_text(value)[:longest] if isinstance(value, str) else ""


def flag(data: Mapping[str, Any], name: str) -> bool | None:
    value = data.get(name)
    return value if isinstance(value, bool) else None


def mapping(data: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = data.get(name)
    return clean_json(value) if isinstance(value, Mapping) else {}


def clean_text(value: str) -> str:
    """PostgreSQL holds neither NUL nor half a surrogate pair."""
    return value.replace("\x00", "").encode("utf-8", "replace").decode()


def clean_json(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, Mapping):
        return {clean_text(str(key)): clean_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [clean_json(entry) for entry in value]
    return value
