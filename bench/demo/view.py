"""What a person sees while the demo runs: progress, ranks, incidents; plain lines in a pipe."""

from __future__ import annotations

import time
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from bench.demo.plan import TOKENS_PER_STEP, Plan
from bench.demo.scene import Scene


class View:
    """A live table on a terminal; without one, a line whenever something happened."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self._console = console
        self._plan = plan
        self._live = Live(console=console, refresh_per_second=4, transient=False)
        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}")
        )
        self._task = self._progress.add_task("training", total=plan.steps, words="")
        self._said = 0
        self._told_step = 0

    def __enter__(self) -> View:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        if self._console.is_terminal:
            self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text)

    def show(self, scene: Scene, happened: list[str]) -> None:
        for text in happened[self._said :]:
            self._console.print(f"  {text}")
        self._said = len(happened)
        losses = [holder.loss for holder in scene.holders.values() if holder.loss is not None]
        rate = scene.steps_per_second() * TOKENS_PER_STEP
        words = f"step {scene.committed_step}/{self._plan.steps}  epoch {scene.epoch()}"
        if losses:
            words += f"  loss {sum(losses) / len(losses):.3f}  {rate:,.0f} tokens/s"
        self._progress.update(self._task, completed=scene.committed_step, words=words)
        if self._console.is_terminal:
            self._live.update(Group(self._progress, self._ranks(scene)))
        elif scene.committed_step >= self._told_step + 10:
            self._told_step = scene.committed_step
            self._console.print(f"  {words}")

    def _ranks(self, scene: Scene) -> Table:
        table = Table("rank", "held by", "pid", "step", "epoch", "loss", "last sign")
        now = time.monotonic()
        for rank, holder in sorted(scene.holders.items()):
            loss = "" if holder.loss is None else f"{holder.loss:.4f}"
            table.add_row(
                *(str(each) for each in (rank, holder.slot, holder.pid, holder.step)),
                *(str(holder.epoch), loss, f"{now - holder.seen_at:.1f} s"),
            )
        return table


def incidents_table(incidents: list[dict[str, Any]]) -> Table:
    """One line an incident: what happened, the way out, and what it cost."""
    table = Table(title="incidents")
    for name in ("cause", "way out", "ranks", "C", "R", "lost", "MB moved"):
        table.add_column(name, no_wrap=name != "way out")
    table.add_column("detect + decide + regroup + transfer = pause, s", no_wrap=True)
    table.add_column("verdict")
    for each in incidents:
        seconds = each["seconds"]
        phases = " + ".join(
            f"{seconds[phase]:.2f}" for phase in ("detect", "decide", "regroup", "transfer")
        )
        table.add_row(
            *(each["cause"], each["mode"], ",".join(map(str, each["ranks"]))),
            *(str(each[name]) for name in ("committed_step", "resumed_step", "lost_steps")),
            f"{each['bytes'] / 1e6:.1f}",
            f"{phases} = {seconds['total']:.2f}",
            each["verdict"],
        )
    return table
