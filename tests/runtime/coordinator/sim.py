"""A small cluster around the pure rule: nodes, lines, journal and a manual clock; nothing sleeps.

Only `decide` is real. What the server, the agents and the workers do around it is modelled move by
move, so that a test can order, cut and lose anything between any two of its messages.
"""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from runtime.coordinator.decisions import decide
from runtime.coordinator.model import (
    Config,
    Message,
    Phase,
    Refuse,
    Role,
    SendNode,
    SendWorker,
    State,
)
from runtime.coordinator.server import UNJOURNALED, _durable
from tests.runtime.coordinator.fake_worker import FakeWorker, Line

MOVEMENTS = ("recovery.completed", "migration.completed")


@dataclass
class Node:
    name: str
    slots: list[str]
    connected: bool = False
    over: bool = False
    asked: set[str] = field(default_factory=set)
    up: deque[dict[str, Any]] = field(default_factory=deque)
    down: deque[dict[str, Any]] = field(default_factory=deque)


class Cluster:
    """Everything but the rule, and the checks that hold after every message."""

    def __init__(
        self,
        ranks: int = 4,
        slots: dict[str, int] | None = None,
        steps: int = 12,
        save_every: int = 4,
    ) -> None:
        self.steps, self.size, self.save_every = steps, ranks, save_every
        slots = slots or {"n0": 2, "n1": 2, "n2": 2}
        config = Config("run", "cluster", ranks, sum(slots.values()) - ranks)
        self.state = State(config)
        self.journal = json.dumps(self.state.to_json())
        self.up, self.generation = True, 0
        self.now = 100.0
        self.nodes = {}
        for name, count in slots.items():
            first = sum(len(node.slots) for node in self.nodes.values())
            self.nodes[name] = Node(name, [f"w{first + n}" for n in range(count)])
        self.processes: dict[str, FakeWorker] = {}
        self.lines: dict[str, Line] = {}  # the server's: worker -> its newest line
        self.read: list[Line] = []  # every line that the server still reads
        self.events: dict[str, dict[str, Any]] = {}  # the outbox: key -> event, in order
        self.broken: set[int] = set()
        self.holders: dict[tuple[int, int], str] = {}  # (epoch, rank) -> worker
        self.begun: dict[tuple[int, int], list[int]] = {}  # (epoch, rank) -> steps begun
        self.commits: set[tuple[int, int]] = set()  # (epoch, step) committed by anybody
        self.returned: list[tuple[int, int]] = []  # ranks whose script went past its loop
        self.bad_checkpoints: set[str] = set()
        self.raised = False
        self.pids = 1000
        self.messages = self.plays = 0
        self.heard: list[str] = []
        self.crash_at: tuple[int, str] | None = None  # (message number, "before" | "after")

    # -- the coordinator's process ----------------------------------------------------------

    def hear(self, kind: str, body: dict[str, Any], via: Line | None = None) -> None:
        if not self.up:
            return
        self.messages += 1
        crash = self.crash_at[1] if self.crash_at and self.crash_at[0] == self.messages else ""
        if crash == "before":
            self.crash()
            return
        state, actions = self.apply(Message(kind, self.now, body))
        self.heard.append(f"{kind} {body.get('worker', body.get('node', ''))}")
        self.state = state
        if kind not in UNJOURNALED or state.events or _durable(actions):
            self.journal = json.dumps(state.to_json())
        if crash == "journaled":
            self.crash()
            return
        self.append_events()
        for action in actions:
            self.act(action, via)
        if crash == "after":
            self.crash()

    def apply(self, message: Message) -> tuple[State, list[Any]]:
        """The rule, checked; what is slow to check at every seventh message only."""
        closely = self.messages % 7 == 0
        before = json.dumps(self.state.to_json()) if closely else ""
        state, actions = decide(self.state, message)
        if closely:
            assert json.dumps(self.state.to_json()) == before, "decide changed what it was given"
            assert State.from_json(json.loads(json.dumps(state.to_json()))) == state
        self.check(state)
        return state, actions

    def append_events(self) -> None:
        for event in self.state.events:
            self.events.setdefault(event["key"], event)
        self.state.events = []

    def act(self, action: object, via: Line | None) -> None:
        match action:
            case SendWorker(name, message):
                if name in self.lines:
                    self.lines[name].down.append(message)
            case SendNode(node, message):
                if self.nodes[node].connected:
                    self.nodes[node].down.append(message)
            case Refuse(reason):
                if via is not None:
                    via.down.append({"op": "refused", "reason": reason})
                    via.refused = True

    def crash(self) -> None:
        """kill -9 of the coordinator: what was in the air is lost, the journal stays."""
        self.up = False
        self.lines, self.read = {}, []
        for process in self.processes.values():
            process.line = None
        for node in self.nodes.values():
            node.connected = False
            node.up.clear()
            node.down.clear()

    def restart(self) -> None:
        self.up = True
        self.generation += 1
        self.state = State.from_json(json.loads(self.journal))
        self.append_events()
        self.hear("restarted", {})

    # -- lines --------------------------------------------------------------------------------

    def open_line(self, name: str) -> Line:
        line = Line(name)
        self.read.append(line)
        return line

    def cut(self, process: FakeWorker) -> None:
        """The line breaks: what was in the air both ways is lost."""
        if process.line is not None:
            process.line.up.clear()
            process.line.ended = True
            process.line = None

    def read_line(self, line: Line) -> None:
        """The server reads one message of a line, or its end."""
        if line.up and not line.refused:
            message = dict(line.up.popleft())
            kind = message.pop("op")
            if kind == "hello":
                older = self.lines.get(line.name)
                if older is not None and older in self.read:
                    self.read.remove(older)
                self.lines[line.name] = line
            self.hear(kind, {**message, "worker": line.name}, line)
            return
        self.read.remove(line)
        if self.lines.get(line.name) is line:
            del self.lines[line.name]
            self.hear("lost", {"worker": line.name})

    # -- nodes --------------------------------------------------------------------------------

    def register(self, node: Node) -> None:
        node.connected = True
        alive = [
            {"worker": p.name, "slot": p.slot, "incarnation": p.incarnation, "pid": p.pid}
            for p in self.processes.values()
            if p.node == node.name
        ]
        self.hear("node", {"node": node.name, "slots": node.slots, "alive": alive})

    def obey(self, node: Node, order: dict[str, Any]) -> None:
        match order["op"]:
            case "spawn":
                name = f"{order['slot']}#{order['incarnation']}"
                if name not in node.asked:
                    node.asked.add(name)
                    self.pids += 1
                    process = FakeWorker(
                        self, order["slot"], order["incarnation"], node.name, self.pids
                    )
                    self.processes[name] = process
            case "kill":
                if order["name"] in self.processes:
                    self.process_ended(self.processes[order["name"]], -9)
            case "probe":
                process = self.processes.get(order["name"])
                state = "X" if process is None else "T" if process.stopped else "S"
                node.up.append({"op": "probe", "worker": order["name"], "state": state})

    def process_ended(self, process: FakeWorker, status: int) -> None:
        process.alive = False
        del self.processes[process.name]
        if process.stage in ("building", "joined", "between", "in_step", "finishing"):
            self.broken.add(process.epoch)
        if process.line is not None:
            process.line.ended = True
        node = self.nodes[process.node]
        if node.connected:
            node.up.append(
                {
                    "op": "exited",
                    "worker": process.name,
                    "slot": process.slot,
                    "incarnation": process.incarnation,
                    "status": status,
                }
            )

    # -- the epoch as the workers live it -----------------------------------------------------

    def take_rank(self, process: FakeWorker) -> None:
        key = (process.epoch, process.rank)
        assert self.holders.setdefault(key, process.name) == process.name, "two hold one rank"

    def all_building(self, epoch: int) -> bool:
        names = [self.holders.get((epoch, rank), "") for rank in range(self.size)]
        members = [self.processes.get(name) for name in names]
        return all(
            each is not None
            and each.epoch == epoch
            and (
                (each.stage == "building" and each.built_under == self.generation)
                or each.stage in ("joined", "between")
            )
            for each in members
        )

    def contribute(self, process: FakeWorker) -> None:
        self.begun.setdefault((process.epoch, process.rank), []).append(process.committed + 1)

    def all_contributed(self, process: FakeWorker) -> bool:
        step = process.committed + 1
        return all(step in self.begun.get((process.epoch, rank), []) for rank in range(self.size))

    def committed(self, process: FakeWorker) -> None:
        step = process.committed
        self.commits.add((process.epoch, step))
        if process.rank == 0 and step % self.save_every == 0:
            path = f"step_{step}.epoch_{process.epoch}"
            process.send({"op": "saved", "step": step, "path": path, "digest": f"d{step}"})

    # -- moves and time -----------------------------------------------------------------------

    def moves(self) -> list[tuple[Any, ...]]:
        """Every single thing that could happen next, time aside, in a fixed order."""
        found: list[tuple[Any, ...]] = []
        if not self.up:
            found.append((self.restart,))
        for node in self.nodes.values():
            if node.down:
                found.append((lambda n=node: self.obey(n, n.down.popleft()),))
            if self.up and not node.connected:
                found.append((self.register, node))
            elif node.up:
                found.append((self.read_node, node))
        found += [(self.read_line, line) for line in self.read if line.up or line.ended]
        found += [(self.read_line, line) for line in self.read if line.refused]
        for process in self.processes.values():
            if process.stopped:
                continue
            if process.line is None and self.up:
                found.append((process.connect,))
            elif process.line is not None and process.line.down:
                found.append((lambda p=process: p.hear(p.line.down.popleft()),))
            found += [(process.do, move) for move in process.moves()]
        return found

    def read_node(self, node: Node) -> None:
        message = dict(node.up.popleft())
        self.hear(message.pop("op"), {**message, "node": node.name})

    def tick(self, seconds: float = 0.05) -> None:
        self.now += seconds
        for process in self.processes.values():
            if not process.stopped and process.line is not None and process.facts.ready:
                process.beat()
        self.hear("tick", {})

    def settle(self, rounds: int = 400) -> None:
        """Plays fair, first come first served, until nothing is left to do but to finish."""
        for _ in range(rounds):
            for _ in range(2000):
                moves = self.moves()
                if not moves or self.idle():
                    break
                self.play(moves[self.plays % len(moves)])
            if self.idle():
                return
            self.tick()

    def play(self, move: tuple[Any, ...]) -> None:
        self.plays += 1
        move[0](*move[1:])
        self.now += 0.0005

    def idle(self) -> bool:
        return self.state.phase == Phase.FINISHED and not self.processes and self.up

    def until(self, condition: Any, rounds: int = 400) -> None:
        """Plays fair until a condition of the cluster holds; AssertionError when it never does."""
        for _ in range(rounds):
            for _ in range(500):
                if condition(self):
                    return
                moves = self.moves()
                if not moves:
                    break
                self.play(moves[self.plays % len(moves)])
            self.tick()
        raise AssertionError(f"never: phase {self.state.phase}, {self.stages()}")

    # -- faults -------------------------------------------------------------------------------

    def member(self, rank: int) -> FakeWorker | None:
        return self.processes.get(self.state.ranks.get(str(rank), ""))

    def trainer(self, rank: int) -> FakeWorker:
        """The process that trains as this rank, whatever the coordinator knows of it."""
        return next(
            each
            for each in self.processes.values()
            if each.rank == rank and each.stage in ("between", "in_step")
        )

    def trained(self, step: int) -> bool:
        """Whether all ranks train, beyond this step."""
        stages = [
            each.rank
            for each in self.processes.values()
            if each.stage in ("between", "in_step") and each.committed >= step
        ]
        return sorted(stages) == list(range(self.size))

    def kill(self, process: FakeWorker | None, status: int = -9) -> None:
        if process is not None and process.alive:
            self.process_ended(process, status)

    def stages(self) -> dict[str, str]:
        return {name: process.stage for name, process in self.processes.items()}

    # -- what must hold -----------------------------------------------------------------------

    def check(self, state: State) -> None:
        assert state.epoch >= self.state.epoch, "an epoch went backwards"
        held = list(state.ranks.values())
        assert len(set(held)) == len(held), "a worker holds two ranks"
        members = {name for name, each in state.workers.items() if each.role == Role.MEMBER}
        assert members <= set(held), "a member holds no rank"
        before, after = self.state.committed_step, state.committed_step
        if after < before:
            recovery = state.recovery
            assert recovery is not None
            assert recovery.committed_step >= before, "committed steps were talked away"
            assert recovery.resumed_step == after + 1

    def of(self, *types: str) -> list[dict[str, Any]]:
        return [event["data"] for event in self.events.values() if event["type"] in types]

    def check_books(self) -> None:
        """What the events say is complete, consistent, and what really happened."""
        failures, movements = self.of("failure.detected"), self.of(*MOVEMENTS)
        named = [each for movement in movements for each in movement["failure_ids"]]
        assert sorted(named) == sorted(failure["failure_id"] for failure in failures)
        epochs = {failure["failure_id"]: failure["epoch"] for failure in failures}
        for event in self.events.values():
            if event["type"] in MOVEMENTS:
                self.check_movement(event["type"], event["data"], epochs)

    def check_movement(self, kind: str, body: dict[str, Any], epochs: dict[str, int]) -> None:
        planned = kind == "migration.completed"
        assert bool(body["failure_ids"]) is not planned
        assert body["from_epoch"] < body["to_epoch"]
        if body["failure_ids"]:
            assert body["from_epoch"] == max(epochs[each] for each in body["failure_ids"])
        lost = max(0, body["committed_step"] + 1 - body["resumed_step"])
        assert body["recomputed_steps"] == lost
        assert body["resumed_step"] <= body["committed_step"] + 1
        assert (body["mode"] == "checkpoint_rollback") == (body["state_source"] == "checkpoint")
        if planned:
            assert (body["mode"], lost) == ("live_migration", 0)
        assert all(seconds >= 0 for seconds in body["seconds"].values())
        if body["mode"] == "replica_rebuild":
            assert all(moved["digest"] for moved in body["moved"]), body
        firsts = {steps[0] for (epoch, _), steps in self.begun.items() if epoch == body["to_epoch"]}
        assert firsts <= {body["resumed_step"]}
