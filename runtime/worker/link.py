"""A worker's line to its coordinator: beats, orders, reconnection; it decides nothing.

One thread reads and beats; the training thread sends under a lock and waits on a condition. While
the coordinator is away the line is retried for ever and training goes on.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runtime.lines import LineSocket
from runtime.worker.sockets import inode_of

BEAT_SECONDS = 0.1
_RETRY_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True)
class Identity:
    """Who this process is, given by the one who started it."""

    run: str
    slot: str
    incarnation: int
    node: str
    endpoint: str
    token: str

    @property
    def name(self) -> str:
        return f"{self.slot}#{self.incarnation}"

    @classmethod
    def from_environment(cls) -> Identity | None:
        """None where the process was not started by a launcher or an agent."""
        get = os.environ.get
        if not (endpoint := get("UNBROKEN_COORDINATOR")):
            return None
        return cls(
            run=get("UNBROKEN_RUN", ""),
            slot=get("UNBROKEN_SLOT", ""),
            incarnation=int(get("UNBROKEN_INCARNATION", "1")),
            node=get("UNBROKEN_NODE", ""),
            endpoint=endpoint,
            token=get("UNBROKEN_RUN_TOKEN", ""),
        )


@dataclass
class Facts:
    """What the training thread last said, repeated when the line is made anew."""

    ready: bool = False
    plan: str = ""
    framework: str = ""
    epoch: int = 0
    committed_step: int | None = None
    boundary_epoch: int | None = None
    joined_epoch: int | None = None
    received: dict[str, Any] | None = None
    finished: bool = False
    saved: list[dict[str, Any]] = field(default_factory=list)
    step_seconds: float | None = None
    samples_per_second: float | None = None
    tokens_per_second: float | None = None


@dataclass
class Inbox:
    """What the coordinator asked for; guarded by the link's condition."""

    order: dict[str, Any] | None = None
    go_epoch: int = 0
    aborted_epoch: int = 0
    hold_at: int | None = None
    hold_is_final: bool = False
    running_step: int = 0
    stop: str | None = None
    retire: bool = False


class Link:
    def __init__(
        self, identity: Identity, transfer: str, on_abort: Callable[[int, str], None]
    ) -> None:
        self.identity = identity
        self.facts = Facts()
        self.inbox = Inbox()
        self.changed = threading.Condition()
        self._transfer = transfer
        self._on_abort = on_abort
        self._line: LineSocket | None = None
        self._send_lock = threading.Lock()
        self._inodes: set[str] = set()
        self._thread = threading.Thread(target=self._run, name="coordinator-link", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def inodes(self) -> frozenset[str]:
        """The line's own socket, which an abort must not break."""
        return frozenset(self._inodes)

    # -- sending, from the training thread ----------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        """Best effort: what is lost with the line is said again by `hello`."""
        with self._send_lock:
            line = self._line
            if line is None:
                return
            try:
                line.send(message)
            except OSError:
                line.close()

    def say_ready(self, plan: str, framework: str) -> None:
        self.facts.ready, self.facts.plan, self.facts.framework = True, plan, framework
        self.send({"op": "ready", "plan": plan, "framework": framework})

    def say_beat(self) -> None:
        facts = self.facts
        self.send(
            {
                "op": "beat",
                "epoch": facts.epoch,
                "committed_step": facts.committed_step,
                "step_seconds": facts.step_seconds,
                "samples_per_second": facts.samples_per_second,
                "tokens_per_second": facts.tokens_per_second,
            }
        )

    def say_boundary(self, epoch: int, committed_step: int | None) -> None:
        self.facts.boundary_epoch, self.facts.committed_step = epoch, committed_step
        self.send({"op": "boundary", "epoch": epoch, "committed_step": committed_step})

    def say_joined(self, epoch: int, committed_step: int, received: dict[str, Any] | None) -> None:
        facts = self.facts
        facts.boundary_epoch, facts.joined_epoch = None, epoch
        facts.epoch, facts.committed_step, facts.received = epoch, committed_step, received
        self.send(
            {
                "op": "joined",
                "epoch": epoch,
                "committed_step": committed_step,
                "received": received,
            }
        )

    # -- the thread ---------------------------------------------------------------------------

    def _run(self) -> None:
        attempt = 0
        while True:
            try:
                line = LineSocket.connect(self.identity.endpoint, timeout_seconds=5.0)
            except OSError:
                time.sleep(_RETRY_SECONDS[min(attempt, len(_RETRY_SECONDS) - 1)])
                attempt += 1
                continue
            attempt = 0
            inode = inode_of(line.sock)
            self._inodes.add(inode)
            try:
                self._hello(line)
                self._read(line)
            except (OSError, ValueError):
                pass
            finally:
                with self._send_lock:
                    self._line = None
                line.close()
                self._inodes.discard(inode)
            time.sleep(_RETRY_SECONDS[0])

    def _hello(self, line: LineSocket) -> None:
        identity, facts = self.identity, self.facts
        with self._send_lock:
            line.send(
                {
                    "op": "hello",
                    "token": identity.token,
                    "worker": identity.name,
                    "slot": identity.slot,
                    "incarnation": identity.incarnation,
                    "node": identity.node,
                    "pid": os.getpid(),
                    "transfer": self._transfer,
                    "ready": facts.ready,
                    "plan": facts.plan,
                    "framework": facts.framework,
                    "epoch": facts.epoch,
                    "committed_step": facts.committed_step,
                    "boundary_epoch": facts.boundary_epoch,
                    "joined_epoch": facts.joined_epoch,
                    "received": facts.received,
                }
            )
            self._line = line
        for entry in list(facts.saved):
            self.send({"op": "saved", **entry})
        if facts.finished:
            self.send(
                {"op": "finished", "epoch": facts.epoch, "committed_step": facts.committed_step}
            )

    def _read(self, line: LineSocket) -> None:
        next_beat = time.monotonic()
        while True:
            now = time.monotonic()
            if now >= next_beat:
                self.say_beat()
                next_beat = now + BEAT_SECONDS
            try:
                message = line.receive(max(0.005, next_beat - time.monotonic()))
            except TimeoutError:
                continue
            if message is None:
                return
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        inbox = self.inbox
        with self.changed:
            match message["op"]:
                case "epoch":
                    inbox.order = message
                    inbox.hold_at, inbox.hold_is_final = None, False
                case "go":
                    inbox.go_epoch = message["epoch"]
                case "abort":
                    inbox.aborted_epoch = max(inbox.aborted_epoch, message["epoch"])
                    inbox.hold_at, inbox.hold_is_final = None, False
                    self._on_abort(message["epoch"], "a member of the epoch was lost")
                case "pause":
                    inbox.hold_at = inbox.running_step
                    self.send(
                        {"op": "pause_reply", "epoch": message["epoch"], "step": inbox.hold_at}
                    )
                case "pause_at":
                    inbox.hold_at, inbox.hold_is_final = message["step"], True
                case "retire":
                    inbox.retire = True
                case "stop":
                    inbox.stop = message["outcome"]
                case "refused":
                    self._refused(str(message["reason"]))
            self.changed.notify_all()

    def _refused(self, reason: str) -> None:
        """Every door is shut for this process; what its training thread does no longer matters."""
        if "the run is over" not in reason:
            print(f"unbroken: {reason}", file=sys.stderr, flush=True)
        leave(0 if "over" in reason else 3)


def leave(status: int) -> None:
    """Ends the process at once, whatever its other threads do."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
