"""The agent as a process: heat to finding to service and link, orders, kills, and a clean end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
from pathlib import Path
from typing import Any

from runtime.events import agent_source
from runtime.health.stub import StubGpu, write_scenario
from runtime.outbox import Outbox
from tests.runtime.agent.conftest import COOL, USER, Node, descendants, is_running
from tests.runtime.service import Reply, Service
from tests.runtime.waiting import wait_for

SOURCE = agent_source("c1", "n1")


def heat(node: Node, celsius: int) -> None:
    write_scenario(node.scenario, [StubGpu("GPU-1", celsius, serial="1651"), COOL[1]])


def findings(service: Service) -> list[tuple[str, str]]:
    return [
        (event["data"]["state"], event["data"]["severity"])
        for event in service.order
        if event["type"] == "health.finding"
    ]


def start_worker(node: Node, order_id: str, **payload: Any) -> dict[str, Any]:
    values = {
        "run": "r1",
        "role": "worker",
        "slots": 2,
        "epoch": 1,
        "endpoint": "127.0.0.1:4000",
        "ticket": "ticket-1",
        "spec": node.spec("own" if payload.get("role") == "coordinator" else "demo"),
        "options": {},
    }
    return {"id": order_id, "kind": "start_worker", "payload": values | payload, "deadline": None}


def reported(service: Service) -> dict[str, tuple[str, str | None]]:
    """Order id → the last state the service heard."""
    return {
        entry["id"]: (entry["state"], entry["detail"])
        for beat in service.heartbeats
        for entry in beat["orders"]
    }


def test_heartbeat_says_what_the_node_is(node: Node) -> None:
    with Service() as service:
        node.start(service.url)
        beat = wait_for(lambda: next((b for b in service.heartbeats if b["gpus"]), None))
        assert node.end() == 0

    assert beat["node"] == "n1"
    assert beat["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert beat["driver"] == "575.57.08"
    assert beat["blind"] == []
    assert beat["runs"] == []
    assert beat["specs"] == {"demo": node.spec(), "own": node.spec("own")}
    assert beat["sources"] == {SOURCE: 1}
    assert beat["gpus"] == [
        {
            "uuid": uuid,
            "serial": serial,
            "pci_bus_id": None,
            "slot": slot,
            "name": "NVIDIA Stub",
            "temperature_celsius": celsius,
            "finding": None,
        }
        for slot, (uuid, serial, celsius) in enumerate(
            [("GPU-1", "1651", 45), ("GPU-2", "1652", 50)]
        )
    ]


def test_heat_becomes_a_finding_and_clears_with_hysteresis(node: Node) -> None:
    with Service() as service:
        node.start(service.url)
        wait_for(lambda: service.heartbeats)
        heat(node, 91)
        wait_for(lambda: findings(service) == [("opened", "failing")], 5)
        heat(node, 85)  # under slowdown, not far enough to clear
        wait_for(lambda: service.heartbeats[-1]["gpus"][0]["temperature_celsius"] == 85)
        assert service.heartbeats[-1]["gpus"][0]["finding"] == "failing"
        heat(node, 60)
        wait_for(lambda: findings(service)[1:] == [("cleared", "failing")], 5)
        wait_for(lambda: service.heartbeats[-1]["sources"] == {SOURCE: 3})
        assert node.end() == 0

    opened, cleared = (e for e in service.order if e["type"] == "health.finding")
    assert opened["subject"] == "GPU-1"
    assert opened["data"]["gpu"]["uuid"] == "GPU-1"
    assert opened["data"]["migrate"] is True
    assert opened["data"]["finding_id"] == cleared["data"]["finding_id"]
    assert cleared["data"]["evidence"]["peak_celsius"] == 91
    assert [event["sequence"] for event in service.order] == ["1", "2", "3"]


def test_finds_and_keeps_with_the_service_down(node: Node) -> None:
    with Service() as service:
        port = service.port
    node.start(f"http://127.0.0.1:{port}")
    heat(node, 94)
    wait_for(lambda: node.logged("health.finding"), 10)

    with Service(port) as service:
        wait_for(lambda: findings(service) == [("opened", "failed")], 15)
        wait_for(lambda: service.heartbeats, 15)
        assert node.end() == 0

    assert len(node.logged("heartbeat.missed")) == 1
    assert len(node.logged("heartbeat.restored")) == 1


def test_kill_and_restart_go_on_without_a_hole_and_with_the_finding(node: Node) -> None:
    with Service() as service:
        for _life in range(4):
            process = node.start(service.url)
            heat(node, 91)
            # The second life finds the first one's finding open and opens no other.
            wait_for(lambda: findings(service)[:1] == [("opened", "failing")], 10)
            beats = len(service.heartbeats)
            wait_for(
                lambda beats=beats: any(
                    gpu["finding"] == "failing"
                    for beat in service.heartbeats[beats:]
                    for gpu in beat["gpus"]
                ),
                10,
            )
            children = descendants(process.pid)
            assert node.end(signal.SIGKILL) == -signal.SIGKILL
            wait_for(lambda children=children: not any(map(is_running, children)), 5)
        node.start(service.url)
        heat(node, 50)
        wait_for(lambda: findings(service) == [("opened", "failing"), ("cleared", "failing")], 10)
        assert node.end() == 0

    assert [event["sequence"] for event in service.order] == ["1", "2", "3"]
    with Outbox(node.state / "outbox.db", SOURCE) as outbox:
        assert outbox.head() == 3
        assert outbox.pending() == []


def test_start_worker_runs_an_allowed_spec_and_findings_reach_the_link(node: Node) -> None:
    with Service() as service:
        process = node.start(service.url)
        service.orders = [start_worker(node, "o1")]
        [pids] = wait_for(lambda: node.link_entries("started"))
        assert len(pids) == 2
        wait_for(lambda: reported(service).get("o1") == ("completed", None))
        runs = wait_for(lambda: service.heartbeats[-1]["runs"])
        assert runs == [
            {
                "id": "r1",
                "epoch": 7,
                "committed_step": 41,
                "roles": ["worker"],
                "endpoint": None,
                "coordinator": None,
                "workers": [{"pid": pid} for pid in pids],
            }
        ]
        heat(node, 94)
        [finding] = wait_for(lambda: node.link_entries("finding"), 5)
        assert (finding["state"], finding["severity"]) == ("opened", "failed")
        # A link that joins later hears of what is open.
        service.orders.append(start_worker(node, "o2", run="r2"))
        wait_for(lambda: node.link_entries("finding") == [finding, finding])
        everyone = descendants(process.pid)
        assert set(pids) <= everyone
        assert node.end() == 0

    assert not [pid for pid in everyone if is_running(pid)]
    assert node.link_entries("stopped") == [2, 2]


def test_workers_run_as_the_user_that_the_spec_names(node: Node) -> None:
    with Service() as service:
        node.start(service.url)
        service.orders = [start_worker(node, "o1", slots=1)]
        [[pid]] = wait_for(lambda: node.link_entries("started"))
        owner = Path(f"/proc/{pid}").stat().st_uid
        assert node.end() == 0

    assert owner != 0
    assert (USER is not None) == (owner != os.geteuid())


def test_orders_that_must_not_be_done(node: Node) -> None:
    with Service() as service:
        node.start(service.url)
        late = start_worker(node, "late")
        late["deadline"] = "2020-01-01T00:00:00Z"
        service.orders = [
            start_worker(node, "unknown-spec", spec="0" * 64),
            late,
            start_worker(node, "nobody-there", endpoint="127.0.0.1:1"),
            {"id": "boot", "kind": "reboot", "payload": {}, "deadline": None},
            {"id": "absent", "kind": "stop_worker", "payload": {"run": "r9"}, "deadline": None},
            {"id": "check", "kind": "run_check", "payload": {}, "deadline": None},
            {"kind": "start_worker"},
        ]
        wait_for(lambda: len(reported(service)) == 6)
        assert node.end() == 0

    assert reported(service) == {
        "unknown-spec": ("refused", f"spec {'0' * 64} is not on this node's allow-list"),
        "late": ("expired", "its deadline has passed"),
        "nobody-there": ("failed", "ConnectionRefusedError: nobody listens on port 1"),
        "boot": ("refused", "this agent does not do 'reboot'"),
        "absent": ("completed", "it was not here"),
        "check": ("completed", None),
    }
    assert node.link_entries("started") == []
    assert len(node.logged("order.unreadable")) >= 1


def test_coordinator_is_kept_alive_and_its_events_delivered(node: Node) -> None:
    folder = node.state / "runs" / "r1"

    def read_pid() -> int:
        return int((folder / "pid").read_text())

    with Service() as service:
        process = node.start(service.url)
        options = {"ranks": 4, "checkpoint_every": 10, "host": "0.0.0.0", "folder": "/etc"}
        service.orders = [
            start_worker(node, "o1", role="coordinator", endpoint=None, options=options)
        ]
        wait_for(lambda: [e["type"] for e in service.order].count("run.progress") == 1)
        first = read_pid()
        os.kill(first, signal.SIGKILL)
        wait_for(lambda: [e["type"] for e in service.order].count("run.progress") == 2)
        second = read_pid()
        assert second != first
        [run] = wait_for(lambda: service.heartbeats[-1]["runs"])
        assert run["endpoint"] == "127.0.0.1:4242"
        assert run["roles"] == ["coordinator"]
        # The agent is killed and comes back: so does the coordinator.
        node.end(signal.SIGKILL)
        wait_for(lambda: not is_running(second))
        process = node.start(service.url)
        wait_for(lambda: [e["type"] for e in service.order].count("run.progress") == 3)
        third = read_pid()
        assert third in descendants(process.pid)
        service.orders.append(
            {"id": "o2", "kind": "stop_worker", "payload": {"run": "r1"}, "deadline": None}
        )
        wait_for(lambda: reported(service).get("o2") == ("completed", None))
        assert not is_running(third)
        wait_for(lambda: service.heartbeats[-1]["runs"] == [])
        assert node.end() == 0

    argv = json.loads((folder / "argv.json").read_text())
    assert argv == {
        "ranks": "4",
        "checkpoint-every": "10",
        "cluster": "c1",
        "run": "r1",
        "folder": str(folder),
        "host": "127.0.0.1",
    }
    own = [e["sequence"] for e in service.order if e["source"].endswith("/runs/r1/coordinator")]
    assert own == [str(n) for n in range(1, len(own) + 1)]


def test_events_of_a_run_that_is_over_are_delivered_later(node: Node) -> None:
    with Service() as service:
        port = service.port
        node.start(service.url)
        service.orders = [
            start_worker(node, "o1", role="coordinator", endpoint=None, options={"over": "yes"})
        ]
        service.next_replies = [Reply(503) for _ in range(3)]
        wait_for(lambda: (node.state / "runs" / "r1" / "outbox.db").exists())
        node.end(signal.SIGKILL)
    with Service(port) as service:
        node.start(service.url)
        source = "/clusters/c1/runs/r1/coordinator"
        wait_for(
            lambda: (
                [e["type"] for e in service.order if e["source"] == source]
                == ["source.opened", "run.started", "source.sealed"]
            )
        )
        wait_for(lambda: service.heartbeats and service.heartbeats[-1]["runs"] == [])
        assert node.end() == 0


def test_enrols_once_and_keeps_its_token(node: Node) -> None:
    with Service() as service:
        service.enrolment_tokens = {"once"}
        node.start(service.url, UNBROKEN_AGENT_TOKEN="", UNBROKEN_AGENT_ENROLMENT_TOKEN="once")
        wait_for(lambda: service.heartbeats and service.order)
        assert node.end() == 0
        before = len(service.heartbeats)
        node.start(service.url, UNBROKEN_AGENT_TOKEN="", UNBROKEN_AGENT_ENROLMENT_TOKEN="once")
        wait_for(lambda: len(service.heartbeats) > before)
        assert node.end() == 0

    assert (node.state / "credential").stat().st_mode & 0o777 == 0o600
    enrolments = [r for r in service.requests if r.path == "/api/v1/fleet/enroll"]
    assert len(enrolments) == 1


def test_a_blind_node_says_so_and_keeps_its_finding(node: Node) -> None:
    with Service() as service:
        node.start(service.url)
        heat(node, 94)
        wait_for(lambda: findings(service))
        node.scenario.unlink()

        def blind_beat() -> dict[str, Any] | None:
            last = service.heartbeats[-1]
            functions = [entry["function"] for entry in last["blind"] if entry["gpu"] is None]
            return last if functions == ["nvmlDeviceGetCount_v2"] else None

        assert wait_for(blind_beat, 15)["gpus"] == []
        assert node.end() == 0

    assert findings(service) == [("opened", "failed")]


def test_a_second_agent_on_the_same_state_is_refused(node: Node) -> None:
    with Service() as service:
        node.start(service.url)
        wait_for(lambda: service.heartbeats)
        first = node.process
        second = node.start(service.url)
        assert second.wait(20) == 2
        assert first is not None
        assert first.poll() is None
        node.process = first
        assert node.end() == 0

    assert f"{node.state} is in use by another agent" in node.errors.read_text(encoding="utf-8")


def test_a_wrong_token_is_said_once_and_nothing_is_lost(node: Node) -> None:
    with Service() as service:
        node.start(service.url, UNBROKEN_AGENT_TOKEN="wrong")
        heat(node, 94)
        wait_for(lambda: node.logged("health.finding") and node.logged("delivery.refused"))
        wait_for(lambda: node.logged("heartbeat.missed"))
        assert node.end() == 0
        assert service.order == []
    assert [len(node.logged(e)) for e in ("delivery.refused", "heartbeat.missed")] == [1, 1]

    with Service() as service:
        node.start(service.url)
        wait_for(lambda: findings(service) == [("opened", "failed")])
        assert node.end() == 0


def test_a_hung_call_is_in_the_heartbeat_within_fifteen_seconds(node: Node) -> None:
    with Service() as service:
        node.start(service.url)
        wait_for(lambda: service.heartbeats and service.heartbeats[-1]["gpus"])
        hung = StubGpu("GPU-1", 45, serial="1651", hang="nvmlDeviceGetTemperature")
        write_scenario(node.scenario, [hung, COOL[1]])
        [blind] = wait_for(lambda: service.heartbeats[-1]["blind"], 15)
        wait_for(lambda: [gpu["uuid"] for gpu in service.heartbeats[-1]["gpus"]] == ["GPU-2"])
        assert node.end() == 0

    assert blind == {
        "check": "nvml",
        "gpu": "GPU-1",
        "slot": 0,
        "function": "nvmlDeviceGetTemperature",
        "reason": "hung: the call did not come back in time",
    }


def test_the_real_coordinator_under_the_real_agent(node: Node) -> None:
    with Service() as service:
        process = node.start(service.url, "runtime.agent")
        service.orders = [
            start_worker(
                node,
                "o1",
                role="coordinator",
                endpoint=None,
                options={"ranks": 2, "spares": 0},
            )
        ]
        endpoint = wait_for(
            lambda: (
                service.heartbeats
                and service.heartbeats[-1]["runs"]
                and service.heartbeats[-1]["runs"][0]["endpoint"]
            ),
            20,
        )
        [coordinator] = [
            pid
            for pid in descendants(process.pid)
            if b"coordinator" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        os.kill(coordinator, signal.SIGKILL)
        wait_for(lambda: node.logged("child.died"))
        wait_for(lambda: len(node.logged("child.started")) == 2)
        host, _, port = endpoint.rpartition(":")

        def answers() -> bool:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
                return True
            return False

        wait_for(answers, 20)
        wait_for(
            lambda: (
                [e["type"] for e in service.order if "/runs/" in e["source"]][:1]
                == ["source.opened"]
            )
        )
        everyone = descendants(process.pid)
        assert node.end() == 0

    assert not [pid for pid in everyone if is_running(pid)]
