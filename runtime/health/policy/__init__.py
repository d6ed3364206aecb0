"""The health policy as data: it loads and checks the versioned TOML tables, and decides nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast, get_args

from runtime.events import Action, Memory, Severity

SHIPPED_THERMAL: Final = Path(__file__).with_name("thermal.toml")
THRESHOLDS: Final = frozenset({"gpu_max", "slowdown", "shutdown", "mem_max"})


class PolicyError(Exception):
    """A policy file that cannot be used; the message says where and why."""


@dataclass(frozen=True, slots=True)
class ThermalLevel:
    """From which temperature on, held for how long, a GPU is how badly off."""

    severity: Severity
    stage: str
    threshold: str
    margin_celsius: int
    default_celsius: int
    hold_seconds: float
    memory: Memory
    action: Action
    migrate: bool


@dataclass(frozen=True, slots=True)
class ThermalPolicy:
    """The whole table; `levels` from the mildest to the gravest."""

    version: str
    check: str
    plausible_celsius: tuple[int, int]
    plausible_threshold_celsius: tuple[int, int]
    clear_below_celsius: int
    clear_after_seconds: float
    longest_gap_seconds: float
    levels: tuple[ThermalLevel, ...]


def load_thermal(path: Path = SHIPPED_THERMAL) -> ThermalPolicy:
    """Raises PolicyError, naming the file and the key, for anything it cannot use."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise PolicyError(f"{path}: {error}") from error
    try:
        return _thermal_from(table)
    except PolicyError as error:
        raise PolicyError(f"{path}: {error}") from error


def _thermal_from(table: Mapping[str, Any]) -> ThermalPolicy:
    _refuse_unknown(table, ThermalPolicy, "")
    levels = tuple(
        _level_from(entry, f"levels[{index}]")
        for index, entry in enumerate(_get(table, "levels", list))
    )
    severities = get_args(Severity)
    ranks = [severities.index(level.severity) for level in levels]
    if not levels or ranks != sorted(set(ranks)):
        raise PolicyError("levels must run from the mildest severity to the gravest, each once")
    return ThermalPolicy(
        version=_get(table, "version", str),
        check=_get(table, "check", str),
        plausible_celsius=_span(table, "plausible_celsius"),
        plausible_threshold_celsius=_span(table, "plausible_threshold_celsius"),
        clear_below_celsius=_get(table, "clear_below_celsius", int),
        clear_after_seconds=_seconds(table, "clear_after_seconds"),
        longest_gap_seconds=_seconds(table, "longest_gap_seconds"),
        levels=levels,
    )


def _level_from(entry: Mapping[str, Any], where: str) -> ThermalLevel:
    _refuse_unknown(entry, ThermalLevel, f"{where}.")
    prefix = f"{where}."
    return ThermalLevel(
        severity=cast("Severity", _choice(entry, "severity", get_args(Severity), prefix)),
        stage=_get(entry, "stage", str, prefix),
        threshold=_choice(entry, "threshold", sorted(THRESHOLDS), prefix),
        margin_celsius=_get(entry, "margin_celsius", int, prefix),
        default_celsius=_get(entry, "default_celsius", int, prefix),
        hold_seconds=_seconds(entry, "hold_seconds", prefix),
        memory=cast("Memory", _choice(entry, "memory", get_args(Memory), prefix)),
        action=cast("Action", _choice(entry, "action", get_args(Action), prefix)),
        migrate=_get(entry, "migrate", bool, prefix),
    )


def _refuse_unknown(table: Mapping[str, Any], shape: type, prefix: str) -> None:
    for key in table:
        if key not in shape.__annotations__:
            raise PolicyError(f"{prefix}{key} is not a key of a thermal policy")


def _get(table: Mapping[str, Any], key: str, kind: type, prefix: str = "") -> Any:
    if key not in table:
        raise PolicyError(f"{prefix}{key} is missing")
    value = table[key]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise PolicyError(f"{prefix}{key} must be {kind.__name__}, not {value!r}")
    return value


def _seconds(table: Mapping[str, Any], key: str, prefix: str = "") -> float:
    value = table.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise PolicyError(f"{prefix}{key} must be seconds, zero or more, not {value!r}")
    return float(value)


def _span(table: Mapping[str, Any], key: str) -> tuple[int, int]:
    match _get(table, key, list):
        case [int(low), int(high)] if low < high:
            return low, high
    raise PolicyError(f"{key} must be [lowest, highest], not {table[key]!r}")


def _choice(
    table: Mapping[str, Any], key: str, allowed: tuple[str, ...] | list[str], prefix: str
) -> str:
    value = str(_get(table, key, str, prefix))
    if value not in allowed:
        raise PolicyError(f"{prefix}{key} must be one of {', '.join(allowed)}, not {value!r}")
    return value
