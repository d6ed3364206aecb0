"""Whatever is lost with a line, either way and in any phase, is made up for on the next line."""

from __future__ import annotations

import pytest

from runtime.coordinator.model import Phase, Role
from tests.runtime.coordinator.fake_worker import FakeWorker
from tests.runtime.coordinator.sim import Cluster


def training(steps: int = 12, **shape: dict[str, int]) -> Cluster:
    cluster = Cluster(steps=steps, **shape)
    cluster.until(lambda c: c.trained(2))
    return cluster


def pump(cluster: Cluster, condition, skip=lambda move: False) -> None:
    """Plays moves in turn except those that `skip` holds back; no time passes."""
    for _ in range(3000):
        if condition():
            return
        moves = [move for move in cluster.moves() if not skip(move)]
        assert moves, f"nothing moves: {cluster.state.phase}, {cluster.stages()}"
        cluster.play(moves[cluster.plays % len(moves)])
    raise AssertionError(f"never: {cluster.state.phase}, {cluster.stages()}")


def _hears(move, process: FakeWorker) -> bool:
    defaults = getattr(move[0], "__defaults__", None) or ()
    return process in defaults


def deaf_to(process: FakeWorker, op: str):
    """Holds back, from one process, everything from this word of the coordinator's on."""
    return lambda move: _hears(move, process) and ops(process)[:1] == [op]


def ops(process: FakeWorker) -> list[str]:
    return [message["op"] for message in process.line.down] if process.line else []


def finished(cluster: Cluster) -> None:
    cluster.settle()
    assert cluster.state.outcome == "completed"
    assert sorted(cluster.returned) == [(rank, cluster.steps) for rank in range(cluster.size)]
    cluster.check_books()


def test_a_spare_that_is_seated_by_its_own_hello_hears_of_one_epoch_only():
    cluster = Cluster()
    for node in cluster.nodes.values():
        cluster.register(node)
        while node.down:
            cluster.obey(node, node.down.popleft())
    for process in list(cluster.processes.values())[:4]:
        process.do("say_ready")  # before its line stands: the hello says it
        process.connect()
        cluster.read_line(process.line)

    assert cluster.state.epoch == 1
    assert cluster.state.phase == Phase.REGROUPING
    finished(cluster)
    assert cluster.of("recovery.completed") == []


def test_a_void_lost_while_regrouping():
    cluster = training()
    cluster.kill(cluster.trainer(1))
    pump(cluster, lambda: cluster.state.phase == Phase.REGROUPING)
    receiver = cluster.member(1)
    pump(cluster, lambda: receiver.stage == "receiving")

    receiver.do("give_up")  # its transfer failed
    cluster.cut(receiver)  # and nobody heard it say so

    finished(cluster)
    (movement,) = cluster.of("recovery.completed")
    assert (movement["mode"], movement["recomputed_steps"]) == ("replica_rebuild", 0)


def test_a_void_lost_while_training():
    cluster = training()
    member = cluster.trainer(2)
    pump(cluster, lambda: member.stage == "in_step")

    cluster.broken.add(member.epoch)
    member.do("void")
    cluster.cut(member)

    finished(cluster)
    (failure,) = cluster.of("failure.detected")
    assert failure["cause"]["kind"] == "fabric"


def test_an_order_lost_whose_epoch_has_broken_since():
    cluster = training()
    cluster.kill(cluster.trainer(1))
    survivor = cluster.trainer(2)
    pump(cluster, lambda: cluster.state.phase == Phase.REGROUPING, deaf_to(survivor, "epoch"))
    cluster.cut(survivor)  # the order was in the air
    cluster.read_line(cluster.lines[survivor.name])
    cluster.kill(cluster.member(3))  # and the epoch breaks before it is back
    pump(
        cluster,
        lambda: cluster.state.phase == Phase.UNWINDING,
        lambda move: move[0] == survivor.connect,
    )

    assert survivor.line is None
    finished(cluster)


@pytest.mark.parametrize("word", ["pause", "pause_at"])
def test_a_word_of_the_pause_lost(word: str):
    cluster = training(steps=40)
    member = cluster.trainer(2)

    cluster.hear("migrate", {"rank": 0, "reason": "drill"})
    pump(cluster, lambda: word in ops(member), deaf_to(member, word))
    cluster.cut(member)

    cluster.until(lambda c: c.of("migration.completed"))
    assert cluster.of("failure.detected") == []


def test_the_go_lost_of_an_epoch_that_is_paused_at_once():
    cluster = Cluster(steps=40)
    cluster.hear("restarted", {})
    cluster.until(lambda c: c.state.phase == Phase.REGROUPING)
    member = cluster.member(2)
    cluster.until(lambda c: member.stage == "joined")
    pump(
        cluster,
        lambda: cluster.state.phase == Phase.TRAINING,
        deaf_to(member, "go"),
    )
    cluster.until(lambda c: len(c.state.ready_spares()) == 2)

    cluster.hear("migrate", {"rank": 0, "reason": "drill"})
    cluster.cut(member)

    cluster.until(lambda c: c.of("migration.completed"))


def test_the_retire_lost():
    cluster = training(steps=40)
    source = cluster.trainer(0)
    cluster.hear("migrate", {"rank": 0, "reason": "drill"})
    pump(cluster, lambda: "retire" in ops(source), deaf_to(source, "retire"))

    cluster.cut(source)

    cluster.until(lambda c: source.name not in c.processes)
    cluster.until(lambda c: f"{source.slot}#2" in c.processes)


def test_the_stop_lost_still_lets_the_script_go_past_its_loop():
    cluster = training(steps=4)
    member = cluster.trainer(3)
    pump(cluster, lambda: "stop" in ops(member), deaf_to(member, "stop"))

    cluster.cut(member)

    finished(cluster)


def test_a_coordinator_that_died_as_the_run_ended_tells_everybody_when_it_is_back():
    cluster = training(steps=4)
    pump(cluster, lambda: cluster.state.phase == Phase.FINISHED)

    cluster.crash()

    finished(cluster)
    assert len(cluster.of("run.finished")) == 1


def test_a_spare_that_comes_back_last_is_what_the_run_waited_for():
    cluster = Cluster(slots={"n0": 3, "n1": 3})
    cluster.until(lambda c: c.trained(2) and len(c.state.ready_spares()) == 2)
    spares = [cluster.processes[each.name] for each in cluster.state.ready_spares()]
    cluster.crash()
    cluster.kill(cluster.trainer(1))
    away = {process.connect for process in spares}

    pump(
        cluster,
        lambda: (
            cluster.state.phase == Phase.UNWINDING
            and all(each.boundary for each in cluster.state.members())
        ),
        lambda move: move[0] in away or move[1:] == ("say_ready",),
    )
    spares[0].connect()
    cluster.read_line(spares[0].line)

    assert cluster.state.phase == Phase.REGROUPING
    finished(cluster)


def test_the_kill_and_the_spawn_lost_with_the_nodes_line():
    cluster = training(steps=60)
    hung = cluster.trainer(1)
    node = cluster.nodes[hung.node]
    hung.stopped = True
    node.connected = False
    cluster.hear("lost", {"worker": hung.name})
    while cluster.state.workers[hung.name].role != Role.GONE:
        cluster.tick()

    cluster.until(lambda c: hung.name not in c.processes)

    cluster.until(lambda c: any(each.slot == hung.slot for each in c.processes.values()))
    cluster.until(lambda c: len(c.state.ready_spares()) == 2)


def test_a_node_that_lost_a_process_is_asked_for_one_and_not_two():
    cluster = training(steps=40)
    lost = cluster.trainer(1)
    node = cluster.nodes[lost.node]
    node.connected = False
    cluster.kill(lost)  # its node's word of it is lost

    cluster.register(node)

    spawned = [order for order in node.down if order["op"] == "spawn"]
    assert spawned == [{"op": "spawn", "slot": lost.slot, "incarnation": 2}]
