"""kill -9 of the coordinator at any of its messages changes nothing of how the run ends."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from runtime.coordinator.model import Phase
from tests.runtime.coordinator.sim import MOVEMENTS, Cluster


def play(crash_at: tuple[int, str] | None) -> Cluster:
    """A kill, a planned move and a hang, in a run whose coordinator dies at one message."""
    cluster = Cluster(steps=20)
    cluster.crash_at = crash_at
    cluster.until(lambda c: c.trained(2))
    cluster.kill(cluster.trainer(1))
    cluster.until(lambda c: c.trained(4))
    move_rank_0(cluster)
    cluster.until(lambda c: c.trained(6))
    cluster.trainer(2).stopped = True
    cluster.settle()
    return cluster


def move_rank_0(cluster: Cluster) -> None:
    """Asks again, as a person would, where the coordinator was not there to hear it."""
    while not cluster.of("migration.completed"):
        if cluster.up and not cluster.state.moves and cluster.state.phase == Phase.TRAINING:
            cluster.hear("migrate", {"rank": 0, "reason": "drill"})
        plays = cluster.plays
        cluster.until(lambda c, n=plays: c.plays > n or c.of("migration.completed"))


def end(cluster: Cluster) -> dict[str, Any]:
    cluster.check_books()
    movements = [event for event in cluster.events.values() if event["type"] in MOVEMENTS]
    return {
        "outcome": cluster.state.outcome,
        "committed": cluster.state.committed_step,
        "returned": sorted(cluster.returned),
        "processes": cluster.processes,
        "failures": [
            (failure["ranks"], failure["cause"]["kind"])
            for failure in cluster.of("failure.detected")
        ],
        "movements": [(event["type"], event["data"]["mode"]) for event in movements],
        "lost": [event["data"]["recomputed_steps"] for event in movements],
    }


UNDISTURBED = {
    "outcome": "completed",
    "committed": 20,
    "returned": [(0, 20), (1, 20), (2, 20), (3, 20)],
    "processes": {},
    "failures": [([1], "process_exit"), ([2], "hang")],
    "movements": [
        ("recovery.completed", "replica_rebuild"),
        ("migration.completed", "live_migration"),
        ("recovery.completed", "replica_rebuild"),
    ],
    "lost": [0, 0, 0],
}


def test_the_scenario_without_a_restart():
    assert end(play(None)) == UNDISTURBED


@pytest.mark.parametrize(
    ("how", "first", "stride"),
    [
        ("journaled", 1, 1),  # the worst of them: decided, written, and nobody told
        ("before", 1, 3),
        ("after", 2, 3),
    ],
)
def test_a_restart_at_every_message_ends_the_same(how: str, first: int, stride: int):
    for number in itertools.count(first, stride):
        cluster = play((number, how))
        if cluster.generation == 0:
            break  # the run ended before it had as many messages

        assert end(cluster) == UNDISTURBED, f"message {number}: {cluster.heard[number - 2 :][:3]}"

    assert number > 150
