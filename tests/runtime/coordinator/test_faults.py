"""Any faults in any order: once they stop, the run comes back, and its books tell the truth."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.coordinator.model import Phase
from tests.runtime.coordinator.fake_worker import FakeWorker
from tests.runtime.coordinator.sim import Cluster

# `make simulate` looks much further than the suite has time for.
EXAMPLES = int(os.environ.get("SIMULATIONS", "80"))
RANKS = st.integers(0, 3)
SLOTS = st.integers(0, 6)
CRASHES = st.sampled_from(["before", "journaled", "after"])

# Plays of the schedule between two faults: which of the possible moves comes next is drawn too.
PLAY = st.tuples(st.just("play"), st.integers(1, 40), st.integers(0, 1000))
SINGLE = st.tuples(st.just("move"), st.integers(0, 60))
FAULT = st.one_of(
    st.tuples(st.just("kill"), SLOTS),
    st.tuples(st.just("stop"), SLOTS),
    st.tuples(st.just("cut"), SLOTS),
    st.tuples(st.just("cut node"), st.integers(0, 2)),
    st.tuples(st.just("crash"), CRASHES, st.integers(1, 5)),
    st.tuples(st.just("migrate"), RANKS),
    st.tuples(st.just("tick"), st.integers(1, 10)),
    st.tuples(st.just("kill all")),
    st.tuples(st.just("break"), RANKS),
    st.tuples(st.just("raise"), RANKS),
    st.tuples(st.just("finding")),
    st.tuples(st.just("spoil")),
)
SHAPES = st.sampled_from(
    [
        (4, {"n0": 2, "n1": 2, "n2": 2}),
        (4, {"n0": 1, "n1": 5}),
        (2, {"n0": 2, "n1": 3}),
        (1, {"n0": 1, "n1": 1}),
        (3, {"n0": 0, "n1": 3}),
    ]
)
FINDING = {
    "finding_id": "f",
    "state": "opened",
    "severity": "failing",
    "memory": "readable",
    "check": "thermal",
}
SCRIPTS = st.lists(st.one_of(PLAY, SINGLE, FAULT), max_size=40)


def strike(cluster: Cluster, instruction: tuple[Any, ...]) -> None:
    match instruction:
        case ("play", count, start):
            for number in range(count):
                if moves := cluster.moves():
                    cluster.play(moves[(start + number * 7) % len(moves)])
        case ("move", number):
            if moves := cluster.moves():
                cluster.play(moves[number % len(moves)])
        case ("kill" | "stop" | "cut" as fault, number):
            ready = known(cluster)
            if ready:
                hit(cluster, fault, ready[number % len(ready)])
        case ("cut node", number):
            node = list(cluster.nodes.values())[number % len(cluster.nodes)]
            node.connected = False
            node.up.clear()
            node.down.clear()
        case ("crash", how, ahead):
            cluster.crash_at = (cluster.messages + ahead, how)
        case ("migrate", rank):
            cluster.hear("migrate", {"rank": rank, "reason": "drill"})
        case ("break", rank):
            # A collective fails on its own, with nobody lost.
            member = cluster.member(rank)
            if member is not None and member.stage == "in_step":
                cluster.broken.add(member.epoch)
        case ("raise", rank):
            member = cluster.member(rank)
            if member is not None and member.stage == "in_step" and not cluster.raised:
                cluster.raised = True
                cluster.kill(member, status=1)
        case ("finding",):
            # n0 alone, so that enough sound slots are left.
            if cluster.nodes["n0"].connected:
                cluster.nodes["n0"].up.append({"op": "finding", "finding": FINDING})
        case ("spoil",):
            cluster.bad_checkpoints |= {each["path"] for each in cluster.state.checkpoints[-1:]}
        case ("tick", count):
            for _ in range(count):
                cluster.tick()
        case ("kill all",):
            for process in known(cluster):
                cluster.kill(process)


def known(cluster: Cluster) -> list[FakeWorker]:
    """What ends before it is ready is the script's own affair: see test_refusals."""
    ready = [each for each in cluster.processes.values() if each.facts.ready]
    return [each for each in ready if each.name in cluster.state.workers]


def hit(cluster: Cluster, fault: str, process: Any) -> None:
    if fault == "kill":
        cluster.kill(process)
    elif fault == "stop":
        process.stopped = True
    else:
        cluster.cut(process)


def finish(cluster: Cluster) -> None:
    """No more faults: the run must end, with every rank's script past its loop or long gone."""
    cluster.crash_at = None
    cluster.settle()
    assert cluster.state.phase == Phase.FINISHED, (cluster.state.phase, cluster.stages())
    assert cluster.processes == {}
    assert cluster.state.outcome == "completed"
    assert cluster.state.committed_step == cluster.steps
    assert {step for _, step in cluster.returned} <= {cluster.steps}
    cluster.check_books()


@settings(deadline=None, max_examples=EXAMPLES)
@given(SHAPES, SCRIPTS)
def test_when_faults_stop_the_run_ends_and_its_books_are_true(
    shape: tuple[int, dict[str, int]], script: list[tuple[Any, ...]]
):
    ranks, slots = shape
    cluster = Cluster(ranks, slots)

    for instruction in script:
        strike(cluster, instruction)

    finish(cluster)
