"""Typed reading of a JSON document that collects every problem with its place; it never raises."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from runtime.events import parse_time

_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)


@dataclass(frozen=True)
class Node:
    """A JSON object at `place`; what it lacks goes to `problems`, one line each."""

    value: Mapping[str, Any]
    place: str
    problems: list[str]

    def complain(self, name: str, text: str) -> None:
        self.problems.append(f"{self.at(name)}: {text}")

    def at(self, name: str) -> str:
        return f"{self.place}.{name}" if self.place else name

    def has(self, name: str) -> bool:
        """Whether the field is there and not null."""
        return self.value.get(name) is not None

    def text(self, name: str) -> str:
        value = self.value.get(name)
        if isinstance(value, str) and value.strip():
            return value
        self.complain(name, "a text is required" if value is None else f"{_show(value)} is no text")
        return ""

    def instant(self, name: str) -> int | None:
        text = self.text(name)
        if not text:
            return None
        try:
            return parse_time(text)
        except ValueError as error:
            self.complain(name, str(error))
            return None

    def day(self, name: str) -> dt.date | None:
        text = self.text(name)
        if not text:
            return None
        try:
            if _DATE.fullmatch(text):
                return dt.date.fromisoformat(text)
        except ValueError:
            pass
        self.complain(name, f"{text!r} is not a date such as 2025-03-01")
        return None

    def names(self, name: str) -> frozenset[str]:
        """A list of texts; absent or null is empty."""
        value = self.value.get(name)
        if value is None:
            return frozenset()
        if isinstance(value, list) and all(isinstance(item, str) and item for item in value):
            return frozenset(value)
        self.complain(name, f"{_show(value)} is not a list of names")
        return frozenset()

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        text = self.text(name)
        if text and text not in choices:
            self.complain(name, f"{text!r} is not one of {', '.join(choices)}")
        return text

    def flag(self, name: str, default: bool) -> bool:
        value = self.value.get(name, default)
        if isinstance(value, bool):
            return value
        self.complain(name, f"{_show(value)} is neither true nor false")
        return default

    def whole(self, name: str, default: int, *, least: int = 0) -> int:
        value = self.value.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= least:
            return value
        self.complain(name, f"{_show(value)} is not a whole number of {least} or more")
        return default

    def number(self, name: str, default: Fraction) -> Fraction:
        """A JSON number of 0 or more, exactly as written."""
        value = self.value.get(name, default)
        if isinstance(value, Fraction):
            return value
        if isinstance(value, int | float) and not isinstance(value, bool):
            exact = Decimal(repr(value))
            if exact.is_finite() and exact >= 0:
                return Fraction(exact)
        self.complain(name, f"{_show(value)} is not a number of 0 or more")
        return default

    def child(self, name: str) -> Node:
        """The object under `name`; empty, with a complaint, where there is none."""
        value = self.value.get(name)
        if not isinstance(value, Mapping):
            self.complain(name, "an object is required")
            value = {}
        return Node(value, self.at(name), self.problems)

    def items(self, name: str, *, required: bool = False) -> list[Any]:
        value = self.value.get(name)
        if isinstance(value, list):
            return value
        if value is not None or required:
            self.complain(name, "a list is required")
        return []

    def children(self, name: str) -> list[Node]:
        """The objects of the list under `name`; absent is empty."""
        nodes = []
        for index, value in enumerate(self.items(name)):
            place = f"{self.at(name)}[{index}]"
            if isinstance(value, Mapping):
                nodes.append(Node(value, place, self.problems))
            else:
                self.problems.append(f"{place}: an object is required")
        return nodes


def _show(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
