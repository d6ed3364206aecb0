"""The coordinator's process: sockets, journal and outbox around the pure rule in `decisions`."""

from __future__ import annotations

import asyncio
import hmac
import os
import sys
import time
from pathlib import Path
from typing import Any

from runtime import lines
from runtime.coordinator.decisions import decide
from runtime.coordinator.journal import Journal
from runtime.coordinator.model import (
    Config,
    Log,
    Message,
    Refuse,
    Role,
    SendNode,
    SendWorker,
    State,
    Stop,
)
from runtime.coordinator.rendezvous import Rendezvous
from runtime.errors import MemoryRefused, UsageError
from runtime.events import coordinator_source
from runtime.outbox import Outbox, OutboxError

TICK_SECONDS = 0.05
STATUS_SECONDS = 1.0
# What is heard all the time and can be heard again after a crash is not worth a disk write.
UNJOURNALED = frozenset({"beat", "tick", "probe"})
# After the end, members are given this long to hear of it and hang up.
FAREWELL_SECONDS = 10.0


class Server:
    """Owns the state of one run and everything that may change it, in one thread."""

    def __init__(self, folder: Path, config: Config, token: str, outbox: Outbox) -> None:
        self._folder = folder
        self._token = token
        self._outbox = outbox
        known = Journal.read(folder / "journal")
        self.state = known or State(config)
        self._journal = Journal(folder / "journal")
        self._rendezvous = Rendezvous()
        self._workers: dict[str, asyncio.StreamWriter] = {}
        self._nodes: dict[str, asyncio.StreamWriter] = {}
        self._over = asyncio.Event()
        self._restarted = known is not None
        self._fatal: Exception | None = None
        # Who has spoken to this process: after a restart at the end, the others are waited for.
        self._met: set[str] = set()
        self._is_farewell = False
        self._is_closed = False

    # -- the loop ---------------------------------------------------------------------------

    async def serve(self, host: str, port: int) -> str:
        """Serves until the run is over; returns its outcome."""
        try:
            server = await asyncio.start_server(
                self._connected, host, port, limit=lines.MAX_LINE_BYTES
            )
        except OSError as error:
            # asyncio's own text of the error says the address twice.
            known = (error.errno or 0) > 0
            reason = os.strerror(error.errno or 0) if known else error.strerror or str(error)
            raise UsageError(
                f"cannot listen on {host}:{port}: {reason}; "
                "choose another --port or end what holds it"
            ) from error
        port = server.sockets[0].getsockname()[1]
        self._publish(host, port)
        if self._restarted:
            self._append_events()
            self._rendezvous.open(self.state.epoch)
            self.hear("restarted", {})
        ticker = asyncio.create_task(self._tick())
        try:
            if self.state.outcome:
                self._over.set()
            await self._over.wait()
            if self._fatal is not None:
                raise MemoryRefused(f"the coordinator can keep no record: {self._fatal}")
            await self._farewell()
        finally:
            self._is_closed = True
            ticker.cancel()
            server.close()
            self._journal.close()
        return self.state.outcome

    def _publish(self, host: str, port: int) -> None:
        """Writes the endpoint where launcher and agent look for it, whole or not at all."""
        fresh = self._folder / "endpoint.new"
        fresh.write_text(f"{host}:{port}\n")
        fresh.replace(self._folder / "endpoint")

    async def _tick(self) -> None:
        told_at = 0.0
        while True:
            self.hear("tick", {})
            if time.monotonic() - told_at >= STATUS_SECONDS:
                told_at = time.monotonic()
                self._tell_nodes()
            await asyncio.sleep(TICK_SECONDS)

    def _tell_nodes(self) -> None:
        """Where the run stands, and who is on each node, for the agents' heartbeats."""
        for node, writer in self._nodes.items():
            workers = [
                {"name": worker.name, "role": worker.role, "rank": self.state.rank_of(name)}
                for name, worker in self.state.workers.items()
                if worker.node == node and worker.role != Role.GONE
            ]
            _send(
                writer,
                {
                    "op": "status",
                    "epoch": self.state.epoch,
                    "committed_step": self.state.committed_step,
                    "workers": workers,
                },
            )

    async def _farewell(self) -> None:
        """Waits until everybody has heard of the end and hung up, nodes last."""
        deadline = time.monotonic() + FAREWELL_SECONDS
        while self._scripts_at_work() or (self._awaited() and time.monotonic() < deadline):
            await asyncio.sleep(0.02)
        deadline = time.monotonic() + FAREWELL_SECONDS
        self._is_farewell = True
        for writer in self._nodes.values():
            _send(writer, {"op": "over", "outcome": self.state.outcome})
        nodes = {worker.node for worker in self.state.workers.values()}
        while (self._nodes or not nodes <= self._met) and time.monotonic() < deadline:
            await asyncio.sleep(0.02)

    def _scripts_at_work(self) -> bool:
        """After its last step a script may have much to save; it is not hurried."""
        members = {worker.name for worker in self.state.members()}
        return self.state.outcome == "completed" and bool(members & self._workers.keys())

    def _awaited(self) -> list[str]:
        """Workers that have not hung up, or that this process has not met since it restarted."""
        return [
            worker.name
            for worker in self.state.workers.values()
            if worker.name in self._workers
            or (worker.role != Role.GONE and worker.name not in self._met)
        ]

    # -- decisions --------------------------------------------------------------------------

    def hear(
        self, kind: str, body: dict[str, Any], via: asyncio.StreamWriter | None = None
    ) -> None:
        """One message through the rule: journal first, then events, then the actions."""
        if self._is_closed or self._fatal is not None:
            return
        state, actions = decide(self.state, Message(kind, time.monotonic(), body))
        try:
            if kind not in UNJOURNALED or state.events or _durable(actions):
                self._journal.write(state)
            self.state = state
            self._append_events()
        except (OSError, OutboxError) as error:
            # What cannot be remembered must not take effect: end, and be started again.
            self._fatal = error
            self._over.set()
            return
        self._rendezvous.open(self.state.epoch)
        for action in actions:
            self._act(action, via)

    def _append_events(self) -> None:
        for event in self.state.events:
            self._outbox.append(event["type"], event["data"], key=event["key"])
        self.state.events = []

    def _act(self, action: object, via: asyncio.StreamWriter | None) -> None:
        match action:
            case SendWorker(name, message):
                if (writer := self._workers.get(name)) is not None:
                    _send(writer, message)
            case SendNode(node, message):
                if (writer := self._nodes.get(node)) is not None:
                    _send(writer, message)
            case Refuse(reason):
                if via is not None:
                    _send(via, {"op": "refused", "reason": reason})
                    via.close()
            case Log(text):
                print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)
            case Stop():
                self._over.set()

    # -- connections ------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            hello = await _read(reader)
            if hello is None:
                return
            if not hmac.compare_digest(str(hello.get("token")).encode(), self._token.encode()):
                _send(writer, {"op": "refused", "reason": "wrong token for this run"})
                return
            match hello.get("op"):
                case "hello":
                    await self._serve_worker(hello, reader, writer)
                case "node":
                    await self._serve_node(hello, reader, writer)
                case "store":
                    await self._serve_store(reader, writer)
                case "ask":
                    self._answer(hello, writer)
        except asyncio.CancelledError:
            return  # the process ends
        except (ConnectionError, ValueError, KeyError, TypeError, RecursionError) as error:
            print(f"a connection was closed: {error!r}", file=sys.stderr, flush=True)
        finally:
            writer.close()

    async def _serve_worker(
        self, hello: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        name = str(hello["worker"])
        if (old := self._workers.get(name)) is not None:
            old.close()
        self._workers[name] = writer
        try:
            self.hear("hello", hello, writer)
            self._met.add(name)
            while (message := await _read(reader)) is not None:
                self.hear(str(message.pop("op")), {**message, "worker": name}, writer)
        finally:
            if self._workers.get(name) is writer:
                del self._workers[name]
                self.hear("lost", {"worker": name})

    async def _serve_node(
        self, hello: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        node = str(hello["node"])
        self._nodes[node] = writer
        try:
            self.hear("node", hello, writer)
            self._met.add(node)
            if self._is_farewell:
                _send(writer, {"op": "over", "outcome": self.state.outcome})
            while (message := await _read(reader)) is not None:
                self.hear(str(message.pop("op")), {**message, "node": node}, writer)
        finally:
            if self._nodes.get(node) is writer:
                del self._nodes[node]

    async def _serve_store(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while (message := await _read(reader)) is not None:
            epoch = int(message["epoch"])
            if message["op"] == "set":
                done = self._rendezvous.set(epoch, str(message["key"]), str(message["value"]))
                answer: dict[str, Any] = {"ok": done}
            else:
                values = await self._rendezvous.get(epoch, list(message["keys"]))
                answer = {"ok": values is not None, "values": values}
            _send(writer, answer)
            await writer.drain()

    def _answer(self, hello: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        """Status for people and tests, and the two things they may ask for."""
        if hello["what"] in ("migrate", "cancel"):
            self.hear(hello["what"], hello["body"], writer)
        _send(writer, {"op": "status", "state": self.state.to_json()})


def _durable(actions: list[Any]) -> bool:
    return any(not isinstance(action, Log) for action in actions if not _is_probe(action))


def _is_probe(action: object) -> bool:
    return isinstance(action, SendNode) and action.message.get("op") == "probe"


def _send(writer: asyncio.StreamWriter, message: dict[str, Any]) -> None:
    if not writer.is_closing():
        writer.write(lines.encode(message))


async def _read(reader: asyncio.StreamReader) -> dict[str, Any] | None:
    """The next message; None at the end of the stream, torn or not."""
    try:
        line = await reader.readline()
    except ConnectionError:
        return None
    return lines.decode(line) if line.endswith(b"\n") else None


def run_server(folder: Path, config: Config, token: str, host: str, port: int) -> str:
    """Runs a coordinator in this process; takes its old port again after a restart."""
    folder.mkdir(parents=True, exist_ok=True)
    endpoint = folder / "endpoint"
    if endpoint.exists():
        port = int(endpoint.read_text().strip().rpartition(":")[2])
    outbox = Outbox(folder / "outbox.db", coordinator_source(config.cluster, config.run))
    try:
        outcome = asyncio.run(Server(folder, config, token, outbox).serve(host, port))
        # The run's source says that nothing follows, so that its silence blocks no contract year.
        outbox.seal()
        return outcome
    finally:
        outbox.close()


def read_token() -> str:
    """The run's token, which launcher and agent hand down; UsageError where it is missing."""
    token = os.environ.get("UNBROKEN_RUN_TOKEN", "")
    if not token:
        raise UsageError(
            "UNBROKEN_RUN_TOKEN is not set: a launcher or an agent starts coordinators"
        )
    return token
