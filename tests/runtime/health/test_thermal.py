"""The thermal decision: when a finding opens, rises, falls and clears."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.events import HealthFinding
from runtime.health.policy import load_thermal
from runtime.health.readings import GpuReading
from runtime.health.thermal import ThermalState, decide, entry_celsius, resume

POLICY = load_thermal()
START_US = 1_777_636_800_000_000
THRESHOLDS = {"gpu_max": 87, "slowdown": 90, "shutdown": 95}


def reading(temperature: int | None, **changes: object) -> GpuReading:
    values: dict[str, object] = {
        "index": 0,
        "uuid": "GPU-1",
        "serial": "165",
        "pci_bus_id": "00000000:1B:00.0",
        "temperature_celsius": temperature,
        "thresholds_celsius": THRESHOLDS,
    }
    return GpuReading.from_json(values | changes)


def run(
    temperatures: Sequence[int | None], *, step_seconds: int = 1, state: ThermalState | None = None
) -> tuple[list[tuple[int, HealthFinding]], ThermalState]:
    """Findings as (seconds since the start, finding)."""
    state = state or ThermalState()
    findings = []
    for index, temperature in enumerate(temperatures):
        second = index * step_seconds
        now_us = START_US + second * 1_000_000
        state, finding = decide(POLICY, state, "n1", reading(temperature), now_us)
        if finding is not None:
            findings.append((second, finding))
    return findings, state


def shape(findings: list[tuple[int, HealthFinding]]) -> list[tuple[int, str, str]]:
    return [(second, finding["state"], finding["severity"]) for second, finding in findings]


def test_failing_opens_after_two_seconds_at_the_slowdown_threshold() -> None:
    findings, _ = run([60, 90, 91, 92, 91])

    assert shape(findings) == [(3, "opened", "failing")]
    finding = findings[0][1]
    assert finding == {
        "finding_id": finding["finding_id"],
        "state": "opened",
        "check": "thermal",
        "stage": "prediction",
        "severity": "failing",
        "node": "n1",
        "gpu": {"uuid": "GPU-1", "serial": "165", "pci_bus_id": "00000000:1B:00.0", "slot": 0},
        "memory": "readable",
        "action": "inspect",
        "evidence": {
            "source": "nvml",
            "function": "nvmlDeviceGetTemperature",
            "temperature_celsius": 92,
            "peak_celsius": 92,
            "threshold": "slowdown",
            "entry_celsius": 90,
            "thresholds_celsius": THRESHOLDS,
            "revision": 1,
        },
        "policy_version": "thermal-1",
        "migrate": True,
    }


def test_one_hot_reading_is_no_finding() -> None:
    findings, _ = run([60, 91, 60, 91, 60, 91, 89, 60])

    assert findings == []


def test_next_to_shutdown_one_reading_is_enough() -> None:
    findings, _ = run([60, 93])

    assert shape(findings) == [(1, "opened", "failed")]


def test_warm_for_half_a_minute_is_degraded_and_moves_nobody() -> None:
    findings, _ = run([87] * 31)

    assert shape(findings) == [(30, "opened", "degraded")]
    assert findings[0][1]["migrate"] is False


def test_rises_at_once_and_clears_after_a_quiet_while_under_one_id() -> None:
    findings, state = run([91, 91, 91, 94, 94] + [84] * 40 + [80] * 40)

    assert shape(findings) == [
        (2, "opened", "failing"),
        (3, "updated", "failed"),
        # 84 is 6 under slowdown (90), but not 6 under gpu_max (87): half a minute later the two
        # graver levels are left, the mild one is not
        (35, "updated", "degraded"),
        (75, "cleared", "degraded"),
    ]
    assert len({finding["finding_id"] for _, finding in findings}) == 1
    assert [finding["evidence"]["revision"] for _, finding in findings] == [1, 2, 3, 4]
    assert [finding["evidence"]["peak_celsius"] for _, finding in findings] == [91, 94, 94, 94]
    assert findings[-1][1]["migrate"] is False
    assert state.finding_id is None


def test_a_dip_does_not_clear() -> None:
    hot_and_dips = [91, 91, 91] + ([70] * 25 + [88]) * 5

    findings, state = run(hot_and_dips)

    assert shape(findings) == [(2, "opened", "failing")]
    assert state.finding_id is not None


def test_a_second_episode_is_a_second_finding() -> None:
    findings, _ = run([91] * 3 + [60] * 32 + [91] * 3)

    assert shape(findings)[0::2] == [(2, "opened", "failing"), (37, "opened", "failing")]
    assert findings[0][1]["finding_id"] != findings[2][1]["finding_id"]


def test_blindness_neither_opens_nor_clears() -> None:
    findings, state = run([91, None, 91, None, 91, 91, 91])
    assert shape(findings) == [(6, "opened", "failing")]

    findings, state = run([None] * 60, state=state)
    assert findings == []
    assert state.finding_id is not None

    findings, _ = run([60] * 20 + [None] + [60] * 31, state=state)
    assert shape(findings) == [(51, "cleared", "failing")]


def test_a_gap_between_readings_proves_nothing() -> None:
    findings, _ = run([91, 91, 91], step_seconds=21)

    assert findings == []


@pytest.mark.parametrize("temperature", [0, 141, -5, 0xFFFFFFFE])
def test_implausible_temperatures_are_not_readings(temperature: int) -> None:
    findings, state = run([temperature] * 10)

    assert findings == []
    assert state.level == -1


@pytest.mark.parametrize(
    ("thresholds", "entries"),
    [
        (THRESHOLDS, [87, 90, 93]),
        ({}, [88, 92, 96]),
        ({"gpu_max": 0, "slowdown": 0, "shutdown": 0}, [88, 92, 96]),
        ({"gpu_max": 999, "slowdown": 85}, [88, 85, 96]),
    ],
)
def test_a_threshold_that_is_absent_or_absurd_gives_the_default(
    thresholds: dict[str, int], entries: list[int]
) -> None:
    gpu = reading(50, thresholds_celsius=thresholds)

    assert [entry_celsius(POLICY, level, gpu) for level in POLICY.levels] == entries


def test_resumes_an_open_finding_after_a_restart() -> None:
    findings, _ = run([91] * 3 + [94])
    state = resume(POLICY, findings[-1][1])

    later, _ = run([94] * 5 + [60] * 31, state=state)

    assert shape(later) == [(35, "cleared", "failed")]
    assert later[0][1]["finding_id"] == findings[0][1]["finding_id"]
    assert later[0][1]["evidence"]["revision"] == 3


@settings(deadline=None)  # the machine may be busy
@given(st.lists(st.one_of(st.none(), st.integers(30, 110)), max_size=200))
def test_reports_of_any_series_make_sense(temperatures: list[int | None]) -> None:
    findings, state = run(temperatures, step_seconds=3)

    open_id: str | None = None
    for _, finding in findings:
        if finding["state"] == "opened":
            assert open_id is None
            open_id = finding["finding_id"]
        assert finding["finding_id"] == open_id
        if finding["state"] == "cleared":
            open_id = None
    assert state.finding_id == open_id
    hottest = max((value for value in temperatures if value is not None), default=0)
    if hottest < 87:
        assert findings == []
