"""A worker as plain data: says and does what `runtime.worker` does, without processes or torch."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.runtime.coordinator.sim import Cluster


@dataclass
class Line:
    """A connection to the coordinator: what is in the air each way."""

    name: str
    up: deque[dict[str, Any]] = field(default_factory=deque)
    down: deque[dict[str, Any]] = field(default_factory=deque)
    ended: bool = False  # by the worker's side: the coordinator reads what is left, then EOF
    refused: bool = False  # by the coordinator: it reads no more


@dataclass
class Facts:
    ready: bool = False
    epoch: int = 0
    committed_step: int | None = None
    boundary_epoch: int | None = None
    joined_epoch: int | None = None
    received: dict[str, Any] | None = None
    finished: bool = False


@dataclass
class Inbox:
    order: dict[str, Any] | None = None
    go_epoch: int = 0
    aborted_epoch: int = 0
    hold_at: int | None = None
    hold_is_final: bool = False
    running_step: int = 0
    stop: str | None = None
    retire: bool = False


@dataclass
class FakeWorker:
    """One process. `stage` is where its training thread stands."""

    cluster: Cluster
    slot: str
    incarnation: int
    node: str
    pid: int
    stage: str = "starting"
    alive: bool = True
    stopped: bool = False
    line: Line | None = None
    facts: Facts = field(default_factory=Facts)
    inbox: Inbox = field(default_factory=Inbox)
    epoch: int = 0
    rank: int = 0
    committed: int = 0
    holds: bool = False
    offers_after: int | None = None  # the donor's fence; None: nothing is offered
    order: dict[str, Any] = field(default_factory=dict)
    built_under: int = -1

    @property
    def name(self) -> str:
        return f"{self.slot}#{self.incarnation}"

    # -- the link -----------------------------------------------------------------------------

    def send(self, message: dict[str, Any]) -> None:
        if self.line is not None:
            self.line.up.append(message)

    def connect(self) -> None:
        facts = self.facts
        self.line = self.cluster.open_line(self.name)
        self.send(
            {
                "op": "hello",
                "worker": self.name,
                "slot": self.slot,
                "incarnation": self.incarnation,
                "node": self.node,
                "pid": self.pid,
                "transfer": self.name,
                "ready": facts.ready,
                "plan": "plan",
                "framework": "torch",
                "epoch": facts.epoch,
                "committed_step": facts.committed_step,
                "boundary_epoch": facts.boundary_epoch,
                "joined_epoch": facts.joined_epoch,
                "received": facts.received,
            }
        )
        if facts.finished:
            self.say_finished()

    def beat(self) -> None:
        self.send(
            {"op": "beat", "epoch": self.facts.epoch, "committed_step": self.facts.committed_step}
        )

    def hear(self, message: dict[str, Any]) -> None:
        inbox = self.inbox
        match message["op"]:
            case "epoch":
                inbox.order = message
                inbox.hold_at, inbox.hold_is_final = None, False
            case "go":
                inbox.go_epoch = message["epoch"]
            case "abort":
                inbox.aborted_epoch = max(inbox.aborted_epoch, message["epoch"])
                inbox.hold_at, inbox.hold_is_final = None, False
                if message["epoch"] >= self.epoch and self.stage in ("between", "in_step"):
                    self.cluster.broken.add(self.epoch)
            case "pause":
                inbox.hold_at = inbox.running_step
                self.send({"op": "pause_reply", "epoch": message["epoch"], "step": inbox.hold_at})
            case "pause_at":
                inbox.hold_at, inbox.hold_is_final = message["step"], True
            case "retire":
                inbox.retire = True
            case "stop":
                inbox.stop = message["outcome"]
            case "refused":
                self.exit(0 if "over" in message["reason"] else 3)

    def exit(self, status: int) -> None:
        self.cluster.process_ended(self, status)

    def leave(self, outcome: str) -> None:
        self.exit(0 if outcome in ("completed", "parked") else 1)

    # -- the training thread ------------------------------------------------------------------

    def moves(self) -> list[str]:
        """What the training thread may do next; empty while it waits."""
        if not self.alive or self.stopped:
            return []
        return getattr(self, f"_{self.stage}_moves")()

    def do(self, move: str) -> None:
        getattr(self, f"_{move}")()

    def over(self) -> bool:
        """Whether the epoch is broken as far as this worker can see."""
        return self.inbox.aborted_epoch >= self.epoch or self.epoch in self.cluster.broken

    def _starting_moves(self) -> list[str]:
        return ["say_ready"]

    def _say_ready(self) -> None:
        self.facts.ready = True
        self.send({"op": "ready", "plan": "plan", "framework": "torch"})
        self.stage = "waiting"

    def _waiting_moves(self) -> list[str]:
        inbox = self.inbox
        ready = inbox.stop is not None or inbox.retire or inbox.order is not None
        return ["follow"] if ready else []

    def _follow(self) -> None:
        inbox, facts = self.inbox, self.facts
        if inbox.stop is not None:
            self.leave(inbox.stop)
        elif inbox.retire:
            self.exit(0)
        elif inbox.order is not None:
            self.order, inbox.order = inbox.order, None
            self.epoch = facts.epoch = self.order["epoch"]
            self.rank = self.order["rank"]
            if self.order["source"] != "own":
                facts.committed_step = None
            facts.boundary_epoch = facts.joined_epoch = None
            self.cluster.take_rank(self)
            self.stage = "receiving"

    def _receiving_moves(self) -> list[str]:
        return ["take_state"]

    def _take_state(self) -> None:
        order, received = self.order, self.facts.received
        if order["source"] == "peers":
            self.offers_after = None
            donor = next((d for d in map(self._donor, order["donors"]) if d is not None), None)
            if donor is None:
                self._give_up()
                return
            self.committed, self.holds = donor.committed, True
            received = {"bytes": 8, "seconds": 0.001, "digest": f"step {donor.committed}"}
        elif order["source"] == "checkpoint":
            if order["checkpoint"]["path"] in self.cluster.bad_checkpoints:
                self.send({"op": "bad_checkpoint", "path": order["checkpoint"]["path"]})
                self._give_up()
                return
            self.committed, self.holds = order["checkpoint"]["step"], True
            received = {"bytes": 8, "seconds": 0.002, "digest": f"step {self.committed}"}
        elif order["source"] == "initial":
            self.committed, self.holds = 0, True
            received = {"bytes": 0, "seconds": 0.0, "digest": "step 0"}
        if self.committed != order["committed_step"]:
            self._give_up()
            return
        self.holds = True
        self.offers_after = self.epoch - 1
        self.facts.committed_step = self.committed
        self.facts.received = received
        self.built_under = self.cluster.generation
        self.stage = "building"

    def _donor(self, offered: dict[str, str]) -> FakeWorker | None:
        donor = self.cluster.processes.get(offered["name"])
        if donor is None or donor.stopped or donor.offers_after is None:
            return None
        return donor if donor.offers_after < self.epoch and donor.holds else None

    def _building_moves(self) -> list[str]:
        cluster = self.cluster
        moves = []
        if cluster.all_building(self.epoch):
            moves.append("join")
        # The rendezvous forgets with its process, and answers for its current epoch only.
        cut = self.built_under != cluster.generation or self.epoch < cluster.state.epoch
        if self.over() or (cluster.up and cut):
            moves.append("give_up")
        return moves

    def _join(self) -> None:
        facts = self.facts
        facts.boundary_epoch, facts.joined_epoch = None, self.epoch
        facts.committed_step = self.committed
        self.stage = "joined"
        self.send(
            {
                "op": "joined",
                "epoch": self.epoch,
                "committed_step": self.committed,
                "received": facts.received,
            }
        )

    def _joined_moves(self) -> list[str]:
        if self.inbox.go_epoch >= self.epoch:
            return ["go"]
        if self.inbox.stop is not None:
            return ["follow"]
        return ["give_up"] if self.over() else []

    def _go(self) -> None:
        self.inbox.running_step = self.committed
        self.offers_after = None
        self.facts.received = None
        self.stage = "between"

    def _give_up(self) -> None:
        self.cluster.broken.add(self.epoch)
        self.send({"op": "void", "epoch": self.epoch, "error": "gave up"})
        self._say_boundary()

    def _between_moves(self) -> list[str]:
        inbox = self.inbox
        if self.committed >= self.cluster.steps:
            return ["finish"]
        if self.over():
            return ["regroup"]
        if inbox.stop is not None:
            return ["follow"]
        if inbox.hold_at is None or self.committed + 1 <= inbox.hold_at:
            return ["begin"]
        return ["regroup"] if inbox.hold_is_final else []

    def _begin(self) -> None:
        self.inbox.running_step = self.committed + 1
        self.cluster.contribute(self)
        self.stage = "in_step"

    def _in_step_moves(self) -> list[str]:
        moves = ["commit"] if self.cluster.all_contributed(self) else []
        if self.over():
            moves.append("void")
        return moves

    def _commit(self) -> None:
        self.committed += 1
        self.facts.committed_step = self.committed
        self.cluster.committed(self)
        self.beat()
        self.stage = "between"

    def _void(self) -> None:
        self.cluster.broken.add(self.epoch)
        self.send({"op": "void", "epoch": self.epoch, "error": "a sum failed"})
        self._regroup()

    def _regroup(self) -> None:
        self.facts.finished = False
        if self.holds:
            self.offers_after = self.epoch
        self._say_boundary()

    def _say_boundary(self) -> None:
        step = self.committed if self.holds else None
        self.facts.boundary_epoch, self.facts.committed_step = self.epoch, step
        self.send({"op": "boundary", "epoch": self.epoch, "committed_step": step})
        self.stage = "waiting"

    def _finish(self) -> None:
        self.facts.finished = True
        self.say_finished()
        self.stage = "finishing"

    def say_finished(self) -> None:
        self.send({"op": "finished", "epoch": self.facts.epoch, "committed_step": self.committed})

    def _finishing_moves(self) -> list[str]:
        if self.inbox.stop is not None:
            return ["end"]
        over = self.inbox.aborted_epoch >= self.epoch or self.inbox.hold_is_final
        return ["regroup"] if over else []

    def _end(self) -> None:
        if self.inbox.stop == "completed":
            self.cluster.returned.append((self.rank, self.committed))
            self.exit(0)
        else:
            self.exit(1)
