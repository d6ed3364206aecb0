"""`make demo`: starts everything, breaks the run, and shows what the year knows of it."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import structlog
from django.core.exceptions import ImproperlyConfigured
from rich.console import Console

from bench.demo.api import Api
from bench.demo.books import Access, prepare
from bench.demo.nodes import launch_run, start_agents
from bench.demo.outcome import (
    await_verdicts,
    compare,
    describe,
    outbox_path,
    read_year,
    run_twin,
)
from bench.demo.plan import NODES, RANKS, Plan
from bench.demo.scene import Scene
from bench.demo.stack import Stack
from bench.demo.strikes import Striker
from bench.demo.view import View, incidents_table
from config.embedded import EmbeddedError, join, keeper_in_use, leave, state
from runtime.drill.command import read_events, read_trace
from runtime.errors import FailoverError, UsageError
from runtime.processes import adopt_orphans, end_children

STALLED_SECONDS = 90.0


class Demo:
    """One demo in var/demo, from nothing to a table and a file."""

    def __init__(self, console: Console, port: int | None) -> None:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
        from django.conf import settings

        self.console = console
        self.var_dir: Path = settings.VAR_DIR
        self.place = settings.EMBEDDED_PLACE
        self.services: tuple[str, ...] = settings.EMBEDDED_SERVICES
        # Resolved: agents and workers run elsewhere.
        folder = (self.var_dir / "demo").resolve()
        self.plan = Plan(folder=folder, run=f"demo-{time.strftime('%Y%m%d-%H%M%S')}")
        self.stack = Stack(folder, port)
        self.view = View(console, self.plan)

    def run(self) -> dict[str, Any]:
        began = time.monotonic()
        access = self.start()
        trace = self.train()
        self.view.say("Running the uninterrupted reference")
        reference = run_twin(self.plan, self.view, self.stack.tick)
        api = Api(self.stack.url, access.billing_token)
        incidents = describe(self.plan, await_verdicts(self.plan, api, self.stack.tick))
        result = {
            "run": self.plan.run,
            "incidents": incidents,
            "year": read_year(api),
            **compare(trace, reference),
            "events": len(read_events(outbox_path(self.plan))),
            "strikes": self.strikes,
            "seconds": round(time.monotonic() - began, 1),
            "address": f"{self.stack.url}/admin/",
        }
        self.show(result, access)
        return result

    def start(self) -> Access:
        plan, stack = self.plan, self.stack
        shutil.rmtree(plan.folder, ignore_errors=True)
        plan.folder.mkdir(parents=True)
        log = (plan.folder / "demo.log").open("a")
        structlog.configure(logger_factory=structlog.WriteLoggerFactory(log))
        self.view.say("Starting PostgreSQL and Redis")
        if self.place is not None:
            join(self.place, services=self.services)
        stack.tick()
        stack.migrate()
        stack.tick()
        access = prepare(plan.run)
        stack.tick()
        self.view.say("Starting the web server, a Celery worker and beat")
        stack.start_service()
        self.view.say(f"Starting {len(NODES)} node agents")
        start_agents(plan, stack, access.enrolment_tokens)
        api = Api(stack.url, access.operator_token)
        deadline = time.monotonic() + 30
        while len(api.pages("/api/v1/fleet/nodes", patience_seconds=10)) < len(NODES):
            stack.tick()
            if time.monotonic() > deadline:
                raise UsageError(f"the agents did not enrol; see {plan.folder}/node-*.log")
            time.sleep(0.2)
        launch_run(plan, api, access.events_token)
        self.view.say(f"Launching {plan.run}: {RANKS} ranks, 2 hot spares, {plan.steps} steps")
        return access

    def train(self) -> list[dict[str, Any]]:
        scene, striker = Scene(self.plan.folder / "trace.jsonl"), Striker(self.plan)
        grown_at, size, happened_at = time.monotonic(), 0, 0.0
        happened: list[str] = []
        with self.view:
            while scene.finals < RANKS or not self._is_finished(happened):
                self.stack.tick()
                scene.read()
                striker.strike(scene)
                if time.monotonic() - happened_at > 0.5:
                    happened_at = time.monotonic()
                    happened = self._happened()
                self.view.show(scene, happened)
                if len(scene.records) > size:
                    grown_at, size = time.monotonic(), len(scene.records)
                if time.monotonic() - grown_at > STALLED_SECONDS:
                    raise UsageError(f"the run stands still; see the logs in {self.plan.folder}")
                time.sleep(0.05)
        self.strikes = striker.done
        if not striker.is_over:
            raise UsageError("the run ended before every fault had struck: give it more steps")
        return read_trace(self.plan.folder / "trace.jsonl")

    def _happened(self) -> list[str]:
        path = outbox_path(self.plan)
        try:
            events = read_events(path)
        except sqlite3.OperationalError:
            return []  # its coordinator has not made it yet
        return [line for event in events if (line := _in_words(event))]

    def _is_finished(self, happened: list[str]) -> bool:
        return bool(happened) and happened[-1].startswith("the run is")

    def show(self, result: dict[str, Any], access: Access) -> None:
        year, print_ = result["year"], self.console.print
        print_(incidents_table(result["incidents"]))
        print_(
            f"contract year {year['start']} to {year['end']}: {year['state']}, "
            f"{year['counted']} counted, {year['zero_loss']} zero-loss, "
            f"{year['rollback']} rollback, {year['pending']} pending"
        )
        for name, words in (
            ("equal", "parameters, optimizer state and all other state at the end"),
            ("losses_equal", "the loss of every step and rank"),
            ("samples_equal", "the samples of every step and rank"),
        ):
            verdict = "equal the uninterrupted run's, bit for bit" if result[name] else "DIFFER"
            print_(f"{words}: {verdict}")
        print_(f"digest {result['digest']}, {result['seconds']} s in all")
        print_(f"open {result['address']} as {access.username} with {access.password}")

    def interrupt(self, *_: object) -> None:
        self.stack.is_interrupted = True
        raise KeyboardInterrupt

    def stop(self) -> None:
        """Returns when every process that this demo caused is gone."""
        self.stack.stop()
        # A program that Ctrl-C struck in its start is in no list, and while it lives it counts as
        # another user of the services.
        keeper = (state(self.place) or {}).get("keeper") if self.place is not None else None
        end_children(spared=[keeper])
        if self.place is not None:
            leave(self.place)
            keeper = keeper_in_use(self.place)
        if stuck := end_children(spared=[keeper]):
            print(f"demo: the kernel holds the killed processes {stuck}", file=sys.stderr)


def _in_words(event: dict[str, Any]) -> str:
    body = event["data"]
    match event["type"]:
        case "failure.detected":
            cause = body["cause"]
            return f"failure of rank {body['ranks']}: {cause['kind']} ({cause['detail']})"
        case "recovery.completed" | "migration.completed":
            return (
                f"{body['mode']}: epoch {body['to_epoch']} goes on at step "
                f"{body['resumed_step']} after {body['seconds']['total']:.2f} s, "
                f"{body['recomputed_steps']} steps computed again"
            )
        case "run.finished":
            return f"the run is {body['status']} at step {body['committed_step']}"
    return ""


def _is_good(result: dict[str, Any]) -> bool:
    return bool(result["equal"] and result["losses_equal"] and result["samples_equal"])


def main() -> int:
    adopt_orphans()
    # In a pipe there is no width to ask for; the table needs this much.
    console = Console() if sys.stdout.isatty() else Console(width=140)
    logging.getLogger("httpx2").setLevel(logging.WARNING)
    port = os.environ.get("PORT")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    demo = None
    try:
        if port and not port.isdigit():
            raise UsageError(f"PORT is a number such as 8000, not {port!r}")
        demo = Demo(console, int(port) if port else None)
        signal.signal(signal.SIGINT, demo.interrupt)
        result = demo.run()
        fresh = demo.var_dir / "demo.json.new"
        fresh.write_text(json.dumps(result, indent=2) + "\n")
        fresh.replace(demo.var_dir / "demo.json")
        if not os.environ.get("ONCE"):
            console.print("Ctrl-C ends it")
            while True:
                demo.stack.tick()
                time.sleep(0.5)
    except KeyboardInterrupt:
        return 130
    except (FailoverError, EmbeddedError, ImproperlyConfigured, httpx2.HTTPError) as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    finally:
        if demo is not None:
            # A second Ctrl-C would leave processes behind; ending takes some seconds.
            for number in (signal.SIGINT, signal.SIGTERM):
                signal.signal(number, signal.SIG_IGN)
            demo.stop()
    return 0 if _is_good(result) else 1


if __name__ == "__main__":
    sys.exit(main())
