"""This node's line to a run's coordinator: spawns, kills and looks at workers as it is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.agent.specs import RunSpec
from runtime.agent.supervisor import Supervisor, process_state
from runtime.lines import LineSocket
from runtime.worker_environment import worker_environment

_RETRY_SECONDS = 0.05


class NodeLink:
    """Registers a node and its slots with a coordinator, again after each loss of the line."""

    def __init__(
        self,
        *,
        endpoint: str,
        token: str,
        node: str,
        slots: list[str],
        supervisor: Supervisor,
    ) -> None:
        self._endpoint = endpoint
        self._hello = {"op": "node", "token": token, "node": node, "slots": slots}
        self._supervisor = supervisor
        self._line: LineSocket | None = None
        self._send_lock = threading.Lock()
        self._stopping = threading.Event()
        self._over = threading.Event()
        self._backlog: list[dict[str, Any]] = []
        self._asked: set[str] = set()
        self.outcome: str | None = None
        self._status: dict[str, Any] = {"epoch": 0, "committed_step": None, "workers": []}
        self._threads = [
            threading.Thread(target=self._run, name="node-link", daemon=True),
            threading.Thread(target=self._forward_news, name="node-news", daemon=True),
        ]

    def start(self) -> None:
        self._supervisor.start()
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Ends the workers, then the line."""
        self._stopping.set()
        self._supervisor.stop()
        with self._send_lock:
            if self._line is not None:
                self._line.close()
        for thread in self._threads:
            thread.join()

    def is_alive(self) -> bool:
        """Whether something is left to do, such as what scripts do behind a completed loop."""
        if not self._over.is_set():
            return True
        return self.outcome == "completed" and bool(self._supervisor.live())

    def wait_over(self, timeout_seconds: float) -> bool:
        """Whether the coordinator said that the run is over, waiting at most this long."""
        return self._over.wait(timeout_seconds)

    def status(self) -> dict[str, Any]:
        """What the coordinator last said of the run and of this node's workers."""
        return dict(self._status)

    def report_finding(self, finding: Mapping[str, Any]) -> None:
        self._send({"op": "finding", "finding": dict(finding)})

    def _send(self, message: dict[str, Any]) -> None:
        with self._send_lock:
            if self._line is not None:
                try:
                    self._line.send(message)
                    return
                except OSError:
                    self._line.close()
            if message["op"] == "finding":
                self._backlog.append(message)  # ends of workers are told by `alive` instead

    def _run(self) -> None:
        while not self._stopping.is_set() and not self._over.is_set():
            try:
                line = LineSocket.connect(self._endpoint, timeout_seconds=5.0)
            except OSError:
                time.sleep(_RETRY_SECONDS)
                continue
            try:
                self._register(line)
                while (message := line.receive()) is not None:
                    self._obey(message)
            except (OSError, ValueError):
                pass
            finally:
                with self._send_lock:
                    self._line = None
                line.close()
            time.sleep(_RETRY_SECONDS)

    def _register(self, line: LineSocket) -> None:
        alive = [
            {
                "worker": each.worker,
                "slot": each.slot,
                "incarnation": each.incarnation,
                "pid": each.pid,
            }
            for each in self._supervisor.live()
        ]
        with self._send_lock:
            line.send({**self._hello, "alive": alive})
            self._line = line
            backlog, self._backlog = self._backlog, []
        for message in backlog:
            self._send(message)

    def _obey(self, message: dict[str, Any]) -> None:
        match message["op"]:
            case "spawn":
                worker = f"{message['slot']}#{message['incarnation']}"
                if worker not in self._asked:  # said again by a restarted coordinator
                    self._asked.add(worker)
                    self._supervisor.spawn(message["slot"], message["incarnation"])
            case "kill":
                self._supervisor.kill(message["name"])
            case "probe":
                state = process_state(message["pid"])
                self._send({"op": "probe", "worker": message["name"], "state": state})
            case "status":
                self._status = {key: message[key] for key in self._status}
            case "over" | "refused":
                self.outcome = message.get("outcome") or message.get("reason")
                self._over.set()

    def _forward_news(self) -> None:
        while True:
            news = self._supervisor.news.get()
            if news["op"] == "closed":
                if not self._stopping.is_set():
                    # Without it no worker can be started here; whoever started us has to know.
                    self.outcome = self.outcome or "failed"
                    self._over.set()
                return
            if news["op"] == "exited":
                self._send(
                    {
                        "op": "exited",
                        "worker": news["worker"],
                        "slot": news["slot"],
                        "incarnation": news["incarnation"],
                        "status": news["status"],
                    }
                )


def make_node_link(
    *, run: str, endpoint: str, ticket: str, node: str, slots: int, spec: RunSpec, folder: Path
) -> NodeLink:
    """The link of one run on an agent's node; the spec's argv is a training script and its words.

    The spec's environment may set UNBROKEN_CHECKPOINTS (a folder that all nodes of the run share)
    and UNBROKEN_CHECKPOINT_EVERY (steps).
    """
    identity = worker_environment(
        run=run,
        node=node,
        endpoint=endpoint,
        token=ticket,
        checkpoint_every_steps=int(spec.environment.get("UNBROKEN_CHECKPOINT_EVERY", "0")),
        checkpoints=Path(spec.environment.get("UNBROKEN_CHECKPOINTS", folder / "checkpoints")),
    )
    supervisor = Supervisor(
        list(spec.argv), {**spec.environment, **identity}, folder / "logs", spec.user
    )
    return NodeLink(
        endpoint=endpoint,
        token=ticket,
        node=node,
        slots=[f"{node}/{number}" for number in range(slots)],
        supervisor=supervisor,
    )
