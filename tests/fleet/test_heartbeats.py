"""Heartbeats: how a node is goes in, its orders and the next interval come out."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from fleet.models import Cluster, Gpu, HealthFinding, Lease, Node, Order, Run
from fleet.tenancy import tenant_scope
from tests.fleet.conftest import Api, make_node, make_token

pytestmark = pytest.mark.django_db
URL = "/api/v1/fleet/heartbeats"


@pytest.fixture
def node(acme):
    return make_node(acme, "n1")


@pytest.fixture
def api(acme, node):
    return Api(make_token(acme, "heartbeats:write", cluster=node.cluster, node=node))


def body(**fields):
    return {
        "cluster": "acme-1",
        "node": "n1",
        "boot_id": "boot-1",
        "agent_version": "0.1.0",
        "driver": "575.57.08",
        "gpus": [{"uuid": "GPU-1", "serial": "S1", "pci_bus_id": "0000:01:00.0", "slot": 0,
                  "name": "H200", "temperature_celsius": 61, "finding": None},
                 {"uuid": None, "slot": 1}],
        "runs": [{"id": "r1", "epoch": 2, "committed_step": 40}],
        "blind": [{"check": "nvml.thermal", "gpu": None, "slot": 1, "reason": "no reading yet"}],
        "specs": {"gpt": "abc"},
        "sources": {"/clusters/acme-1/nodes/n1/agent": 12},
        "orders": [],
        **fields,
    }  # fmt: skip


def give(node, **fields):
    with tenant_scope(node.tenant_id):
        return Order.objects.create(
            tenant_id=node.tenant_id, node=node,
            **{"kind": "start_worker", "payload": {"run": "r1", "ticket": "secret"},
               "deadline_at": timezone.now() + timedelta(minutes=10), **fields},
        )  # fmt: skip


def test_the_node_is_as_it_said(api, acme):
    answer = api.post(URL, body())

    assert (answer.status_code, answer.json()) == (200, {"orders": [], "interval_seconds": 10})
    with tenant_scope(acme.pk):
        node, gpu = Node.objects.get(), Gpu.objects.get()
    assert (node.boot_id, node.agent_version, node.driver_version) == (
        "boot-1",
        "0.1.0",
        "575.57.08",
    )
    assert node.source_heads == {"/clusters/acme-1/nodes/n1/agent": 12}
    assert node.running == [{"id": "r1", "epoch": 2, "committed_step": 40}]
    assert node.blind[0]["reason"] == "no reading yet"
    assert node.specs == {"gpt": "abc"}
    assert timezone.now() - node.last_heartbeat_at < timedelta(seconds=10)
    assert (gpu.uuid, gpu.serial, gpu.slot, gpu.model) == ("GPU-1", "S1", 0, "H200")
    assert gpu.brief["temperature_celsius"] == 61


def test_a_gpu_is_known_by_its_uuid_and_is_where_it_was_seen_last(api, acme):
    api.post(URL, body())
    other = make_node(acme, "n2")
    second = Api(make_token(acme, "heartbeats:write", cluster=other.cluster, node=other))

    second.post(URL, body(node="n2", gpus=[{"uuid": "GPU-1", "slot": 3}]))

    with tenant_scope(acme.pk):
        gpu = Gpu.objects.get()
        assert (gpu.node, gpu.slot) == (other, 3)


def test_an_order_is_told_until_it_ended_and_ends_once(api, acme, node):
    order = give(node)

    answer = api.post(URL, body()).json()
    assert answer["interval_seconds"] == 1
    assert answer["orders"] == [{
        "id": order.public_id, "kind": "start_worker",
        "payload": {"run": "r1", "ticket": "secret"},
        "deadline": answer["orders"][0]["deadline"],
    }]  # fmt: skip
    acknowledged = [{"id": order.public_id, "state": "acknowledged", "detail": ""}]
    assert len(api.post(URL, body(orders=acknowledged)).json()["orders"]) == 1
    done = [{"id": order.public_id, "state": "completed", "detail": "four workers"}]
    assert api.post(URL, body(orders=done)).json()["orders"] == []
    late = [{"id": order.public_id, "state": "refused", "detail": "no"}]
    api.post(URL, body(orders=late))

    with tenant_scope(acme.pk):
        order.refresh_from_db()
    assert (order.state, order.detail) == ("completed", "four workers")
    assert order.acknowledged_at < order.completed_at
    assert order.payload == {"run": "r1"}


def test_an_order_nobody_took_before_its_deadline_is_told_no_more(api, acme, node):
    order = give(node, deadline_at=timezone.now() - timedelta(seconds=1))

    assert api.post(URL, body()).json() == {"orders": [], "interval_seconds": 10}
    with tenant_scope(acme.pk):
        order.refresh_from_db()
    assert order.state == "expired"


def test_a_worker_is_told_once_its_coordinators_endpoint_is_known(api, acme, node):
    with tenant_scope(acme.pk):
        run = Run.objects.create(tenant=acme, cluster=node.cluster, run="r1", coordinator_node=node)
    other = make_node(acme, "n2")
    worker = Api(make_token(acme, "heartbeats:write", cluster=other.cluster, node=other))
    order = give(other, run=run, payload={"run": "r1", "role": "worker", "slots": 2})

    assert worker.post(URL, body(node="n2", gpus=[])).json()["orders"] == []
    api.post(URL, body(runs=[{"id": "r1", "endpoint": "127.0.0.1:7000"}]))
    told = worker.post(URL, body(node="n2", gpus=[])).json()["orders"]
    api.post(URL, body(runs=[]))
    again = worker.post(URL, body(node="n2", gpus=[])).json()["orders"]

    assert told == again
    assert [entry["id"] for entry in told] == [order.public_id]
    assert told[0]["payload"] == {
        "run": "r1", "role": "worker", "slots": 2, "endpoint": "127.0.0.1:7000",
    }  # fmt: skip


def test_orders_of_another_node_are_neither_told_nor_ended(api, acme, node):
    other = give(make_node(acme, "n2"))

    answer = api.post(URL, body(orders=[{"id": other.public_id, "state": "completed"}])).json()

    assert answer["orders"] == []
    with tenant_scope(acme.pk):
        other.refresh_from_db()
    assert other.state == "open"


@pytest.mark.parametrize("why", ["spare", "leased", "finding"])
def test_who_is_watched_beats_every_second(api, acme, node, why):
    with tenant_scope(acme.pk):
        if why == "spare":
            Node.objects.update(state="spare")
        elif why == "leased":
            run = Run.objects.create(tenant=acme, cluster=node.cluster, run="r1")
            now = timezone.now()
            Lease.objects.create(
                tenant=acme, node=node, run=run, granted_at=now, expires_at=now + timedelta(hours=1)
            )
        else:
            HealthFinding.objects.create(
                tenant=acme, finding_id="f", node=node, state="opened", check_name="c",
                severity="failing", opened_us=1, changed_us=1,
            )  # fmt: skip
    assert api.post(URL, body()).json()["interval_seconds"] == 1


def test_a_clusters_token_makes_nodes_known(acme):
    with tenant_scope(acme.pk):
        cluster = Cluster.objects.get()
    api = Api(make_token(acme, "heartbeats:write", cluster=cluster))

    assert api.post(URL, body(node="n7")).status_code == 200
    assert api.post(URL, body(node="n7")).status_code == 200
    assert api.post(URL, body(node="n 7")).json()["code"] == "unknown-place"
    with tenant_scope(acme.pk):
        assert Node.objects.get().name == "n7"


@pytest.mark.parametrize(
    ("fields", "status", "where"),
    [
        ({"node": "n2"}, 403, []),
        ({"cluster": "strange-1"}, 403, []),
        ({"node": 7}, 400, ["/node"]),
        ({"gpus": {}}, 400, ["/gpus"]),
        ({"gpus": [1]}, 400, ["/gpus/0"]),
        ({"runs": [{}, "r1"]}, 400, ["/runs/1"]),
        ({"blind": ["nvml"]}, 400, ["/blind/0"]),
        ({"orders": [{"id": "o", "state": "done"}]}, 400, ["/orders/0/state"]),
        ({"sources": {"x": -1}}, 400, ["/sources"]),
    ],
)
def test_a_bad_heartbeat_is_a_problem_that_says_where(api, acme, fields, status, where):
    answer = api.post(URL, body(**fields))

    assert (answer.status_code, answer["Content-Type"]) == (status, "application/problem+json")
    assert [error["pointer"] for error in answer.json()["errors"]] == where
    with tenant_scope(acme.pk):
        assert Node.objects.get().last_heartbeat_at is None


def test_no_json_no_heartbeat(api):
    assert api.post(URL, b"{").json()["code"] == "malformed-body"


class TestEnrolment:
    def token(self, acme, **terms):
        with tenant_scope(acme.pk):
            cluster = Cluster.objects.get()
        return make_token(acme, "enroll", cluster=cluster, is_single_use=True, **terms)

    def enroll(self, token, name="n1", cluster="acme-1"):
        return Api(token).post(
            "/api/v1/fleet/enroll", {"node": name, "cluster": cluster, "boot_id": "b"}
        )

    def test_a_node_gets_its_own_token_once(self, acme):
        once = self.token(acme)

        answer = self.enroll(once)

        assert answer.status_code == 201
        own = Api(answer.json()["token"])
        assert own.post(URL, body()).status_code == 200
        assert own.post(URL, body(node="n2")).status_code == 403
        assert own.get("/api/v1/fleet/nodes").status_code == 403
        assert self.enroll(once).status_code == 401
        with tenant_scope(acme.pk):
            assert Node.objects.get().public_id == answer.json()["node"]
            assert [c.action for c in Node.objects.get().changes.all()] == ["enrolled"]

    def test_enrolling_again_switches_the_old_token_off(self, acme):
        first = Api(self.enroll(self.token(acme)).json()["token"])
        second = Api(self.enroll(self.token(acme)).json()["token"])

        assert first.post(URL, body()).status_code == 401
        assert second.post(URL, body()).status_code == 200

    def test_a_token_enrols_in_its_own_cluster_only(self, acme, stranger):
        once = self.token(acme)
        assert self.enroll(once, cluster="strange-1").status_code == 403
        assert self.enroll(once, name="../x").status_code == 422
        assert self.enroll(once).status_code == 201
