"""A real coordinator process on loopback, spoken to in hand-made lines."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from runtime.lines import LineSocket
from tests.runtime.waiting import wait_for

TOKEN = "a-token"


class Coordinator:
    """The process, and connections to it as workers and nodes would make them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.open: list[LineSocket] = []
        self.start()

    def start(self, port: int = 0) -> None:
        (self.folder / "endpoint").unlink(missing_ok=True)
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                argv(self.folder, port),
                env={**os.environ, "UNBROKEN_RUN_TOKEN": TOKEN},
                stderr=log,
            )
        wait_for((self.folder / "endpoint").exists)
        self.endpoint = (self.folder / "endpoint").read_text().strip()

    def connect(self) -> LineSocket:
        line = LineSocket.connect(self.endpoint, timeout_seconds=5.0)
        self.open.append(line)
        return line

    def say(self, **message: Any) -> LineSocket:
        line = self.connect()
        line.send({"token": TOKEN, **message})
        return line

    def status(self) -> dict[str, Any]:
        return self.say(op="ask", what="status", body={}).receive(5.0)["state"]

    def worker(self, slot: str, *, ready: bool = True, **more: Any) -> LineSocket:
        return self.say(
            op="hello",
            worker=f"{slot}#1",
            slot=slot,
            incarnation=1,
            node="n0",
            pid=os.getpid(),
            transfer="127.0.0.1:1",
            ready=ready,
            plan="plan",
            **more,
        )

    def log(self) -> str:
        return (self.folder / "log").read_text()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        for line in self.open:
            with contextlib.suppress(OSError):
                line.close()
        self.process.kill()
        self.process.wait()


def argv(folder: Path, port: int) -> list[str]:
    return [
        *(sys.executable, "-m", "runtime", "coordinator", "--folder", str(folder)),
        *("--run", "r", "--cluster", "c", "--ranks", "2", "--spares", "0", "--port", str(port)),
    ]


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    made = Coordinator(tmp_path)
    try:
        yield made
    finally:
        made.end()


def hear(line: LineSocket, op: str) -> dict[str, Any]:
    """The next message of this kind; AssertionError where the line ends before."""
    while True:
        message = line.receive(10.0)
        assert message is not None, f"the line ended before {op!r}"
        if message["op"] == op:
            return message


def closed(line: LineSocket) -> bool:
    try:
        return line.receive(10.0) is None
    except ConnectionError:
        return True


def test_a_wrong_token_is_refused_and_learns_nothing(coordinator: Coordinator):
    for token in ("", "a-toke", "a-token-", "ä", None, 7, ["a-token"]):
        line = coordinator.connect()
        line.send({"op": "ask", "what": "status", "body": {}, "token": token})

        assert line.receive(5.0) == {"op": "refused", "reason": "wrong token for this run"}
        assert closed(line)

    assert coordinator.status()["workers"] == {}


@pytest.mark.parametrize(
    "garbage",
    [
        b"\n",
        b"\xff\xfe\x00\n",
        b"[1, 2]\n",
        b"not json\n",
        b'"text"\n',
        b"[" * 100_000 + b"\n",
        b"x" * (2 << 20),
        b'{"op": "hello"',
        json.dumps({"op": "hello", "token": TOKEN}).encode() + b"\n",
        json.dumps({"op": "node", "token": TOKEN, "node": "n0"}).encode() + b"\n",
        json.dumps({"op": "ask", "token": TOKEN, "what": "migrate"}).encode() + b"\n",
        json.dumps({"op": "nothing", "token": TOKEN}).encode() + b"\n",
    ],
    ids=["empty", "bytes", "list", "text", "string", "deep", "long", "torn", *"1234"],
)
def test_garbage_closes_its_own_connection_and_nothing_else(
    coordinator: Coordinator, garbage: bytes
):
    worker = coordinator.worker("w0")
    hear(worker, "welcome")
    line = coordinator.connect()
    with contextlib.suppress(ConnectionError):
        line.sock.sendall(garbage)
        line.sock.shutdown(socket.SHUT_WR)

    assert closed(line)
    assert list(coordinator.status()["workers"]) == ["w0#1"]
    assert "Traceback" not in coordinator.log()


def test_garbage_from_a_worker_loses_its_line_and_changes_nothing(coordinator: Coordinator):
    worker = coordinator.worker("w0")
    hear(worker, "welcome")
    worker.send({"no": "op"})

    assert closed(worker)
    state = wait_for(lambda: (s := coordinator.status())["workers"]["w0#1"]["lost_at"] and s)
    assert state["workers"]["w0#1"]["role"] == "spare"
    assert "Traceback" not in coordinator.log()


def first_epoch(coordinator: Coordinator) -> list[LineSocket]:
    workers = [coordinator.worker("w0"), coordinator.worker("w1")]
    for worker in workers:
        assert hear(worker, "epoch")["epoch"] == 1
    return workers


def store(coordinator: Coordinator, epoch: int, **message: Any) -> LineSocket:
    line = coordinator.say(op="store", worker="w0#1")
    line.send({"epoch": epoch, **message})
    return line


def test_keys_of_the_epoch_are_kept_waited_for_and_end_with_it(coordinator: Coordinator):
    workers = first_epoch(coordinator)
    waiting = store(coordinator, 1, op="get", keys=["a", "b"])
    hopeless = store(coordinator, 1, op="get", keys=["never"])
    for key in ("a", "b"):
        assert store(coordinator, 1, op="set", key=key, value=f"of {key}").receive(5.0)["ok"]
    assert waiting.receive(5.0) == {"ok": True, "values": ["of a", "of b"]}

    for worker in workers:  # the epoch breaks, the next one follows
        worker.send({"op": "void", "epoch": 1, "error": "e"})
        worker.send({"op": "boundary", "epoch": 1, "committed_step": 0})
    assert hear(workers[0], "epoch")["epoch"] == 2

    assert hopeless.receive(5.0) == {"ok": False, "values": None}
    assert store(coordinator, 1, op="set", key="a", value="late").receive(5.0) == {"ok": False}
    assert store(coordinator, 1, op="get", keys=["a"]).receive(5.0)["ok"] is False
    assert store(coordinator, 3, op="set", key="a", value="early").receive(5.0) == {"ok": False}
    assert store(coordinator, 2, op="set", key="a", value="new").receive(5.0)["ok"] is True
    assert store(coordinator, 2, op="get", keys=["a"]).receive(5.0)["values"] == ["new"]


def test_a_port_that_is_taken_is_one_clear_line(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            argv(tmp_path, port),
            env={**os.environ, "UNBROKEN_RUN_TOKEN": TOKEN},
            capture_output=True,
            text=True,
            check=False,
        )

    assert done.returncode == 2
    assert done.stderr == (
        f"unbroken coordinator: cannot listen on 127.0.0.1:{port}: Address already in use; "
        "choose another --port or end what holds it\n"
    )
    assert not (tmp_path / "endpoint").exists()


def test_a_second_line_of_a_worker_takes_over_from_the_first(coordinator: Coordinator):
    first = coordinator.worker("w0")
    hear(first, "welcome")
    second = coordinator.worker("w0")
    hear(second, "welcome")

    assert closed(first)
    assert coordinator.status()["workers"]["w0#1"]["connected"] is True


def train(coordinator: Coordinator) -> tuple[LineSocket, list[LineSocket]]:
    node = coordinator.say(op="node", node="n0", slots=[], alive=[])
    workers = first_epoch(coordinator)
    for worker in workers:
        worker.send({"op": "joined", "epoch": 1, "committed_step": 0})
    for worker in workers:
        hear(worker, "go")
    return node, workers


def test_a_coordinator_killed_at_the_end_comes_back_to_say_so(coordinator: Coordinator):
    node, workers = train(coordinator)
    for worker in workers:
        worker.send({"op": "finished", "epoch": 1, "committed_step": 9})
    for worker in workers:
        hear(worker, "stop")
    port = int(coordinator.endpoint.rpartition(":")[2])
    coordinator.kill()
    for line in (node, *workers):
        line.close()

    coordinator.start(port)
    alive = [{"worker": "w1#1", "slot": "w1", "incarnation": 1, "pid": os.getpid()}]
    node = coordinator.say(op="node", node="n0", slots=["w0", "w1"], alive=alive)
    late = coordinator.worker("w1", epoch=1, committed_step=9)

    assert hear(late, "stop")["outcome"] == "completed"
    late.close()
    assert hear(node, "over")["outcome"] == "completed"
    node.close()
    assert coordinator.process.wait(10) == 0


def test_a_script_at_work_after_its_last_step_is_waited_for(coordinator: Coordinator):
    node, workers = train(coordinator)
    for worker in workers:
        worker.send({"op": "finished", "epoch": 1, "committed_step": 9})
    workers[0].close()
    for worker in workers[1:]:
        hear(worker, "stop")

    until = time.monotonic() + 1.0
    while time.monotonic() < until:  # it saves its model, for as long as it likes
        with contextlib.suppress(TimeoutError):
            assert node.receive(0.1)["op"] != "over"

    workers[1].close()
    assert hear(node, "over")["outcome"] == "completed"


def test_a_disk_that_refuses_the_journal_ends_the_process_in_one_line(tmp_path: Path):
    (tmp_path / "endpoint").unlink(missing_ok=True)
    limit = "import resource, signal, sys, runpy\n"
    limit += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
    limit += "from runtime.cli import main\nsys.exit(main(sys.argv[1:]))\n"
    process = subprocess.Popen(
        [sys.executable, "-c", limit, *argv(tmp_path, 0)[3:]],
        env={**os.environ, "UNBROKEN_RUN_TOKEN": TOKEN},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for((tmp_path / "endpoint").exists)
    endpoint = (tmp_path / "endpoint").read_text().strip()
    lines = []
    number = 0
    while process.poll() is None and number < 2000:
        number += 1
        with contextlib.suppress(OSError):
            line = LineSocket.connect(endpoint, timeout_seconds=5.0)
            hello = {"op": "hello", "worker": f"w{number}#1", "slot": f"w{number}"}
            more = {"incarnation": 1, "node": "n0", "pid": 1, "transfer": "t", "token": TOKEN}
            line.send({**hello, **more})
            lines.append(line)
            line.receive(5.0)

    words = process.stderr.read()
    for line in lines:
        line.close()

    assert process.wait(10) == 75  # not for good: it is started again
    assert "unbroken coordinator: the coordinator can keep no record: " in words
    assert "Traceback" not in words
