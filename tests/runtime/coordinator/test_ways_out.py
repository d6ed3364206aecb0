"""Which way out is taken, and what is said of it, when recoveries break and moves collide."""

from __future__ import annotations

from runtime.coordinator.model import Phase, Role
from tests.runtime.coordinator.sim import Cluster
from tests.runtime.coordinator.test_faults import FINDING
from tests.runtime.coordinator.test_lost_words import finished, pump, training


def facts(movement: dict) -> tuple:
    return (
        movement["mode"],
        movement["state_source"],
        movement["committed_step"],
        movement["resumed_step"],
        movement["recomputed_steps"],
    )


def test_a_rollback_that_breaks_under_way_stays_a_rollback_from_the_same_step():
    cluster = training(steps=20)
    cluster.until(lambda c: c.trained(5))
    for rank in range(4):
        cluster.kill(cluster.trainer(rank))
    pump(cluster, lambda: cluster.state.phase == Phase.REGROUPING)
    # Three ranks hold the checkpoint's state by the time the fourth is lost.
    pump(cluster, lambda: [cluster.member(rank).stage for rank in range(4)] == ["building"] * 4)
    cluster.kill(cluster.member(3))

    cluster.until(lambda c: c.trained(6))

    (movement,) = cluster.of("recovery.completed")
    assert facts(movement)[:2] == ("checkpoint_rollback", "checkpoint")
    assert movement["committed_step"] >= 5
    assert movement["resumed_step"] == 5
    assert movement["recomputed_steps"] == movement["committed_step"] - 4
    assert {each["committed_step"] for each in cluster.of("failure.detected")} == {
        movement["committed_step"]
    }
    cluster.check_books()


def test_a_recovery_that_breaks_with_nobody_lost_still_says_what_was_moved():
    cluster = training()
    cluster.kill(cluster.trainer(1))
    pump(cluster, lambda: cluster.state.phase == Phase.REGROUPING)
    pump(cluster, lambda: cluster.member(1).stage == "building")
    cluster.member(2).inbox.aborted_epoch = cluster.state.epoch  # its group failed to form
    cluster.broken.add(cluster.state.epoch)
    pump(cluster, lambda: cluster.state.phase == Phase.UNWINDING)

    finished(cluster)

    (movement,) = cluster.of("recovery.completed")
    assert (movement["mode"], movement["state_source"]) == ("replica_rebuild", "replica")
    assert [moved["rank"] for moved in movement["moved"]] == [1]
    assert (movement["from_epoch"], movement["to_epoch"]) == (1, 3)


def test_the_source_of_a_broken_move_is_still_the_copy_of_the_state():
    cluster = Cluster(ranks=1, slots={"n0": 1, "n1": 1}, steps=12, save_every=100)
    cluster.until(lambda c: c.trained(3) and c.state.ready_spares())
    source = cluster.trainer(0)
    cluster.hear("migrate", {"rank": 0, "reason": "thermal"})
    pump(cluster, lambda: cluster.state.phase == Phase.REGROUPING)
    successor = cluster.member(0)
    pump(cluster, lambda: successor.stage == "receiving")
    successor.do("give_up")  # its transfer failed

    cluster.until(lambda c: c.of("migration.completed"))

    (movement,) = cluster.of("migration.completed")
    assert facts(movement)[:2] == ("live_migration", "source_memory")
    assert movement["resumed_step"] == movement["committed_step"] + 1
    assert movement["reason"] == "thermal"
    assert [(each["from"], each["to"]) for each in movement["moved"]] == [
        (source.name, successor.name)
    ]
    finished(cluster)
    assert cluster.of("failure.detected") == []


def test_the_source_of_a_move_dies_in_the_middle_and_the_replicas_serve():
    cluster = training(steps=30)
    source = cluster.trainer(0)
    cluster.hear("migrate", {"rank": 0, "reason": "thermal"})
    pump(cluster, lambda: cluster.state.phase == Phase.REGROUPING)
    cluster.kill(source)

    finished(cluster)

    (movement,) = cluster.of("recovery.completed")
    assert facts(movement)[:2] == ("replica_rebuild", "replica")
    assert movement["recomputed_steps"] == 0
    assert cluster.of("migration.completed") == []
    (failure,) = cluster.of("failure.detected")
    assert failure["ranks"] == [0]


def test_a_spare_that_dies_while_it_receives_is_replaced_by_another():
    cluster = training()
    cluster.kill(cluster.trainer(1))
    pump(cluster, lambda: cluster.state.phase == Phase.REGROUPING)
    first = cluster.member(1)
    pump(cluster, lambda: first.stage == "receiving")
    cluster.kill(first)

    finished(cluster)

    (movement,) = cluster.of("recovery.completed")
    (moved,) = movement["moved"]
    assert moved["from"] != first.name
    assert moved["to"] != first.name
    assert len(movement["failure_ids"]) == 2
    assert movement["recomputed_steps"] == 0


def test_a_move_whose_spare_died_leaves_the_members_as_they_are_and_reports_nothing():
    cluster = Cluster(slots={"n0": 5}, steps=40)
    cluster.until(lambda c: c.trained(2) and len(c.state.ready_spares()) == 1)
    members = dict(cluster.state.ranks)
    (spare,) = cluster.state.ready_spares()
    cluster.hear("migrate", {"rank": 0, "reason": "drill"})
    assert cluster.state.phase == Phase.PAUSING
    cluster.kill(cluster.processes[spare.name])
    pump(
        cluster,
        lambda: cluster.state.epoch == 2 and cluster.state.phase == Phase.TRAINING,
        lambda move: move[1:] == ("say_ready",),
    )

    assert cluster.state.ranks == members
    assert cluster.of("recovery.completed", "migration.completed") == []
    # The move is still wanted, and happens once there is a spare again.
    cluster.until(lambda c: c.of("migration.completed"))
    finished(cluster)


def test_a_failure_while_pausing_comes_first_and_the_move_after_it():
    cluster = training(steps=40)
    cluster.hear("migrate", {"rank": 0, "reason": "drill"})
    assert cluster.state.phase == Phase.PAUSING
    cluster.kill(cluster.trainer(2))

    finished(cluster)

    assert [movement["mode"] for movement in cluster.of("recovery.completed")] == [
        "replica_rebuild"
    ]
    (move,) = cluster.of("migration.completed")
    assert [moved["rank"] for moved in move["moved"]] == [0]


def test_a_rank_that_dies_before_its_move_is_a_failure_and_no_move():
    cluster = training(steps=40)
    cluster.hear("migrate", {"rank": 0, "reason": "drill"})
    cluster.kill(cluster.trainer(0))

    finished(cluster)

    assert len(cluster.of("recovery.completed")) == 1
    assert cluster.of("migration.completed") == []


def test_two_moves_at_once_share_a_pause():
    cluster = training(steps=40)
    cluster.until(lambda c: len(c.state.ready_spares()) == 2)
    cluster.hear("migrate", {"rank": 0, "reason": "drill"})
    cluster.hear("migrate", {"rank": 3, "reason": "drill"})
    cluster.hear("migrate", {"rank": 3, "reason": "asked twice"})

    finished(cluster)

    (movement,) = cluster.of("migration.completed")
    assert [moved["rank"] for moved in movement["moved"]] == [0, 3]


def test_two_moves_and_one_spare_happen_one_after_the_other():
    cluster = Cluster(slots={"n0": 5}, steps=60)
    cluster.until(lambda c: c.trained(2) and c.state.ready_spares())
    cluster.hear("migrate", {"rank": 0, "reason": "drill"})
    cluster.hear("migrate", {"rank": 3, "reason": "drill"})

    finished(cluster)

    movements = cluster.of("migration.completed")
    assert [[moved["rank"] for moved in each["moved"]] for each in movements] == [[0], [3]]


def test_a_finding_on_a_node_with_two_ranks_moves_both_and_uses_no_spare_of_it():
    cluster = Cluster(slots={"n0": 4, "n1": 4, "n2": 4}, steps=40)
    cluster.until(lambda c: c.trained(2) and len(c.state.ready_spares()) == 8)
    nodes = [cluster.trainer(rank).node for rank in range(4)]
    sick = next(node for node in nodes if nodes.count(node) >= 2)
    ranks = [rank for rank in range(4) if nodes[rank] == sick]
    before = set(cluster.nodes[sick].asked)
    cluster.hear("finding", {"node": sick, "finding": FINDING})

    cluster.until(lambda c: c.of("migration.completed"))

    (movement,) = cluster.of("migration.completed")
    assert [moved["rank"] for moved in movement["moved"]] == ranks
    assert movement["reason"] == "thermal"
    assert sick not in [each.node for each in cluster.state.members()]
    finished(cluster)
    assert cluster.nodes[sick].asked == before


def test_a_rank_that_finished_before_the_pause_confirms_the_end_in_the_new_epoch():
    cluster = training(steps=4)
    cluster.until(lambda c: len(c.state.ready_spares()) == 2)
    fast, slow = cluster.trainer(1), cluster.trainer(2)
    pump(
        cluster,
        lambda: fast.committed == 4 and fast.stage == "finishing",
        lambda move: move == (slow.do, "commit") and slow.committed == 3,
    )
    cluster.hear("migrate", {"rank": 0, "reason": "drill"})

    finished(cluster)


def test_the_last_holder_of_a_step_dies_and_the_step_is_owned_up_to():
    cluster = training(steps=30)
    cluster.until(lambda c: c.trained(5))
    ahead = cluster.trainer(0)
    behind = [cluster.trainer(rank) for rank in (1, 2, 3)]
    step = max(each.committed for each in [ahead, *behind]) + 1
    # Rank 0 commits a step that the others do not, for rank 3 dies in it.
    pump(
        cluster,
        lambda: ahead.committed == step and ahead.stage == "in_step",
        lambda move: (
            move[1:] == ("commit",) and _of(move) in behind and _of(move).committed + 1 == step
        ),
    )
    cluster.kill(behind[2])
    pump(
        cluster,
        lambda: cluster.state.phase == Phase.REGROUPING,
        lambda move: move[1:] == ("commit",) and _of(move) in behind,
    )
    cluster.kill(ahead)  # before anybody has received its state

    cluster.until(lambda c: c.trained(step + 1))

    (movement,) = cluster.of("recovery.completed")
    assert facts(movement) == ("replica_rebuild", "replica", step, step, 1)
    cluster.check_books()


def _of(move):
    return getattr(move[0], "__self__", None)


def test_a_checkpoint_of_a_step_that_only_its_saver_committed_skips_nothing():
    cluster = training(steps=20)
    state = cluster.state
    saved = {"step": 9, "path": "p", "digest": "d"}
    cluster.hear("saved", {"worker": state.ranks["0"], **saved})
    for rank in range(4):
        cluster.kill(cluster.trainer(rank))
    cluster.until(lambda c: c.state.phase == Phase.REGROUPING)

    assert cluster.state.recovery.committed_step == 9
    assert cluster.state.recovery.resumed_step == 10


def test_a_first_epoch_that_breaks_has_nothing_to_roll_back_to():
    cluster = Cluster()
    pump(cluster, lambda: cluster.state.phase == Phase.REGROUPING)
    for rank in range(4):
        cluster.kill(cluster.member(rank))

    finished(cluster)

    (movement,) = cluster.of("recovery.completed")
    assert facts(movement) == ("replica_rebuild", "replica", 0, 1, 0)


def test_a_failure_is_reported_while_its_spare_is_awaited():
    cluster = Cluster(ranks=2, slots={"n0": 2}, steps=30)
    cluster.until(lambda c: c.trained(2))
    cluster.kill(cluster.trainer(1))
    pump(
        cluster,
        lambda: bool(cluster.of("failure.detected")),
        lambda move: move[1:] == ("say_ready",),
    )

    assert cluster.state.phase == Phase.UNWINDING
    finished(cluster)


def test_a_damaged_checkpoint_gives_way_to_the_one_before():
    cluster = training(steps=20)
    cluster.until(lambda c: len(c.state.checkpoints) == 2)
    older, newer = cluster.state.checkpoints
    cluster.bad_checkpoints.add(newer["path"])
    for rank in range(4):
        cluster.kill(cluster.trainer(rank))

    cluster.until(lambda c: c.of("recovery.completed"))

    (movement,) = cluster.of("recovery.completed")
    assert movement["resumed_step"] == older["step"] + 1
    assert movement["mode"] == "checkpoint_rollback"
    finished(cluster)


def test_the_dead_of_a_long_run_are_forgotten():
    cluster = Cluster(steps=200)
    for number in range(12):
        cluster.until(lambda c, step=number * 4 + 2: c.trained(step))
        cluster.kill(cluster.trainer(number % 4))
    cluster.until(lambda c: len(c.of("recovery.completed")) == 12 and c.trained(55))

    gone = [each for each in cluster.state.workers.values() if each.role == Role.GONE]
    assert len(gone) <= 1
    assert len(cluster.state.workers) <= 7
