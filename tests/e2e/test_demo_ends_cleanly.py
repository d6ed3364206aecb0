"""Ctrl-C at any moment of a demo leaves no process behind, and the next one works."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.running_demo import RunningDemo

MOMENTS: dict[str, Callable[[RunningDemo], bool]] = {
    "while the databases start": lambda demo: "Starting PostgreSQL" in demo.output(),
    "while the service starts": lambda demo: "Starting the web server" in demo.output(),
    "while the agents start": lambda demo: "node agents" in demo.output(),
    "while it trains": lambda demo: demo.committed_step() >= 2,
}


@pytest.fixture
def demos() -> Iterator[list[RunningDemo]]:
    running: list[RunningDemo] = []
    yield running
    for demo in running:
        demo.end()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_ctrl_c_at_any_moment_leaves_no_process(demos: list[RunningDemo], tmp_path: Path) -> None:
    # One folder for all of them: each demo also finds what the one before it left.
    for moment, has_come in MOMENTS.items():
        demo = RunningDemo(tmp_path)
        demos.append(demo)
        demo.await_that(lambda has_come=has_come, demo=demo: has_come(demo), moment)

        demo.interrupt()

        assert demo.process.wait(60) == 130, demo.output()
        assert demo.marked() == [], moment
        assert "Traceback" not in demo.output(), demo.output()
        state = tmp_path / "services" / "state.json"
        assert not state.exists() or not any(_is_alive(pid) for pid in demo.servers().values())


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_a_port_in_use_is_one_clear_line(demos: list[RunningDemo], tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        demo = RunningDemo(tmp_path, PORT=str(port))
        demos.append(demo)
        status = demo.process.wait(60)

    assert status == 2
    assert demo.output().splitlines()[-1] == (
        f"demo: port {port} cannot be used: Address already in use; "
        "choose another PORT or end what has it"
    )
    assert "Traceback" not in demo.output()
    assert demo.marked() == []
