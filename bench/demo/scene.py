"""The run as its training script tells it: the trace read as it grows, and who holds which rank."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Record = dict[str, Any]


@dataclass
class Holder:
    """The process that spoke last for a rank."""

    pid: int
    slot: str
    step: int = 0
    epoch: int = 0
    loss: float | None = None
    seen_at: float = 0.0  # monotonic seconds


@dataclass
class Scene:
    """Follows one trace file; `records` holds all of it in order of arrival."""

    path: Path
    records: list[Record] = field(default_factory=list)
    holders: dict[int, Holder] = field(default_factory=dict)
    committed_step: int = 0
    finals: int = 0
    _offset: int = 0

    def read(self) -> None:
        """Takes in whole new lines; a line that a killed process tore stays unread at the end."""
        if not self.path.exists():
            return
        with self.path.open("rb") as file:
            file.seek(self._offset)
            text = file.read()
        end = text.rfind(b"\n") + 1
        self._offset += end
        for line in text[:end].splitlines():
            self._take(json.loads(line))

    def _take(self, record: Record) -> None:
        self.records.append(record)
        holder = self.holders.get(record["rank"])
        if holder is None or holder.pid != record["pid"]:
            # A stopped process that is replaced never speaks again, so the last to speak holds it.
            holder = self.holders[record["rank"]] = Holder(record["pid"], record["slot"])
        holder.step, holder.epoch, holder.seen_at = record["step"], record["epoch"], record["t"]
        if record["what"] == "committed":
            holder.loss = float.fromhex(record["loss"])
            self.committed_step = max(
                (each.step for each in self.holders.values() if each.loss is not None), default=0
            )
        elif record["what"] == "final":
            self.finals += 1

    def epoch(self) -> int:
        return max((holder.epoch for holder in self.holders.values()), default=0)

    def steps_per_second(self) -> float:
        """Over the last twelve commits of rank 0."""
        times = [
            record["t"]
            for record in self.records[-400:]
            if record["what"] == "committed" and record["rank"] == 0
        ][-12:]
        return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 else 0.0
