"""Faults that a drill's script inflicts on itself, for real, through torch's public hooks."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

SIGNALS = {"kill": signal.SIGKILL, "hang": signal.SIGSTOP}


class Faults:
    """Each planned fault strikes once in the run, whoever holds its rank by then."""

    def __init__(self, plan: list[dict[str, Any]], folder: Path, on_strike: Callable[[], None]):
        self._plan = plan
        self._folder = folder
        self._on_strike = on_strike
        self.rank, self.step = -1, -1

    @classmethod
    def from_environment(cls, on_strike: Callable[[], None]) -> Faults:
        plan = json.loads(os.environ.get("UNBROKEN_DRILL_FAULTS", "[]"))
        return cls(plan, Path(os.environ["UNBROKEN_DRILL_FOLDER"]), on_strike)

    def reach(self, phase: str) -> None:
        """Called where a phase of the step in flight is under way."""
        for number, fault in enumerate(self._plan):
            due = (self.rank, self.step, phase) == (fault["rank"], fault["step"], fault["phase"])
            if due and fault["kind"] in SIGNALS and self._claim(number):
                self._on_strike()
                os.kill(os.getpid(), SIGNALS[fault["kind"]])
                if fault["kind"] == "kill":
                    threading.Event().wait()  # never returns: the signal ends the process

    def _claim(self, number: int) -> bool:
        try:
            (self._folder / f"fault-{number}").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def attach(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Registers after the run's own hooks, so that a bucket is under way in `collective`."""
        modules = list(model.modules())
        parameters = [each for each in model.parameters() if each.requires_grad]
        modules[len(modules) // 2].register_forward_hook(lambda *_: self.reach("forward"))
        middle, first = parameters[len(parameters) // 2], parameters[0]
        middle.register_post_accumulate_grad_hook(lambda _: self.reach("backward"))
        # The first parameter's gradient is the last to come: all buckets are in the air.
        first.register_post_accumulate_grad_hook(lambda _: self.reach("collective"))
        optimizer.register_step_pre_hook(lambda *_: self.reach("optimizer"))
