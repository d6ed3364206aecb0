"""What a training script imports: `join`, and the helpers for data by step."""

from __future__ import annotations

from runtime.worker.data import StepData, StepSampler
from runtime.worker.loop import Committed, Run, join

__all__ = ["Committed", "Run", "StepData", "StepSampler", "join"]
