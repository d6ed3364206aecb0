"""Runs and findings derived from events: the same whatever the order of arrival."""

from __future__ import annotations

import itertools

import pytest

from fleet.models import HealthFinding, Run
from fleet.tenancy import tenant_scope
from tests.fleet.conftest import make_node

pytestmark = pytest.mark.django_db


def at(second):
    return f"2026-05-01T00:00:{second:02d}Z"


@pytest.fixture
def story(event):
    def make(number, kind, second, **data):
        return event(
            f"e{number}",
            type=kind,
            time=at(second),
            sequence=str(number),
            data={"run": "r1", **data},
        )

    return [
        make(1, "run.started", 0, contract="C-1", world_size=4, spares=2, supported=True,
             mesh={"replicate": 4, "shard": 1}, framework="torch", priority=3),
        make(2, "run.progress", 1, epoch=1, committed_step=10, tokens_per_second=1000.5),
        make(3, "failure.detected", 2, epoch=1, committed_step=12, failure_id="f1"),
        make(4, "recovery.completed", 3, from_epoch=1, to_epoch=2, resumed_step=5),
        make(5, "run.finished", 4, status="completed", committed_step=60),
    ]  # fmt: skip


def test_a_run_from_start_to_end(agent, acme, story):
    seen = []
    for one in story:
        agent.deliver([one])
        with tenant_scope(acme.pk):
            run = Run.objects.get()
        seen.append((run.state, run.epoch, run.reached_step, run.failures, run.movements))

    assert seen == [
        ("running", 0, 0, 0, 0),
        ("running", 1, 10, 0, 0),
        ("running", 1, 12, 1, 0),
        ("running", 2, 4, 1, 1),
        ("completed", 2, 60, 1, 1),
    ]
    assert (run.contract_number, run.world_size, run.spares, run.priority) == ("C-1", 4, 2, 3)
    assert (run.is_supported, run.framework, run.tokens_per_second) == (True, "torch", 1000.5)


@pytest.mark.parametrize("order", list(itertools.permutations([1, 2, 3, 4]))[::3])
def test_the_order_of_arrival_does_not_matter(agent, acme, story, order):
    agent.deliver([story[0]])
    for index in order:
        agent.deliver([story[index]])
        agent.deliver([story[index]])

    with tenant_scope(acme.pk):
        run = Run.objects.get()
    assert (run.state, run.epoch, run.reached_step) == ("completed", 2, 60)
    assert (run.failures, run.movements) == (1, 1)


def test_a_finding_is_as_its_latest_word_says(agent, acme, event):
    node = make_node(acme, "n1")

    def finding(event_id, state, severity, second):
        return event(
            event_id, type="health.finding", time=at(second), subject="GPU-1",
            source="/clusters/acme-1/nodes/n1/agent",
            data={"finding_id": "f1", "state": state, "check": "thermal", "severity": severity,
                  "node": "n1", "gpu": {"uuid": "GPU-1"}, "memory": "readable", "action": "none",
                  "evidence": {"temperature_celsius": 91}, "policy_version": "1"},
        )  # fmt: skip

    agent.deliver([finding("a", "opened", "degraded", 1), finding("c", "cleared", "info", 9)])
    agent.deliver([finding("b", "updated", "failing", 5)])

    with tenant_scope(acme.pk):
        kept = HealthFinding.objects.get()
        assert kept.node == node
    assert (kept.state, kept.severity, kept.gpu_uuid) == ("cleared", "info", "GPU-1")
    assert kept.evidence == {"temperature_celsius": 91}
