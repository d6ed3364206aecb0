"""What the demo ends with: incidents with their verdicts, the year, and equality with the twin."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2

from bench.demo.api import Api
from bench.demo.plan import CONTRACT, NODES, RANKS, ROOT, SIZE, Plan
from bench.demo.view import View
from runtime.drill import report
from runtime.drill.command import read_events, read_trace
from runtime.errors import UsageError

MOVEMENTS = ("recovery.completed", "migration.completed")
JUDGED_WITHIN_SECONDS = 60.0


def outbox_path(plan: Plan) -> Path:
    return plan.folder / NODES[0] / "state" / "runs" / plan.run / "outbox.db"


def run_twin(plan: Plan, view: View, on_wait: Any) -> list[report.Record]:
    """The uninterrupted reference; returns its trace. Raises UsageError when it fails."""
    folder = plan.folder / "twin"
    folder.mkdir(parents=True, exist_ok=True)
    argv = [sys.executable, "-m", "runtime.agent.tether", str(os.getpid())]
    argv += [sys.executable, "-m", "runtime.worker.twin", str(folder), SIZE]
    argv += [str(RANKS), str(plan.steps), str(plan.seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    environment |= {"MKL_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("ab") as log:
        twin = subprocess.Popen(
            argv, stdout=log, stderr=log, env=environment, start_new_session=True
        )
    try:
        told = 0
        while twin.poll() is None:
            on_wait()
            trace = read_trace(folder / "trace.jsonl")
            done = max((r["step"] for r in trace if r["what"] == "committed"), default=0)
            if done >= told + plan.steps // 3:
                told = done
                view.say(f"  reference: step {done}/{plan.steps}")
            time.sleep(0.3)
    finally:
        if twin.poll() is None:
            os.killpg(twin.pid, signal.SIGKILL)
            twin.wait()
    if twin.returncode != 0:
        raise UsageError(f"the reference run failed; see {folder / 'log'}")
    return read_trace(folder / "trace.jsonl")


def await_verdicts(plan: Plan, api: Api, on_wait: Any) -> list[dict[str, Any]]:
    """Until the service has judged what the coordinator reported; its incidents of this run."""
    events = read_events(outbox_path(plan))
    failures = [event["id"] for event in events if event["type"] == "failure.detected"]
    deadline = time.monotonic() + JUDGED_WITHIN_SECONDS
    incidents: list[dict[str, Any]] = []
    while time.monotonic() < deadline:
        on_wait()
        try:
            incidents = api.pages(f"/api/v1/incidents?run={plan.run}")
        except httpx2.TransportError:
            incidents = []
        known = sum(each["failures"] for each in incidents if each["verdict"] != "pending")
        if known >= len(failures):
            return incidents
        time.sleep(0.3)
    raise UsageError(
        f"{len(failures)} failures were reported, the service has judged {len(incidents)} "
        f"incidents after {JUDGED_WITHIN_SECONDS:.0f} s; see the logs in {plan.folder}"
    )


def describe(plan: Plan, incidents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One line a movement, from the coordinator's events and the service's verdicts."""
    events = read_events(outbox_path(plan))
    failures = {
        event["data"]["failure_id"]: event
        for event in events
        if event["type"] == "failure.detected"
    }
    by_first = {each["first_event"]: each for each in incidents}
    found = []
    for event in events:
        if event["type"] not in MOVEMENTS:
            continue
        body = event["data"]
        causes = [failures[each]["data"]["cause"]["kind"] for each in body["failure_ids"]]
        firsts = [failures[each]["id"] for each in body["failure_ids"]]
        judged = next((by_first[each] for each in firsts if each in by_first), None)
        found.append(
            {
                "cause": ", ".join(sorted(set(causes))) or body.get("reason", ""),
                "mode": body["mode"],
                "ranks": [moved["rank"] for moved in body["moved"]],
                "state_source": body["state_source"],
                "committed_step": body["committed_step"],
                "resumed_step": body["resumed_step"],
                "recomputed_steps": body["recomputed_steps"],
                "lost_steps": judged["lost_steps"] if judged else 0,
                "bytes": sum(moved["bytes"] for moved in body["moved"]),
                "seconds": body["seconds"],
                "verdict": judged["verdict"] if judged else "planned, no failure",
                "reasons": judged["reasons"] if judged else [],
                "incident": judged["id"] if judged else None,
            }
        )
    return found


def read_year(api: Api) -> dict[str, Any]:
    """The contract year that is running now, as a billing system reads it."""
    contracts = api.pages("/api/v1/contracts", patience_seconds=10)
    contract = next(each for each in contracts if each["number"] == CONTRACT)
    years = api.pages(f"/api/v1/contracts/{contract['id']}/years", patience_seconds=10)
    return next(year for year in years if year["state"] == "open")


def compare(trace: list[report.Record], reference: list[report.Record]) -> dict[str, Any]:
    """Bit for bit: state at the end, every loss, every sample id."""
    digests, expected = report.final_digests(trace), report.final_digests(reference)
    whole = set(digests) == set(expected) == set(range(RANKS))
    return {
        "equal": whole and len({*digests.values(), *expected.values()}) == 1,
        "digest": digests.get(0),
        "reference_digest": expected.get(0),
        "losses_equal": report.equal_losses(trace, reference),
        "samples_equal": report.consumed(trace) == report.consumed(reference),
    }
