"""Inflicts the demo's faults on real processes, each once, when the run has come so far."""

from __future__ import annotations

import os
import signal
import time

from bench.demo.nodes import set_temperature
from bench.demo.plan import HOT_CELSIUS, RANKS, Plan, Strike
from bench.demo.scene import Scene


class Striker:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._due = list(plan.strikes)
        self._epoch_before = 0
        self.done: list[dict[str, object]] = []

    @property
    def is_over(self) -> bool:
        return not self._due

    def strike(self, scene: Scene) -> None:
        """The next fault waits until the one before it was recovered from."""
        if not self._due or scene.committed_step < self._due[0].step:
            return
        if len(scene.holders) < RANKS or scene.epoch() <= self._epoch_before:
            return
        fault = self._due.pop(0)
        self._epoch_before = scene.epoch()
        self.done.append(
            {
                "kind": fault.kind,
                "step": scene.committed_step,
                "ranks": self._inflict(fault, scene),
                "at_monotonic_seconds": time.monotonic(),
            }
        )

    def _inflict(self, fault: Strike, scene: Scene) -> list[int]:
        if fault.kind == "heat":
            node = scene.holders[fault.rank].slot.partition("/")[0]
            set_temperature(self._plan, node, HOT_CELSIUS)
            return sorted(
                rank
                for rank, holder in scene.holders.items()
                if holder.slot.partition("/")[0] == node
            )
        ranks = list(scene.holders) if fault.kind == "kill_all" else [fault.rank]
        number = signal.SIGSTOP if fault.kind == "stop" else signal.SIGKILL
        for rank in ranks:
            os.kill(scene.holders[rank].pid, number)
        return sorted(ranks)
