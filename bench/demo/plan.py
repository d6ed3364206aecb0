"""What the demo does and when: sizes, names and the schedule of its faults, as data."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CLUSTER = "demo"
NODES = ("node-1", "node-2", "node-3")
SLOTS_PER_NODE = 2
RANKS = 4
SPARES = 2
CONTRACT = "C-2026-001"
SCRIPT = ROOT / "runtime" / "worker" / "drill_train.py"
SIZE = "demo"
TOKENS_PER_STEP = RANKS * 4 * 64  # runtime.worker.drill_model.DEMO, without importing torch
COOL_CELSIUS = 45
HOT_CELSIUS = 91  # past the stub's slowdown threshold, short of its shutdown


@dataclass(frozen=True)
class Strike:
    """A fault at the first step at or after `step`."""

    kind: str  # kill, stop, heat, kill_all
    step: int
    rank: int = -1


@dataclass(frozen=True)
class Plan:
    folder: Path  # var/demo
    run: str
    steps: int = 76
    seed: int = 7
    checkpoint_every_steps: int = 10
    strikes: tuple[Strike, ...] = field(
        default=(
            Strike("kill", 10, rank=1),
            Strike("stop", 24, rank=2),
            Strike("heat", 38, rank=0),
            Strike("kill_all", 56),
        )
    )
