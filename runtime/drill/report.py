"""Judges a drill from the training script's own trace, not from the runtime's words; pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

Record = dict[str, Any]


@dataclass(frozen=True)
class Seen:
    """What the trace shows of one movement."""

    committed_step: int
    resumed_step: int
    recomputed_steps: int
    samples_skipped: int


def observe(trace: list[Record], to_epoch: int, last_epoch: int, world_size: int) -> Seen | None:
    """The facts of the movement into `to_epoch`, up to `last_epoch` inclusive; None if none began.

    A step counts as committed when a process that was there afterwards had committed it, or, where
    nobody was, when anybody had: what a dead rank alone did is nobody's progress.
    """
    before = [record for record in trace if record["epoch"] < to_epoch]
    after = [record for record in trace if to_epoch <= record["epoch"] <= last_epoch]
    begun = [record for record in after if record["what"] == "begin"]
    if not begun:
        # The last step was committed before the fault; the new member only confirms the end.
        begun = [{**record, "step": record["step"] + 1} for record in after]
    if not begun:
        return None
    survivors = {record["pid"] for record in after}
    done = [record for record in before if record["what"] == "committed"]
    own = [record for record in done if record["pid"] in survivors] or done
    committed = max((record["step"] for record in own), default=0)
    resumed = min(record["step"] for record in begun)
    again = {
        record["step"]
        for record in after
        if record["what"] == "begin" and record["step"] <= committed
    }
    first = next((record for record in trace if record["what"] == "begin"), None)
    batch = len(first["ids"]) if first is not None else 0
    skipped = max(0, resumed - committed - 1) * batch * world_size
    return Seen(committed, resumed, len(again), skipped)


def consumed(trace: list[Record]) -> dict[tuple[int, int], list[int]]:
    """(step, rank) → sample ids of the attempt that counts: the last one begun."""
    return {
        (record["step"], record["rank"]): record["ids"]
        for record in trace
        if record["what"] == "begin"
    }


def losses(trace: list[Record]) -> dict[tuple[int, int], set[str]]:
    """(step, rank) → every loss committed for it, as hexadecimal floats; one, where all is well."""
    found: dict[tuple[int, int], set[str]] = {}
    for record in trace:
        if record["what"] == "committed":
            found.setdefault((record["step"], record["rank"]), set()).add(record["loss"])
    return found


def equal_losses(trace: list[Record], reference: list[Record]) -> bool:
    """Whether every loss of either equals the other's, for all ranks and steps.

    A rank that was replaced after others had committed never commits that step itself, so a step
    may lack some ranks' losses, but no step may lack all of them and none may differ.
    """
    mine, theirs = losses(trace), losses(reference)
    if any(len(values) != 1 for values in (*mine.values(), *theirs.values())):
        return False
    if {step for step, _ in mine} != {step for step, _ in theirs}:
        return False
    return all(theirs.get(key) == values for key, values in mine.items())


def final_digests(trace: list[Record]) -> dict[int, str]:
    return {record["rank"]: record["digest"] for record in trace if record["what"] == "final"}


def changed_pids(trace: Iterable[Record], replaced: dict[int, int]) -> list[str]:
    """Ranks whose process changed more often than faults struck them: lost survivors."""
    pids: dict[int, list[int]] = {}
    for record in trace:
        holders = pids.setdefault(record["rank"], [])
        if record["pid"] not in holders:
            holders.append(record["pid"])
    return [
        f"rank {rank} was held by {len(holders)} processes after {replaced.get(rank, 0)} fault(s)"
        for rank, holders in sorted(pids.items())
        if len(holders) > 1 + replaced.get(rank, 0)
    ]


def median_step_seconds(trace: list[Record]) -> float:
    """Median time between two commits of the same process, steps next to each other."""
    last: dict[int, Record] = {}
    gaps = []
    for record in trace:
        if record["what"] != "committed":
            continue
        earlier = last.get(record["pid"])
        if earlier is not None and earlier["step"] + 1 == record["step"]:
            gaps.append(record["t"] - earlier["t"])
        last[record["pid"]] = record
    return statistics.median(gaps) if gaps else 0.0
