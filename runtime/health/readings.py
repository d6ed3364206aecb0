"""What the probe saw of a node's GPUs in one round, as values; it measures nothing itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from runtime.events import GpuRef


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One GPU. None is "the driver does not say"; `problems` maps a function to its error."""

    index: int
    uuid: str | None
    serial: str | None = None
    pci_bus_id: str | None = None
    name: str | None = None
    temperature_celsius: int | None = None
    thresholds_celsius: Mapping[str, int] = field(default_factory=dict)
    problems: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        return cls(**value)

    def reference(self) -> GpuRef | None:
        """How findings name the GPU: by UUID, with the slot as its place; None without UUID."""
        if self.uuid is None:
            return None
        return {
            "uuid": self.uuid,
            "serial": self.serial,
            "pci_bus_id": self.pci_bus_id,
            "slot": self.index,
        }


@dataclass(frozen=True, slots=True)
class Blind:
    """Something a check could not see: which GPU (None: all of them), which call, and why."""

    check: str
    gpu: str | None
    slot: int | None
    function: str | None
    reason: str

    def as_json(self) -> dict[str, Any]:
        return {
            "check": self.check,
            "gpu": self.gpu,
            "slot": self.slot,
            "function": self.function,
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class NodeReading:
    """One round: the GPUs that answered, and what stayed out of sight."""

    driver: str | None = None
    gpus: tuple[GpuReading, ...] = ()
    blind: tuple[Blind, ...] = ()
