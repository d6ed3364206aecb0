"""What each handler refuses or ignores: old incarnations and epochs, wrong plans, what is over."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.coordinator.decisions import decide
from runtime.coordinator.model import (
    Config,
    Log,
    Message,
    Phase,
    Refuse,
    Role,
    SendNode,
    SendWorker,
    State,
    Stop,
)
from tests.runtime.coordinator.sim import Cluster
from tests.runtime.coordinator.test_lost_words import training

CONFIG = Config("run", "cluster", world_size=2, spares=1)


class Played:
    """A state and what its messages asked for."""

    def __init__(self, state: State | None = None) -> None:
        self.state = state or State(CONFIG)
        self.now = 50.0

    def hear(self, kind: str, **body: Any) -> list[Any]:
        self.now += 0.01
        self.state, actions = decide(self.state, Message(kind, self.now, body))
        return [action for action in actions if not isinstance(action, Log)]

    def hello(self, slot: str, incarnation: int = 1, **more: Any) -> list[Any]:
        return self.hear(
            "hello",
            worker=f"{slot}#{incarnation}",
            slot=slot,
            incarnation=incarnation,
            node="n0",
            pid=1,
            transfer="host:1",
            **more,
        )

    def exited(self, worker: str, status: int) -> list[Any]:
        slot, _, incarnation = worker.partition("#")
        return self.hear(
            "exited",
            worker=worker,
            slot=slot,
            incarnation=int(incarnation),
            status=status,
            node="n0",
        )

    def trains(self) -> Played:
        self.hear("node", node="n0", slots=["w0", "w1", "w2"], alive=[])
        for slot in ("w0", "w1", "w2"):
            self.hello(slot)
            self.hear("ready", worker=f"{slot}#1", plan="plan")
        for slot in ("w0", "w1"):
            self.hear("joined", worker=f"{slot}#1", epoch=1, committed_step=0)
        assert self.state.phase == Phase.TRAINING
        return self


def refusal(actions: list[Any]) -> str:
    (refused,) = [action for action in actions if isinstance(action, Refuse)]
    return str(refused.reason)


def test_an_unknown_message_is_refused_by_name():
    assert refusal(Played().hear("frobnicate")) == "unknown message 'frobnicate'"


def test_an_incarnation_that_was_replaced_is_fenced_when_it_wakes_up():
    played = Played().trains()
    played.exited("w0#1", -9)

    assert "fenced: this incarnation was replaced" in refusal(played.hello("w0", ready=True))


def test_an_incarnation_older_than_the_one_asked_for_is_fenced():
    played = Played()
    played.hello("w0", incarnation=3)

    assert "fenced: a newer incarnation" in refusal(played.hello("w0", incarnation=2))
    assert list(played.state.workers) == ["w0#3"]


def test_the_newest_incarnation_that_was_lost_is_fenced_even_where_none_follows():
    played = Played().trains()
    finding = {"state": "opened", "severity": "failed", "memory": "readable", "check": "ecc"}
    played.hear("finding", node="n0", finding=finding)
    played.exited("w0#1", -9)

    assert played.state.incarnations["w0"] == 1  # its hardware is suspect: not respawned
    assert "fenced" in refusal(played.hello("w0"))


def test_another_plan_is_refused_and_tried_three_times_at_most():
    played = Played().trains()
    played.exited("w2#1", -9)
    spawned = 0
    for incarnation in range(2, 9):
        if played.state.incarnations["w2"] < incarnation:
            break
        spawned += 1
        played.hello("w2", incarnation)
        actions = played.hear("ready", worker=f"w2#{incarnation}", plan="another")
        assert "the reduction plan or the numerics" in refusal(actions)
        played.exited(f"w2#{incarnation}", 3)

    assert spawned == 3
    assert played.state.phase == Phase.TRAINING


@pytest.mark.parametrize("says_hello", [True, False])
def test_a_script_that_cannot_start_ends_the_run(says_hello: bool):
    played = Played()
    played.hear("node", node="n0", slots=["w0", "w1", "w2"], alive=[])
    for incarnation in (1, 2, 3):
        assert played.state.phase == Phase.GATHERING
        if says_hello:
            played.hello("w0", incarnation)
        played.exited(f"w0#{incarnation}", 1)

    assert played.state.outcome == "failed"


def test_a_slot_that_starts_after_all_has_its_tries_back():
    played = Played().trains()
    for incarnation in range(1, 9):
        played.exited(f"w2#{incarnation}", -9)
        played.hello("w2", incarnation + 1)
        played.hear("ready", worker=f"w2#{incarnation + 1}", plan="plan")

    assert played.state.workers["w2#9"].role == Role.SPARE


@pytest.fixture
def over() -> Played:
    played = Played().trains()
    for slot in ("w0", "w1"):
        played.hear("finished", worker=f"{slot}#1", epoch=1, committed_step=8)
    assert played.state.outcome == "completed"
    played.state.events = []
    return played


def test_a_finished_run_refuses_newcomers_and_moves(over: Played):
    assert refusal(over.hello("w7")) == "the run is over: completed"
    assert refusal(over.hear("migrate", rank=0, reason="r")) == "the run is over: completed"


def test_a_finished_run_tells_a_member_that_was_away_how_it_ended(over: Played):
    actions = over.hello("w0", ready=True, epoch=1, committed_step=8)

    stop = {"op": "stop", "outcome": "completed"}
    assert SendWorker("w0#1", stop) in actions
    assert not any(isinstance(action, Refuse) for action in actions)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("finished", {"worker": "w0#1", "epoch": 1, "committed_step": 8}),
        ("cancel", {"by": "customer"}),
        ("void", {"worker": "w0#1", "epoch": 1, "error": "e"}),
        ("boundary", {"worker": "w0#1", "epoch": 1, "committed_step": 8}),
        ("joined", {"worker": "w0#1", "epoch": 1, "committed_step": 8}),
        ("ready", {"worker": "w2#1", "plan": "plan"}),
        ("pause_reply", {"worker": "w0#1", "epoch": 1, "step": 8}),
        ("lost", {"worker": "w0#1"}),
        (
            "finding",
            {
                "node": "n0",
                "finding": {
                    "state": "opened",
                    "severity": "failed",
                    "memory": "readable",
                    "check": "ecc",
                },
            },
        ),
        ("tick", {}),
    ],
)
def test_nothing_said_after_the_end_changes_it(over: Played, kind: str, body: dict):
    over.hear(kind, **body)

    assert (over.state.phase, over.state.outcome) == (Phase.FINISHED, "completed")
    assert over.state.epoch == 1
    assert over.state.events == []


@pytest.mark.parametrize("outcome", ["completed", "cancelled"])
def test_how_processes_end_after_the_end_does_not_change_the_outcome(outcome: str):
    played = Played().trains()
    if outcome == "cancelled":
        played.hear("cancel", by="operator")
    else:
        for slot in ("w0", "w1"):
            played.hear("finished", worker=f"{slot}#1", epoch=1, committed_step=8)
    for slot in ("w0", "w1", "w2"):
        assert not any(isinstance(each, Stop | SendNode) for each in played.exited(f"{slot}#1", 1))

    assert played.state.outcome == outcome
    ends = [each for each in played.state.events if each["type"] == "run.finished"]
    assert [each["data"]["status"] for each in ends] == [outcome]


def test_a_process_that_hangs_after_the_end_is_killed(over: Played):
    over.hear("tick")
    for _ in range(200):
        over.hear("tick")
        over.hear("beat", worker="w1#1", epoch=1, committed_step=8)
        actions = over.hear("probe", worker="w0#1", state="T")
        if actions:
            break

    kill = {"op": "kill", "slot": "w0", "name": "w0#1"}
    assert actions == [SendNode("n0", kill)]


@pytest.mark.parametrize(
    ("rank", "reason"),
    [(7, "rank 7 is held by nobody in this run"), (0, "rank 0 was lost and is being replaced")],
)
def test_a_move_that_cannot_be_made_is_refused_with_the_reason(rank: int, reason: str):
    played = Played().trains()
    if rank == 0:
        played.exited("w0#1", -9)

    assert refusal(played.hear("migrate", rank=rank, reason="drill")) == reason


def test_the_second_exception_at_a_step_fails_the_run_and_is_on_the_record():
    played = Played().trains()
    played.exited("w0#1", 1)
    assert played.state.outcome == ""

    played.exited("w1#1", 1)

    assert played.state.outcome == "failed"
    types = [(each["type"], each["data"].get("ranks")) for each in played.state.events]
    assert types[1:] == [
        ("failure.detected", [0]),
        ("failure.detected", [1]),
        ("run.finished", None),
    ]


def test_a_run_cancelled_in_the_middle_of_a_failure_still_reports_it():
    played = Played().trains()
    played.exited("w0#1", -9)
    played.hear("cancel", by="customer")

    (failure,) = [each for each in played.state.events if each["type"] == "failure.detected"]
    assert failure["data"]["cause"]["kind"] == "process_exit"
    assert played.state.events[-1]["data"]["by"] == "customer"


@pytest.mark.parametrize("kind", ["void", "boundary", "joined", "pause_reply", "finished", "beat"])
def test_words_of_an_old_epoch_change_nothing(kind: str):
    cluster = training()
    cluster.kill(cluster.trainer(1))
    cluster.until(lambda c: c.trained(3))
    cluster.hear("tick", {})
    state = cluster.state.to_json()
    body = {"worker": cluster.state.ranks["0"], "epoch": 1, "committed_step": 1, "step": 1}

    after, actions = decide(cluster.state, Message(kind, cluster.now, {**body, "error": ""}))

    holder = after.workers[cluster.state.ranks["0"]]
    holder.last_seen = cluster.state.workers[holder.name].last_seen
    assert after.to_json() == state
    assert actions == []


@pytest.mark.parametrize("kind", ["ready", "void", "boundary", "joined", "beat", "finished"])
def test_words_of_a_replaced_worker_change_nothing(kind: str):
    played = Played().trains()
    played.exited("w0#1", -9)
    before = played.state.to_json()
    body = {"worker": "w0#1", "epoch": 1, "committed_step": 5, "plan": "plan", "error": ""}

    assert played.hear(kind, **body) == []
    assert played.state.to_json() == before


@pytest.mark.parametrize("number", range(0, 400, 7))
def test_a_message_heard_twice_is_harmless(number: int):
    """Doubles one message of a run with a failure and a move; news of nodes come once."""
    cluster = Doubled(number)
    cluster.until(lambda c: c.trained(2))
    cluster.kill(cluster.trainer(1))
    cluster.until(lambda c: c.trained(4))
    cluster.hear("migrate", {"rank": 0, "reason": "drill"})
    cluster.settle()

    assert cluster.state.outcome == "completed"
    assert sorted(cluster.returned) == [(rank, 20) for rank in range(4)]
    assert len(cluster.of("failure.detected")) == 1
    assert len(cluster.of("recovery.completed")) == 1
    assert len(cluster.of("migration.completed")) == 1
    cluster.check_books()


class Doubled(Cluster):
    def __init__(self, number: int) -> None:
        super().__init__(steps=20)
        self.number = number

    def hear(self, kind: str, body: dict[str, Any], via: Any = None) -> None:
        super().hear(kind, body, via)
        if self.messages == self.number and kind not in ("node", "exited"):
            super().hear(kind, body, via)


def test_after_a_restart_of_the_host_no_instant_lies_in_the_future():
    played = Played().trains()
    played.hear("beat", worker="w1#1", epoch=1, committed_step=3)
    played.exited("w0#1", -9)
    played.now = 0.0  # the host's clock began anew

    played.hear("restarted")

    (failure,) = played.state.failures
    assert failure.last_seen <= failure.detected_at <= played.now
