"""The drill end to end: real processes, real faults, bit-equality with the plain twin."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest


def drill(*arguments: str) -> tuple[int, dict]:
    done = subprocess.run(
        [sys.executable, "-m", "runtime", "drill", "--json", *arguments],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def facts(incident: dict, rank: int) -> tuple:
    # On a busy machine a survivor may lag behind the others and be given the state as well.
    assert rank in incident["ranks"]
    return (
        incident["cause"],
        incident["mode"],
        [rank],
        incident["state_source"],
        incident["resumed_step"] - incident["committed_step"],
        incident["recomputed_steps"],
        incident["samples_skipped"],
    )


def assert_whole(status: int, result: dict) -> None:
    assert result["problems"] == []
    assert status == 0
    assert result["equal"] is True
    assert result["digest"] == result["reference_digest"]
    assert result["losses_equal"] is True
    assert result["samples_equal"] is True
    assert result["leftover_processes"] == 0


def test_kill_hang_and_planned_move_lose_nothing():
    status, result = drill(
        *"--ranks 4 --spares 2 --steps 60 --kill 1@15 --hang 2@30 --migrate 0@45".split()
    )

    assert_whole(status, result)
    assert [facts(*each) for each in zip(result["incidents"], (1, 2, 0), strict=True)] == [
        ("process_exit", "replica_rebuild", [1], "replica", 1, 0, 0),
        ("hang", "replica_rebuild", [2], "replica", 1, 0, 0),
        ("drill", "live_migration", [0], "source_memory", 1, 0, 0),
    ]
    assert result["respawned"] == 3
    assert all(each["bytes"] > 10_000_000 for each in result["incidents"])


def test_a_kill_in_each_phase_loses_nothing():
    status, result = drill(
        *"--steps 30 --spares 2 --kill 0@5:forward --kill 1@11:backward".split(),
        *"--kill 2@17:collective --kill 3@23:optimizer".split(),
    )

    assert_whole(status, result)
    assert [facts(*each) for each in zip(result["incidents"], range(4), strict=True)] == [
        ("process_exit", "replica_rebuild", [rank], "replica", 1, 0, 0) for rank in range(4)
    ]
    # Before the reductions are through the step is redone; in the optimizer it stands.
    assert [each["committed_step"] for each in result["incidents"]] == [4, 10, 16, 23]


def test_two_ranks_in_one_step_lose_nothing():
    status, result = drill(*"--steps 20 --kill 1@10:forward --kill 2@10:forward".split())

    assert_whole(status, result)
    # One recovery where both fall before it begins, which the simulated cluster pins down.
    assert {rank for each in result["incidents"] for rank in each["ranks"]} >= {1, 2}
    assert {facts(each, each["ranks"][0])[4:] for each in result["incidents"]} == {(1, 0, 0)}


def test_without_spares_the_slot_is_respawned_and_survivors_wait():
    status, result = drill(*"--steps 20 --spares 0 --kill 3@10:backward".split())

    assert_whole(status, result)
    assert [facts(each, 3) for each in result["incidents"]] == [
        ("process_exit", "replica_rebuild", [3], "replica", 1, 0, 0)
    ]
    assert result["respawned"] == 1


def test_the_last_step_can_fail_too():
    status, result = drill(
        *"--steps 12 --spares 1 --kill 3@12:optimizer --kill 0@1:forward".split()
    )

    assert_whole(status, result)
    assert [each["resumed_step"] for each in result["incidents"]] == [1, 13]


def test_every_copy_lost_rolls_back_and_counts_the_steps_exactly():
    status, result = drill(*"--steps 60 --checkpoint-every 10 --kill-all 25".split())

    assert_whole(status, result)
    (incident,) = result["incidents"]
    assert incident["mode"] == "checkpoint_rollback"
    assert incident["state_source"] == "checkpoint"
    assert incident["committed_step"] >= 25
    assert incident["resumed_step"] in (21, 31, 41)  # after the checkpoint that was newest then
    lost = incident["committed_step"] + 1 - incident["resumed_step"]
    assert incident["recomputed_steps"] == lost > 0


def test_a_killed_coordinator_comes_back_and_finishes_what_it_began():
    status, result = drill(
        *"--steps 40 --kill-coordinator 10 --kill 1@15:collective --kill-coordinator 15".split(),
        *"--kill-coordinator 20 --migrate 3@25".split(),
    )

    assert_whole(status, result)
    assert [facts(*each) for each in zip(result["incidents"], (1, 3), strict=True)] == [
        ("process_exit", "replica_rebuild", [1], "replica", 1, 0, 0),
        ("drill", "live_migration", [3], "source_memory", 1, 0, 0),
    ]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("--kill 9@15", "there is no rank 9 among 4 ranks"),
        ("--kill 1@99", "the training has steps 1 to 60"),
        ("--kill 1-15", "is not RANK@STEP[:PHASE]"),
        ("--hang 1@5:sleep", "the phases are forward, backward, collective, optimizer"),
        ("--migrate 1@5:forward", "a planned move has no phase"),
        ("--ranks 0", "must be at least 1"),
        ("--frobnicate", "unrecognized arguments: --frobnicate"),
    ],
)
def test_bad_input_is_one_clear_line(arguments: str, words: str):
    done = subprocess.run(
        [sys.executable, "-m", "runtime", "drill", *arguments.split()],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert words in done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
