"""Decides from a GPU's temperatures whether there is a finding: pure, no clock, no I/O.

A level opens once the temperature stood at or above its entry for the level's hold time, rises at
once to a graver one, and falls only after the temperature stayed well below the entry for a while
(hysteresis). What could not be read changes nothing and interrupts both counts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from runtime.events import HealthFinding, uuid7
from runtime.health.policy import ThermalLevel, ThermalPolicy
from runtime.health.readings import GpuReading

SECOND_US = 1_000_000


@dataclass(frozen=True, slots=True)
class ThermalState:
    """What is remembered of one GPU. `level` indexes the policy's levels, -1 is none.

    `above_since_us[i]`: since when readings stand at or above level i's entry; `below_since_us[i]`:
    since when they stand under its exit. `revision` counts the reports of the open finding.
    """

    finding_id: str | None = None
    level: int = -1
    revision: int = 0
    peak_celsius: int = 0
    last_us: int | None = None
    above_since_us: tuple[int | None, ...] = ()
    below_since_us: tuple[int | None, ...] = ()


def decide(
    policy: ThermalPolicy, state: ThermalState, node: str, reading: GpuReading, now_us: int
) -> tuple[ThermalState, HealthFinding | None]:
    """The next state, and the finding to report when it opened, changed its level or cleared."""
    temperature = plausible_temperature(policy, reading)
    if temperature is None:
        return _interrupted(state), None
    state = _counted(policy, state, reading, temperature, now_us)
    if state.finding_id is not None:
        state = replace(state, peak_celsius=max(state.peak_celsius, temperature))
    level = _next_level(policy, state, now_us)
    if level == state.level:
        return state, None
    change: Literal["opened", "updated", "cleared"]
    if state.level == -1:
        change = "opened"
        state = replace(
            state,
            finding_id=_finding_id(policy, reading, now_us),
            revision=0,
            peak_celsius=temperature,
        )
    else:
        change = "cleared" if level == -1 else "updated"
    # A cleared finding names the level it leaves.
    shown = policy.levels[level if level >= 0 else state.level]
    state = replace(state, level=level, revision=state.revision + 1)
    finding = _finding(policy, state, shown, node, reading)
    finding["state"] = change
    if level == -1:
        finding["migrate"] = False
        state = replace(state, finding_id=None, revision=0, peak_celsius=0)
    return state, finding


def resume(policy: ThermalPolicy, finding: Mapping[str, Any]) -> ThermalState:
    """The state after a restart of the agent, from the last report of a finding still open."""
    severities = [level.severity for level in policy.levels]
    severity = finding["severity"]
    level = severities.index(severity) if severity in severities else 0
    evidence = finding["evidence"]
    return ThermalState(
        finding_id=finding["finding_id"],
        level=level,
        revision=int(evidence["revision"]),
        peak_celsius=int(evidence["peak_celsius"]),
    )


def plausible_temperature(policy: ThermalPolicy, reading: GpuReading) -> int | None:
    """The temperature in degrees Celsius, or None when nothing was measured."""
    lowest, highest = policy.plausible_celsius
    temperature = reading.temperature_celsius
    if temperature is None or not lowest <= temperature <= highest:
        return None
    return temperature


def entry_celsius(policy: ThermalPolicy, level: ThermalLevel, reading: GpuReading) -> int:
    """From which temperature on the level holds for this GPU."""
    lowest, highest = policy.plausible_threshold_celsius
    stated = reading.thresholds_celsius.get(level.threshold)
    if stated is None or not lowest <= stated <= highest:
        return level.default_celsius
    return stated - level.margin_celsius


def _interrupted(state: ThermalState) -> ThermalState:
    return replace(state, last_us=None, above_since_us=(), below_since_us=())


def _counted(
    policy: ThermalPolicy, state: ThermalState, reading: GpuReading, temperature: int, now_us: int
) -> ThermalState:
    """The state with its counts brought up to this reading."""
    gap_us = 0 if state.last_us is None else now_us - state.last_us
    # A clock that stepped back proves as little as a long gap.
    if not 0 <= gap_us <= policy.longest_gap_seconds * SECOND_US:
        state = _interrupted(state)
    none: tuple[int | None, ...] = (None,) * len(policy.levels)
    entries = [entry_celsius(policy, level, reading) for level in policy.levels]
    above = tuple(
        (now_us if since is None else since) if temperature >= entry else None
        for entry, since in zip(entries, state.above_since_us or none, strict=True)
    )
    below = tuple(
        (now_us if since is None else since)
        if temperature <= entry - policy.clear_below_celsius
        else None
        for entry, since in zip(entries, state.below_since_us or none, strict=True)
    )
    return replace(state, last_us=now_us, above_since_us=above, below_since_us=below)


def _next_level(policy: ThermalPolicy, state: ThermalState, now_us: int) -> int:
    """The gravest level that has held long enough, else the one that has not been left yet."""
    for index in range(len(policy.levels) - 1, state.level, -1):
        since = state.above_since_us[index]
        if since is not None and now_us - since >= policy.levels[index].hold_seconds * SECOND_US:
            return index
    level = state.level
    while level >= 0:
        since = state.below_since_us[level]
        if since is None or now_us - since < policy.clear_after_seconds * SECOND_US:
            break
        level -= 1
    return level


def _finding_id(policy: ThermalPolicy, reading: GpuReading, now_us: int) -> str:
    name = f"{policy.check} {reading.uuid or reading.index}".encode()
    return f"fnd_{uuid7(now_us, hashlib.sha256(name).digest()[:10])}"


def _finding(
    policy: ThermalPolicy, state: ThermalState, level: ThermalLevel, node: str, reading: GpuReading
) -> HealthFinding:
    if state.finding_id is None:
        raise ValueError("a finding needs its id before it is reported")
    temperature = reading.temperature_celsius
    return {
        "finding_id": state.finding_id,
        "state": "updated",
        "check": policy.check,
        "stage": level.stage,
        "severity": level.severity,
        "node": node,
        "gpu": reading.reference(),
        "memory": level.memory,
        "action": level.action,
        "evidence": {
            "source": "nvml",
            "function": "nvmlDeviceGetTemperature",
            "temperature_celsius": temperature,
            "peak_celsius": state.peak_celsius,
            "threshold": level.threshold,
            "entry_celsius": entry_celsius(policy, level, reading),
            "thresholds_celsius": dict(reading.thresholds_celsius),
            "revision": state.revision,
        },
        "policy_version": policy.version,
        "migrate": level.migrate,
    }
