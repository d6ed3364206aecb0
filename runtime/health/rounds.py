"""The health rounds of one node: ask the probe, judge each GPU, hand on what is to be reported.

It owns the states of open findings; where a finding goes is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from runtime.events import HealthFinding
from runtime.health.policy import ThermalPolicy
from runtime.health.readings import Blind, GpuReading, NodeReading
from runtime.health.thermal import ThermalState, decide, plausible_temperature, resume


class Source(Protocol):
    """Where readings come from."""

    def sample(self) -> NodeReading: ...


class ThermalRounds:
    """The temperature check over all GPUs of a node, keyed by UUID."""

    def __init__(self, source: Source, policy: ThermalPolicy, node: str) -> None:
        self._source = source
        self._policy = policy
        self._node = node
        self._states: dict[str, ThermalState] = {}
        self.last = NodeReading(blind=(Blind(policy.check, None, None, None, "no reading yet"),))
        # UUID → severity of its open finding; replaced whole, so that other threads may read it
        self.severities: dict[str, str] = {}

    def resume(self, reports: Iterable[Mapping[str, Any]]) -> None:
        """Take up the findings that were open before a restart; `reports` in their order."""
        latest: dict[str, Mapping[str, Any]] = {}
        for report in reports:
            if report["check"] == self._policy.check and report["gpu"] is not None:
                latest[report["gpu"]["uuid"]] = report
        for uuid, report in latest.items():
            if report["state"] != "cleared":
                self._states[uuid] = resume(self._policy, report)
        self.severities = self._open_severities()

    def round(self, now_us: int) -> list[HealthFinding]:
        """One round → findings to report. What was not seen is in `last.blind`, and no finding
        is cleared by it."""
        reading = self._source.sample()
        findings: list[HealthFinding] = []
        blind = list(reading.blind)
        for gpu in reading.gpus:
            if plausible_temperature(self._policy, gpu) is None and not gpu.problems:
                blind.append(self._unseen(gpu))
            if gpu.uuid is None:
                continue
            state = self._states.get(gpu.uuid, ThermalState())
            state, finding = decide(self._policy, state, self._node, gpu, now_us)
            self._states[gpu.uuid] = state
            if finding is not None:
                finding["evidence"]["driver"] = reading.driver
                findings.append(finding)
        seen = {gpu.uuid for gpu in reading.gpus} | {entry.gpu for entry in blind}
        if not any(entry.slot is None for entry in blind):
            blind += self._vanished(seen)
        self.last = NodeReading(reading.driver, reading.gpus, tuple(blind))
        self.severities = self._open_severities()
        return findings

    def _open_severities(self) -> dict[str, str]:
        return {
            uuid: self._policy.levels[state.level].severity
            for uuid, state in self._states.items()
            if state.finding_id is not None
        }

    def _vanished(self, seen: set[str | None]) -> list[Blind]:
        return [
            Blind(self._policy.check, uuid, None, None, "the GPU is no longer listed by NVML")
            for uuid in self._states
            if uuid not in seen
        ]

    def _unseen(self, gpu: GpuReading) -> Blind:
        temperature = gpu.temperature_celsius
        reason = "not supported" if temperature is None else f"implausible: {temperature} degrees"
        function = "nvmlDeviceGetTemperature"
        return Blind(self._policy.check, gpu.uuid, gpu.index, function, reason)
