"""`python -m runtime drill`: runs a faulty training and its twin, and compares them."""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

import runtime.worker_environment
from runtime.drill import report
from runtime.drill.plan import Fault, parse_fault
from runtime.errors import UsageError
from runtime.launch import Launch, LaunchSpec
from runtime.lines import LineSocket
from runtime.processes import no_descendants_left

# Found by file, not by import: importing the worker would load torch here.
_SCRIPT = Path(runtime.worker_environment.__file__).parent / "worker" / "drill_train.py"
_MOVEMENTS = ("recovery.completed", "migration.completed")
_KINDS = ("kill", "hang", "migrate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--spares", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    for kind in _KINDS:
        parser.add_argument(
            f"--{kind}",
            action="append",
            default=[],
            metavar="RANK@STEP" if kind == "migrate" else "RANK@STEP[:PHASE]",
        )
    parser.add_argument(
        "--kill-coordinator",
        action="append",
        default=[],
        type=int,
        metavar="STEP",
        help="SIGKILL the coordinator when a rank begins this step; it is restarted",
    )
    parser.add_argument(
        "--kill-all",
        action="append",
        default=[],
        type=int,
        metavar="STEP",
        help="SIGKILL every rank at once when this step was committed: no copy is left",
    )
    parser.add_argument("--checkpoint-every", type=int, default=20, metavar="STEPS")
    parser.add_argument("--size", choices=("drill", "demo"), default="drill")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="one JSON document and nothing else")


class Drill:
    """One drill in a folder of its own, which is removed afterwards unless the drill failed."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        chance = random.Random(arguments.seed)  # noqa: S311 - it draws phases, no secrets
        self.faults = [
            parse_fault(kind, text, arguments.ranks, arguments.steps, chance)
            for kind in _KINDS
            for text in getattr(arguments, kind)
        ]
        self.folder = Path(tempfile.mkdtemp(prefix="unbroken-drill-"))
        self.mark = secrets.token_hex(8)
        self.problems: list[str] = []
        self.respawned = 0

    # -- running ------------------------------------------------------------------------------

    def run(self, progress: Progress) -> None:
        arguments = self.arguments
        script = [str(_SCRIPT), arguments.size, str(arguments.steps), str(arguments.seed)]
        spec = LaunchSpec(
            script=script,
            ranks=arguments.ranks,
            spares=arguments.spares,
            folder=self.folder / "run",
            run=f"drill-{self.mark}",
            checkpoint_every_steps=arguments.checkpoint_every,
            environment={
                "UNBROKEN_DRILL_FOLDER": str(self.folder),
                "UNBROKEN_DRILL_FAULTS": json.dumps([each.to_json() for each in self.faults]),
                "UNBROKEN_DRILL_MARK": self.mark,
            },
            quiet=True,
        )
        task = progress.add_task("with faults", total=arguments.steps)
        moves = [fault for fault in self.faults if fault.kind == "migrate"]
        crashes = sorted(arguments.kill_coordinator)
        losses = sorted(arguments.kill_all)
        with Launch(spec) as launch:
            outcome = None
            while outcome is None:
                outcome = launch.watch()
                trace = read_trace(self.folder / "trace.jsonl")
                progress.update(task, completed=_committed(trace))
                moves = [fault for fault in moves if not self._ask_move(fault, trace, launch)]
                if losses and _committed(trace) >= losses[0]:
                    # One after the other within microseconds, before anybody can tell anybody.
                    for pid in {record["rank"]: record["pid"] for record in trace}.values():
                        os.kill(pid, signal.SIGKILL)
                    losses.pop(0)
                if crashes and any(record["step"] >= crashes[0] for record in trace):
                    os.kill(launch.coordinator_pid, signal.SIGKILL)
                    crashes.pop(0)
            self.respawned = _respawned(self.folder / "run" / "logs")
        if outcome != "completed":
            self.problems.append(f"the run ended {outcome}: {self._last_words()}")
        self.problems += [f"{fault.kind} {fault.rank}@{fault.step} never struck" for fault in moves]

    def _ask_move(self, fault: Fault, trace: list[report.Record], launch: Launch) -> bool:
        if not any(r["rank"] == fault.rank and r["step"] >= fault.step for r in trace):
            return False
        body = {"rank": fault.rank, "reason": "drill"}
        try:
            line = LineSocket.connect(launch.endpoint, timeout_seconds=5.0)
            line.send({"op": "ask", "token": launch.token, "what": "migrate", "body": body})
            answer = line.receive(5.0)
            line.close()
        except OSError:
            return False  # the coordinator is being restarted: ask again
        return answer is not None and answer["op"] == "status"

    def run_twin(self, progress: Progress) -> None:
        arguments = self.arguments
        folder = self.folder / "twin"
        folder.mkdir()
        task = progress.add_task("plain twin", total=arguments.steps)
        argv = [sys.executable, "-m", "runtime.worker.twin", str(folder), arguments.size]
        argv += [str(arguments.ranks), str(arguments.steps), str(arguments.seed)]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            "UNBROKEN_DRILL_MARK": self.mark,
        }
        with (folder / "log").open("ab") as log:
            twin = subprocess.Popen(argv, env=environment, stdout=log, stderr=log, process_group=0)
            try:
                while True:
                    try:
                        status = twin.wait(0.2)
                        break
                    except subprocess.TimeoutExpired:
                        trace = read_trace(folder / "trace.jsonl")
                        progress.update(task, completed=_committed(trace))
            except BaseException:
                os.killpg(twin.pid, signal.SIGKILL)
                twin.wait()
                raise
        progress.update(task, completed=arguments.steps)
        if status != 0:
            self.problems.append(f"the twin failed: {(folder / 'log').read_text()[-500:]}")

    def _last_words(self) -> str:
        log = self.folder / "run" / "coordinator.log"
        return log.read_text()[-500:] if log.exists() else ""

    # -- judging ------------------------------------------------------------------------------

    def result(self) -> dict[str, Any]:
        trace = read_trace(self.folder / "trace.jsonl")
        reference = read_trace(self.folder / "twin" / "trace.jsonl")
        incidents = self._incidents(trace)
        struck = Counter(fault.rank for fault in self.faults)
        struck.update(list(range(self.arguments.ranks)) * len(self.arguments.kill_all))
        self.problems += report.changed_pids(trace, struck)
        digests, expected = report.final_digests(trace), report.final_digests(reference)
        ranks = set(range(self.arguments.ranks))
        equal = (
            set(digests) == ranks == set(expected)
            and len({*digests.values(), *expected.values()}) == 1
        )
        losses_equal = report.equal_losses(trace, reference)
        samples_equal = report.consumed(trace) == report.consumed(reference)
        leftover = leftover_processes(self.mark)
        if leftover:
            self.problems.append(f"processes left behind: {leftover}")
        for name, holds in (
            ("state", equal),
            ("losses", losses_equal),
            ("sample ids", samples_equal),
        ):
            if not holds:
                self.problems.append(f"{name} differ from the uninterrupted twin's")
        return {
            "equal": equal,
            "digest": digests.get(0),
            "reference_digest": expected.get(0),
            "losses_equal": losses_equal,
            "samples_equal": samples_equal,
            "incidents": incidents,
            "step_seconds": {
                "median": round(report.median_step_seconds(trace), 6),
                "twin_median": round(report.median_step_seconds(reference), 6),
            },
            "respawned": self.respawned,
            "leftover_processes": len(leftover),
            "problems": self.problems,
        }

    def _incidents(self, trace: list[report.Record]) -> list[dict[str, Any]]:
        events = read_events(self.folder / "run" / "outbox.db")
        failures = {
            event["data"]["failure_id"]: event["data"]
            for event in events
            if event["type"] == "failure.detected"
        }
        movements = [event for event in events if event["type"] in _MOVEMENTS]
        for number, fault in enumerate(self.faults):
            if fault.kind != "migrate" and not (self.folder / f"fault-{number}").exists():
                self.problems.append(f"{fault.kind} {fault.rank}@{fault.step} never struck")
        led_to = {event["data"]["to_epoch"] for event in movements}
        for epoch in sorted({record["epoch"] for record in trace}):
            if epoch > 1 and epoch not in led_to:
                self.problems.append(f"no event tells how the run came into epoch {epoch}")
        found = []
        for number, event in enumerate(movements):
            later = movements[number + 1 :]
            last_epoch = int(later[0]["data"]["to_epoch"]) - 1 if later else sys.maxsize
            found.append(self._incident(event, failures, trace, last_epoch))
        return found

    def _incident(
        self,
        event: dict[str, Any],
        failures: dict[str, dict[str, Any]],
        trace: list[report.Record],
        last_epoch: int,
    ) -> dict[str, Any]:
        body = event["data"]
        causes = [failures[each]["cause"]["kind"] for each in body["failure_ids"]]
        seen = report.observe(trace, body["to_epoch"], last_epoch, self.arguments.ranks)
        facts = {
            name: getattr(seen, name) if seen is not None else None
            for name in (
                "committed_step",
                "resumed_step",
                "recomputed_steps",
                "samples_skipped",
            )
        }
        for name, value in facts.items():
            if value != body[name]:
                self.problems.append(
                    f"{event['type']} of epoch {body['to_epoch']} says {name} {body[name]}, "
                    f"the trace shows {value}"
                )
        return {
            "cause": causes[0] if causes else body.get("reason"),
            "mode": body["mode"],
            "rank": body["moved"][0]["rank"] if body["moved"] else None,
            "ranks": [moved["rank"] for moved in body["moved"]],
            **facts,
            "state_source": body["state_source"],
            "bytes": sum(moved["bytes"] for moved in body["moved"]),
            "seconds": body["seconds"],
        }


def read_trace(path: Path) -> list[report.Record]:
    """Whole lines only: a killed process may have torn its last one. Ordered by time."""
    if not path.exists():
        return []
    lines = path.read_bytes().split(b"\n")[:-1]
    return sorted((json.loads(line) for line in lines), key=lambda record: float(record["t"]))


def read_events(path: Path) -> list[dict[str, Any]]:
    """The events of a closed outbox, in order of sequence."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as database:
        rows = database.execute("SELECT body FROM events").fetchall()
    events = [json.loads(body) for (body,) in rows]
    return sorted(events, key=lambda event: int(event["sequence"]))


def _committed(trace: list[report.Record]) -> int:
    return max((record["step"] for record in trace if record["what"] == "committed"), default=0)


def _respawned(logs: Path) -> int:
    return sum(1 for log in logs.glob("*#*.log") if not log.name.endswith("#1.log"))


def leftover_processes(mark: str) -> list[int]:
    """Processes of this drill that still live, by a mark in their environment or arguments."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            text = (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes()
            state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if mark.encode() in text and state != "Z":
            found.append(int(folder.name))
    return found


def show(result: dict[str, Any], console: Console) -> None:
    table = Table(title="incidents")
    for name in ("cause", "way out", "rank", "C", "R", "recomputed", "skipped", "bytes", "pause s"):
        table.add_column(name)
    for each in result["incidents"]:
        table.add_row(
            str(each["cause"]),
            each["mode"],
            ", ".join(map(str, each["ranks"])),
            *(str(each[name]) for name in ("committed_step", "resumed_step", "recomputed_steps")),
            str(each["samples_skipped"]),
            f"{each['bytes']:,}",
            f"{each['seconds']['total']:.3f}",
        )
    console.print(table)
    verdict = "equal, bit for bit" if result["equal"] else "NOT EQUAL"
    console.print(f"state at the end: {verdict} ({result['digest']})")
    for problem in result["problems"]:
        console.print(f"[red]{problem}")


def main(arguments: argparse.Namespace) -> int:
    if arguments.ranks < 1 or arguments.spares < 0 or arguments.steps < 1:
        raise UsageError("--ranks and --steps must be at least 1, --spares at least 0")
    drill = Drill(arguments)
    console = Console(stderr=arguments.json)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    done = False
    try:
        with (
            no_descendants_left(),
            Progress(*columns, console=console, disable=not console.is_terminal) as progress,
        ):
            drill.run(progress)
            drill.run_twin(progress)
        result = drill.result()
        done = not result["problems"]
    finally:
        if done:
            shutil.rmtree(drill.folder, ignore_errors=True)
        else:
            print(f"the drill's files are kept in {drill.folder}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(result))
    else:
        show(result, console)
    return 0 if done else 1
