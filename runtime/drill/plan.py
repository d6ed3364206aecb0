"""What a drill is asked to do: faults as (kind, rank, step, phase), read from the command line."""

from __future__ import annotations

import random
import re
from dataclasses import asdict, dataclass
from typing import Any, Final

from runtime.errors import UsageError

PHASES: Final = ("forward", "backward", "collective", "optimizer")
_FORM = re.compile(r"(\d+)@(\d+)(?::([a-z]+))?")


@dataclass(frozen=True)
class Fault:
    kind: str  # kill, hang or migrate
    rank: int
    step: int
    phase: str  # empty for migrate: a planned move waits for a step boundary

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def parse_fault(kind: str, text: str, ranks: int, steps: int, chance: random.Random) -> Fault:
    """`RANK@STEP[:PHASE]`; UsageError says which part is wrong."""
    match = _FORM.fullmatch(text)
    if match is None:
        raise UsageError(f"--{kind} {text!r} is not RANK@STEP[:PHASE], such as 1@15:backward")
    rank, step, phase = int(match[1]), int(match[2]), match[3]
    if rank >= ranks:
        raise UsageError(f"--{kind} {text}: there is no rank {rank} among {ranks} ranks")
    if not 1 <= step <= steps:
        raise UsageError(f"--{kind} {text}: the training has steps 1 to {steps}")
    if kind == "migrate":
        if phase is not None:
            raise UsageError(f"--migrate {text}: a planned move has no phase, leave it out")
        return Fault(kind, rank, step, "")
    if phase is not None and phase not in PHASES:
        raise UsageError(f"--{kind} {text}: the phases are {', '.join(PHASES)}")
    return Fault(kind, rank, step, phase or chance.choice(PHASES))
