"""What the coordinator knows: the state of one run, the messages it hears, the actions it takes.

Plain data only. `State` goes to the journal as JSON and comes back from it, so every field is a
string, a number, a list or a dictionary of those. Instants are seconds on the coordinator's
monotonic clock (`now`) and mean nothing after a restart of its host.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any


class Phase(StrEnum):
    GATHERING = "gathering"  # the first members are not all there yet
    REGROUPING = "regrouping"  # an epoch was issued, not every member has joined it
    TRAINING = "training"
    PAUSING = "pausing"  # a planned move: members walk to one step boundary
    UNWINDING = "unwinding"  # the epoch broke: survivors come to a boundary, spares are sought
    FINISHED = "finished"


class Role(StrEnum):
    STARTING = "starting"
    SPARE = "spare"
    MEMBER = "member"
    RETIRING = "retiring"  # moved away from; told to exit once its successor holds the state
    GONE = "gone"


@dataclass(frozen=True)
class Config:
    """What does not change in a run's life."""

    run: str
    cluster: str
    world_size: int
    spares: int
    contract: str | None = None
    priority: int = 0
    checkpoint_every_steps: int | None = None


@dataclass
class Worker:
    """One incarnation of the process in a slot."""

    name: str  # slot#incarnation
    slot: str
    incarnation: int
    node: str
    pid: int
    role: str = Role.STARTING
    transfer: str = ""  # host:port of its state server
    plan: str = ""  # hash of its reduction plan and numerics fingerprint
    connected: bool = True
    lost_at: float | None = None
    last_seen: float = 0.0
    committed_step: int | None = None  # None: it holds no state of the run
    boundary: bool = False  # its training thread stands still and waits for an epoch
    joined: bool = False
    pause_reply: int | None = None
    stopped_at: float | None = None  # first probe that saw process state T or D
    probed_at: float | None = None
    finished: bool = False
    received: dict[str, Any] | None = None


@dataclass
class Failure:
    """A member lost or an epoch broken, before its report was sent."""

    failure_id: str
    epoch: int
    rank: int | None
    worker: str
    node: str
    cause: dict[str, Any]
    detector: str
    detected_at: float
    last_seen: float
    reported: bool = False
    committed_step: int = 0  # as reported; it may not be talked away afterwards


@dataclass
class Move:
    """A planned migration that was asked for."""

    worker: str
    reason: str
    asked_at: float
    suspect: bool  # the hardware under it is: its slot is not respawned


@dataclass
class Recovery:
    """The way from a broken or paused epoch to the next one."""

    from_epoch: int
    mode: str
    state_source: str
    committed_step: int
    resumed_step: int
    began_at: float
    detected_at: float
    decided_at: float
    failure_ids: list[str]
    replaced: dict[str, list[str]]  # rank -> [old worker, new worker]
    reason: str = ""


@dataclass
class State:
    config: Config
    phase: str = Phase.GATHERING
    epoch: int = 0
    ranks: dict[str, str] = field(default_factory=dict)  # rank (text, as JSON keys are) -> worker
    workers: dict[str, Worker] = field(default_factory=dict)
    incarnations: dict[str, int] = field(default_factory=dict)  # slot -> largest one asked for
    suspect_nodes: list[str] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)  # of the recovery under way
    moves: list[Move] = field(default_factory=list)
    recovery: Recovery | None = None
    checkpoints: list[dict[str, Any]] = field(default_factory=list)  # oldest first
    committed_step: int = 0  # largest step that every member of some epoch has reported
    highest_step: int = 0  # largest step that any live member was known to have committed
    failure_count: int = 0
    started: bool = False
    plan: str = ""
    progress_at: float = 0.0
    progress_step: int = 0
    lost_seconds: float = 0.0  # spent in recoveries since the last report of progress
    last_tick: float = 0.0
    user_errors: dict[str, int] = field(default_factory=dict)  # step -> exits by exception
    events: list[dict[str, Any]] = field(default_factory=list)  # not yet certain in the outbox
    outcome: str = ""

    def copy(self) -> State:
        """One that can be changed without changing this; what lies deeper is never edited."""
        return replace(
            self,
            ranks=dict(self.ranks),
            workers={name: replace(worker) for name, worker in self.workers.items()},
            incarnations=dict(self.incarnations),
            suspect_nodes=list(self.suspect_nodes),
            failures=[replace(failure) for failure in self.failures],
            moves=[replace(move) for move in self.moves],
            recovery=replace(self.recovery) if self.recovery else None,
            checkpoints=list(self.checkpoints),
            user_errors=dict(self.user_errors),
            events=list(self.events),
        )

    def to_json(self) -> dict[str, Any]:
        """Shares what it can with this state: to be written out at once, not to be kept."""
        return {
            **vars(self),
            "config": vars(self.config),
            "workers": {name: vars(worker) for name, worker in self.workers.items()},
            "failures": [vars(failure) for failure in self.failures],
            "moves": [vars(move) for move in self.moves],
            "recovery": vars(self.recovery) if self.recovery else None,
        }

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> State:
        body = dict(body)
        body["config"] = Config(**body["config"])
        body["workers"] = {name: Worker(**worker) for name, worker in body["workers"].items()}
        body["failures"] = [Failure(**failure) for failure in body["failures"]]
        body["moves"] = [Move(**move) for move in body["moves"]]
        body["recovery"] = Recovery(**body["recovery"]) if body["recovery"] else None
        return cls(**body)

    def members(self) -> list[Worker]:
        """The live members of the epoch, by rank."""
        found = [self.workers[name] for _, name in sorted(self.ranks.items(), key=by_rank)]
        return [worker for worker in found if worker.role == Role.MEMBER]

    def rank_of(self, name: str) -> int | None:
        return next((int(rank) for rank, holder in self.ranks.items() if holder == name), None)

    def ready_spares(self) -> list[Worker]:
        """Spares that may be used, those on sound nodes only, in a fixed order."""
        return sorted(
            (
                worker
                for worker in self.workers.values()
                if worker.role == Role.SPARE
                and worker.connected
                and worker.node not in self.suspect_nodes
            ),
            key=lambda worker: (worker.incarnation, worker.slot),
        )


def by_rank(item: tuple[str, str]) -> int:
    return int(item[0])


@dataclass(frozen=True)
class Message:
    """Something heard: `kind` names the handler, `now` is the instant it was heard."""

    kind: str
    now: float
    body: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SendWorker:
    worker: str
    message: dict[str, Any]


@dataclass(frozen=True)
class SendNode:
    node: str
    message: dict[str, Any]


@dataclass(frozen=True)
class Refuse:
    """Answer the connection that sent the message and close it."""

    reason: str


@dataclass(frozen=True)
class Log:
    """One line in plain words for the operator."""

    text: str


@dataclass(frozen=True)
class Stop:
    """The run is over; `outcome` is a status of `run.finished`."""

    outcome: str


Action = SendWorker | SendNode | Refuse | Log | Stop
