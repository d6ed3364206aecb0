"""Three nodes of the demo: their agents' configurations, and the temperature of their one GPU."""

from __future__ import annotations

import json
import os
import pwd
import secrets
import sys
from pathlib import Path
from typing import Any

from bench.demo.api import Api
from bench.demo.plan import (
    CLUSTER,
    CONTRACT,
    COOL_CELSIUS,
    NODES,
    RANKS,
    SCRIPT,
    SIZE,
    SLOTS_PER_NODE,
    SPARES,
    Plan,
)
from bench.demo.stack import Stack
from runtime.agent.specs import load_specs
from runtime.health.stub import SCENARIO_VARIABLE, StubGpu, build, write_scenario


def set_temperature(plan: Plan, node: str, celsius: int) -> None:
    number = NODES.index(node) + 1
    gpu = StubGpu(uuid=f"GPU-{number:08d}-0000-0000-0000-000000000000", temperature=celsius)
    write_scenario(plan.folder / node / "gpu.txt", [gpu])


def start_agents(plan: Plan, stack: Stack, enrolment_tokens: dict[str, str]) -> None:
    library = build(plan.folder / "nvml")
    for node in NODES:
        folder = plan.folder / node
        folder.mkdir(parents=True, exist_ok=True)
        set_temperature(plan, node, COOL_CELSIUS)
        (folder / "specs.toml").write_text(_spec(plan))
        (folder / "agent.toml").write_text(_config(node, stack.url, library.parent, folder))
        stack.keep(
            node,
            [sys.executable, "-m", "runtime", "agent", "--config", str(folder / "agent.toml")],
            {"UNBROKEN_AGENT_ENROLMENT_TOKEN": enrolment_tokens[node]},
        )


def _spec(plan: Plan) -> str:
    argv = [str(SCRIPT), SIZE, str(plan.steps), str(plan.seed)]
    environment = {
        "UNBROKEN_DRILL_FOLDER": str(plan.folder),
        "UNBROKEN_CHECKPOINTS": str(plan.folder / "checkpoints"),
        "UNBROKEN_CHECKPOINT_EVERY": str(plan.checkpoint_every_steps),
    }
    lines = [
        "[[spec]]",
        'name = "byte-gpt"',
        f"argv = {json.dumps(argv)}",
        f"user = {json.dumps(pwd.getpwuid(os.geteuid()).pw_name)}",
        f"code = {json.dumps([str(SCRIPT)])}",
        "[spec.environment]",
        *(f"{key} = {json.dumps(value)}" for key, value in environment.items()),
    ]
    return "\n".join(lines) + "\n"


def _config(node: str, url: str, library: Path, folder: Path) -> str:
    # Root has no ordinary account here that is sure to reach the interpreter; see docs/decisions.
    allow_root = "true" if os.geteuid() == 0 else "false"
    return (
        f'[agent]\ncluster = "{CLUSTER}"\nnode = "{node}"\nserver = "{url}"\n'
        f'state_dir = "state"\nspecs = "specs.toml"\nallow_root = {allow_root}\n'
        f"heartbeat_seconds = 1\n\n"
        f"[health]\ninterval_seconds = 0.5\n\n"
        f"[nvml]\nlibrary_dir = {json.dumps(str(library))}\n"
        f"environment = {{ {SCENARIO_VARIABLE} = {json.dumps(str(folder / 'gpu.txt'))} }}\n"
    )


def launch_run(plan: Plan, api: Api, events_token: str) -> None:
    """Registers the run: its coordinator goes to the first node, workers to all three."""
    (spec,) = load_specs(
        plan.folder / NODES[0] / "specs.toml", allow_root=os.geteuid() == 0
    ).values()
    ticket = secrets.token_urlsafe(24)
    options: dict[str, Any] = {
        "ranks": RANKS,
        "spares": SPARES,
        "contract": CONTRACT,
        "checkpoint_every": plan.checkpoint_every_steps,
    }
    coordinator = {
        "node": NODES[0],
        "payload": {
            "role": "coordinator",
            "ticket": ticket,
            "events_token": events_token,
            "options": options,
        },
    }
    workers = [
        {"node": node, "payload": {"role": "worker", "ticket": ticket, "slots": SLOTS_PER_NODE}}
        for node in NODES
    ]
    api.post(
        "/api/v1/fleet/runs",
        {
            "run": plan.run,
            "cluster": CLUSTER,
            "contract": CONTRACT,
            "spec": spec.digest,
            "world_size": RANKS,
            "spares": SPARES,
            "coordinator_node": NODES[0],
            "placement": [coordinator, *workers],
        },
    )
