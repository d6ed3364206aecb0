"""What programs read of the fleet, who sees it, what each list costs, and launching a run."""

from __future__ import annotations

import pytest
from django.utils import timezone

from fleet.models import Gpu, HealthFinding, NodeChange, Order, Run
from fleet.tenancy import tenant_scope
from tests.fleet.conftest import Api, make_node, make_token

pytestmark = pytest.mark.django_db
FLEET = "/api/v1/fleet"


def fill(tenant, count=1, prefix="n"):
    """`count` nodes, each with a GPU, a finding, a run and an order."""
    now = timezone.now()
    for number in range(count):
        name = f"{prefix}{number}"
        node = make_node(tenant, name)
        with tenant_scope(tenant.pk):
            Gpu.objects.create(tenant=tenant, node=node, uuid=f"GPU-{name}", last_seen_at=now)
            run = Run.objects.create(
                tenant=tenant, cluster=node.cluster, run=f"run-{name}", coordinator_node=node,
                epoch=2, committed_step=41, progress_us=1_777_593_600_000_001,
            )  # fmt: skip
            HealthFinding.objects.create(
                tenant=tenant, finding_id=f"f-{name}", node=node, gpu_uuid=f"GPU-{name}",
                state="opened", check_name="thermal", severity="failing", opened_us=1, changed_us=1,
            )  # fmt: skip
            Order.objects.create(
                tenant=tenant, node=node, run=run, kind="run_check", deadline_at=now,
                payload={"check": "x", "ticket": "secret"},
            )  # fmt: skip


@pytest.fixture
def owner(acme):
    return Api(make_token(acme, "fleet:read", "fleet:write"))


class TestWhoSees:
    """Owner and colleague see their tenant's, a stranger its own; the vendor sees all."""

    LISTS = ("nodes", "gpus", "findings", "runs", "orders")

    def names(self, api, path):
        answer = api.get(f"{FLEET}/{path}")
        assert answer.status_code == 200, answer.content
        return len(answer.json()["results"])

    @pytest.mark.parametrize("path", LISTS)
    def test_lists(self, acme, stranger, owner, path):
        fill(acme, 2), fill(stranger, 3, "s")
        colleague = Api(make_token(acme, "fleet:read"))
        foreigner = Api(make_token(stranger, "fleet:read"))
        vendor = Api(make_token(None, "fleet:read"))
        agent = Api(make_token(acme, "events:write", sources=("/clusters/acme-1/*",)))

        assert [self.names(api, path) for api in (owner, colleague, foreigner, vendor)] == [
            2,
            2,
            3,
            5,
        ]
        assert agent.get(f"{FLEET}/{path}").status_code == 403
        assert Api(None).get(f"{FLEET}/{path}").status_code == 401

    def test_single_things(self, acme, stranger, owner):
        fill(acme), fill(stranger, 1, "s")
        foreigner = Api(make_token(stranger, "fleet:read", "fleet:write"))
        node = owner.get(f"{FLEET}/nodes").json()["results"][0]["id"]

        assert owner.get(f"{FLEET}/nodes/{node}").json()["name"] == "n0"
        assert foreigner.get(f"{FLEET}/nodes/{node}").status_code == 404
        cordon = f"{FLEET}/nodes/{node}/cordon"
        assert foreigner.post(cordon, {"reason": "mine"}).status_code == 404
        assert foreigner.get(f"{FLEET}/runs/run-n0").json()["code"] == "not-found"
        assert owner.get(f"{FLEET}/runs/run-n0").status_code == 200


@pytest.mark.parametrize("path", TestWhoSees.LISTS)
@pytest.mark.parametrize("count", [1, 12])
def test_a_list_costs_as_much_for_many_as_for_one(
    acme, owner, path, count, django_assert_num_queries
):
    fill(acme, count)
    owner.get(f"{FLEET}/{path}")  # notes the use of the token

    # savepoint, scope, token, scope, the list, release
    with django_assert_num_queries(6):
        answer = owner.get(f"{FLEET}/{path}")
    assert len(answer.json()["results"]) == count


def test_a_run_as_it_is_read(acme, owner):
    fill(acme)
    assert owner.get(f"{FLEET}/runs/run-n0").json() == {
        "id": "run-n0", "cluster": "acme-1", "contract": "", "state": "registered", "epoch": 2,
        "committed_step": 41, "progress_at": "2026-05-01T00:00:00.000001Z", "step_seconds": None,
        "samples_per_second": None, "tokens_per_second": None, "failures": 0, "movements": 0,
        "world_size": None, "spares": None, "mesh": {}, "priority": 0, "framework": "",
        "gpu_model": "", "supported": None, "coordinator_node": "n0",
        "created_at": owner.get(f"{FLEET}/runs/run-n0").json()["created_at"],
    }  # fmt: skip


def test_pages_by_cursor_and_filters(acme, owner):
    fill(acme, 5)
    seen, url = [], f"{FLEET}/nodes?limit=2"
    while url:
        page = owner.get(url).json()
        seen += [node["name"] for node in page["results"]]
        url = page["next"]
    assert seen == ["n4", "n3", "n2", "n1", "n0"]
    named = owner.get(f"{FLEET}/findings", node="n3", state="opened").json()["results"]
    assert [finding["id"] for finding in named] == ["f-n3"]
    assert owner.get(f"{FLEET}/findings", state="cleared").json()["results"] == []
    assert owner.get(f"{FLEET}/findings", state="odd").status_code == 400


def test_an_orders_secrets_are_the_nodes_alone(acme, owner):
    fill(acme)
    assert owner.get(f"{FLEET}/orders").json()["results"][0]["payload"] == {"check": "x"}


def test_cordon_and_uncordon_leave_a_record(acme, owner):
    fill(acme)
    node = owner.get(f"{FLEET}/nodes").json()["results"][0]["id"]

    missing = owner.post(f"{FLEET}/nodes/{node}/cordon", {})
    assert (missing.status_code, missing.json()["errors"]) == (
        400, [{"pointer": "/reason", "detail": "This field is required."}],
    )  # fmt: skip
    cordoned = owner.post(f"{FLEET}/nodes/{node}/cordon", {"reason": "too hot"}).json()
    assert cordoned["cordon_reason"] == "too hot"
    assert cordoned["cordoned_at"] is not None
    assert owner.get(f"{FLEET}/nodes", cordoned="true").json()["results"][0]["id"] == node
    assert owner.get(f"{FLEET}/nodes", cordoned="false").json()["results"] == []
    free = owner.post(f"{FLEET}/nodes/{node}/uncordon", {"reason": "new fan"}).json()
    assert (free["cordoned_at"], free["cordon_reason"]) == (None, "")

    with tenant_scope(acme.pk):
        changes = list(NodeChange.objects.values_list("action", "reason"))
        actor = NodeChange.objects.first().actor
    assert changes == [("cordoned", "too hot"), ("uncordoned", "new fan")]
    assert actor.startswith("token tok_")


class TestLaunch:
    def launch(self, **fields):
        return {
            "run": "r1", "cluster": "acme-1", "contract": "C-1", "spec": "abc", "world_size": 4,
            "spares": 2, "coordinator_node": "n0",
            "placement": [
                {"node": "n0", "payload": {"role": "coordinator", "endpoint": "127.0.0.1:7000"}},
                {"node": "n1", "payload": {"role": "worker", "slots": 3, "ticket": "mine"}},
            ],
            **fields,
        }  # fmt: skip

    def test_a_run_is_registered_and_its_nodes_are_told(self, acme, owner):
        fill(acme, 2)

        answer = owner.post(f"{FLEET}/runs", self.launch())

        assert answer.status_code == 201
        assert answer.json()["id"] == "r1"
        with tenant_scope(acme.pk):
            run = Run.objects.get(run="r1")
            orders = list(run.orders.select_related("node"))
        assert (run.state, run.coordinator_node.name, run.contract_number) == (
            "registered", "n0", "C-1",
        )  # fmt: skip
        assert [(o.node.name, o.kind, o.state) for o in orders] == [
            ("n0", "start_worker", "open"), ("n1", "start_worker", "open"),
        ]  # fmt: skip
        assert orders[1].payload == {
            "run": "r1", "spec": "abc", "epoch": 0, "ticket": "mine", "role": "worker", "slots": 3,
        }  # fmt: skip
        assert len(orders[0].payload["ticket"]) == 32
        assert "mine" not in str(run.launch)

    def test_the_same_again_changes_nothing_and_another_is_refused(self, acme, owner):
        fill(acme, 2)
        owner.post(f"{FLEET}/runs", self.launch())

        assert owner.post(f"{FLEET}/runs", self.launch()).status_code == 200
        other = owner.post(f"{FLEET}/runs", self.launch(world_size=8))
        assert (other.status_code, other.json()["code"]) == (409, "run-conflict")
        with tenant_scope(acme.pk):
            assert Order.objects.filter(run__run="r1").count() == 2

    @pytest.mark.parametrize(
        ("fields", "status"),
        [
            ({"cluster": "strange-1"}, 422),
            ({"coordinator_node": "n9"}, 422),
            ({"world_size": 0}, 400),
            ({"placement": []}, 400),
            ({"run": "a/b"}, 400),
        ],
    )
    def test_a_bad_launch_registers_nothing(self, acme, stranger, owner, fields, status):
        fill(acme, 2)
        assert owner.post(f"{FLEET}/runs", self.launch(**fields)).status_code == status
        with tenant_scope(acme.pk):
            assert Run.objects.count() == 2

    def test_nothing_is_started_on_a_cordoned_node(self, acme, owner):
        fill(acme, 2)
        node = owner.get(f"{FLEET}/nodes", name="n1").json()["results"][0]["id"]
        owner.post(f"{FLEET}/nodes/{node}/cordon", {"reason": "hot"})

        answer = owner.post(f"{FLEET}/runs", self.launch())

        assert (answer.status_code, answer.json()["detail"]) == (422, "cordoned: n1")

    def test_a_single_order(self, acme, owner):
        fill(acme, 1)
        node = owner.get(f"{FLEET}/nodes").json()["results"][0]["id"]
        order = {"node": node, "kind": "stop_worker", "run": "run-n0", "payload": {"run": "run-n0"}}

        answer = owner.post(f"{FLEET}/orders", order)

        assert (answer.status_code, answer.json()["state"]) == (201, "open")
        assert owner.post(f"{FLEET}/orders", {**order, "kind": "dance"}).status_code == 400
        assert owner.post(f"{FLEET}/orders", {**order, "node": "nod_x"}).status_code == 422
