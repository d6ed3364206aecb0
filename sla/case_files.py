"""Case files on disk: reading one, and the first difference from what it expects."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from sla.domain.case import BadCase, read_case
from sla.domain.replay import Case
from sla.tables import TABLES


@dataclass(frozen=True, kw_only=True)
class CaseFile:
    """A case, and the document that it is expected to give, where the file holds one."""

    case: Case
    expect: object | None
    has_expect: bool


def read_case_file(path: Path) -> CaseFile:
    """Raises BadCase, whose problems each name their place in the file."""
    document = _load(path)
    is_wrapped = isinstance(document, Mapping) and "case" in document
    if not is_wrapped:
        return CaseFile(case=read_case(document, TABLES), expect=None, has_expect=False)
    case = read_case(document["case"], TABLES, place="case")
    return CaseFile(case=case, expect=document.get("expect"), has_expect="expect" in document)


def _load(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes().decode(), parse_constant=_refuse_constant)
    except OSError as error:
        raise BadCase([f"the file cannot be read: {error.strerror or error}"]) from error
    except UnicodeDecodeError as error:
        raise BadCase([f"byte {error.start}: not UTF-8"]) from error
    except json.JSONDecodeError as error:
        raise BadCase([f"line {error.lineno}, column {error.colno}: {error.msg}"]) from error
    except (ValueError, RecursionError) as error:
        raise BadCase([f"the file is not JSON: {error}"]) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a number of JSON")


def first_difference(expected: object, got: object, place: str = "") -> str | None:
    """One line that names the first place where two documents differ; None where they are equal."""
    if isinstance(expected, Mapping) and isinstance(got, Mapping):
        for name in [*expected, *(name for name in got if name not in expected)]:
            where = f"{place}.{name}" if place else str(name)
            if name not in got:
                return f"{where}: expected {_show(expected[name])}, got nothing"
            if name not in expected:
                return f"{where}: expected nothing, got {_show(got[name])}"
            if (found := first_difference(expected[name], got[name], where)) is not None:
                return found
        return None
    if isinstance(expected, list) and isinstance(got, list):
        for index, pair in enumerate(zip(expected, got, strict=False)):
            if (found := first_difference(*pair, f"{place}[{index}]")) is not None:
                return found
        if len(expected) != len(got):
            return f"{place}: expected {len(expected)} entries, got {len(got)}"
        return None
    if type(expected) is type(got) and expected == got:
        return None
    return f"{place or 'the document'}: expected {_show(expected)}, got {_show(got)}"


def _show(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
