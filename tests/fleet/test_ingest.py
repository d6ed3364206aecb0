"""POST /api/v1/events: every event once for ever, and an answer for each one."""

from __future__ import annotations

import gzip
import hashlib
import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fleet.models import Event, EventAside, Run
from fleet.signals import events_accepted
from fleet.tenancy import every_tenant, tenant_scope
from tests.fleet.conftest import BATCH, Api, make_node, make_token

pytestmark = pytest.mark.django_db
URL = "/api/v1/events"


def test_an_event_is_kept_with_its_bytes_and_their_hash(agent, acme, event):
    raw = (
        b'[ {"specversion": "1.0", '
        + json.dumps(event()).encode()[1:].replace(b", ", b" ,\n")
        + b" ]"
    )
    one = raw[2:-2]

    response = agent.post(URL, raw, BATCH)

    assert response.json() == {"results": [{"id": "e1", "status": "accepted", "detail": None}]}
    with tenant_scope(acme.pk):
        kept = Event.objects.get()
    assert bytes(kept.body) == one
    assert kept.body_sha256 == hashlib.sha256(one).hexdigest()
    assert (kept.source, kept.event_id, kept.type) == (
        "/clusters/acme-1/runs/r1/coordinator", "e1", "run.progress",
    )  # fmt: skip
    assert (kept.run, kept.subject, kept.sequence, kept.status) == ("r1", "r1", 1, "accepted")
    assert kept.time_us == 1_777_593_600_000_001
    now_us = int(datetime.now(UTC).timestamp() * 1_000_000)
    assert 0 <= now_us - kept.received_us < 10_000_000


def test_one_event_alone(agent, acme, event):
    body = json.dumps(event()).encode()

    response = agent.post(URL, body, "application/cloudevents+json; charset=utf-8")

    assert response.json()["results"] == [{"id": "e1", "status": "accepted", "detail": None}]
    with tenant_scope(acme.pk):
        assert bytes(Event.objects.get().body) == body


def test_the_same_body_again_is_a_duplicate_whatever_its_form(agent, acme, event):
    assert agent.deliver([event()]) == ["accepted"]
    shuffled = dict(reversed(event().items()))

    assert agent.deliver([event()]) == ["duplicate"]
    assert agent.deliver([shuffled]) == ["duplicate"]
    assert agent.deliver([event(recordedtime="2026-05-02T00:00:00Z")]) == ["duplicate"]
    with tenant_scope(acme.pk):
        assert (Event.objects.count(), EventAside.objects.count()) == (1, 0)


def test_another_body_under_the_same_identity_is_a_conflict_and_is_kept_once(agent, acme, event):
    other = event(data={"run": "r1", "epoch": 1, "committed_step": 8})
    assert agent.deliver([event()]) == ["accepted"]

    assert agent.deliver([other]) == ["conflict"]
    assert agent.deliver([other, event()]) == ["conflict", "duplicate"]

    with tenant_scope(acme.pk):
        assert json.loads(bytes(Event.objects.get().body)) == event()
        aside = EventAside.objects.get()
    assert (aside.reason, aside.run, aside.sequence) == ("conflict", "r1", 1)
    assert json.loads(bytes(aside.body)) == other


def test_within_a_batch_the_smaller_canonical_body_is_in_force(agent, acme, event):
    small = event(data={"run": "r1", "epoch": 1, "committed_step": 7})
    large = event(data={"run": "r1", "epoch": 1, "committed_step": 8})

    assert agent.deliver([large, small, small, large]) == [
        "conflict", "accepted", "duplicate", "conflict",
    ]  # fmt: skip

    with tenant_scope(acme.pk):
        assert json.loads(bytes(Event.objects.get().body)) == small
        assert EventAside.objects.count() == 1


def test_the_same_id_from_another_source_is_another_event(agent, event):
    other = event(source="/clusters/acme-1/runs/r2/coordinator")
    assert agent.deliver([event(), other]) == ["accepted", "accepted"]


def test_a_bad_item_never_rejects_the_rest(agent, acme, event):
    unreadable = event("e2", time="yesterday")
    batch = [unreadable, 7, event(), event("e3", source=None), event("e4", subject="x\x00y")]

    response = agent.post(URL, batch, BATCH)

    results = response.json()["results"]
    assert [(r["id"], r["status"]) for r in results] == [
        ("e2", "invalid"), (None, "invalid"), ("e1", "accepted"),
        ("e3", "invalid"), ("e4", "invalid"),
    ]  # fmt: skip
    assert "'yesterday' is not an RFC 3339 time" in results[0]["detail"]
    with tenant_scope(acme.pk):
        assert Event.objects.count() == 1
        kept = {bytes(aside.body): aside for aside in EventAside.objects.all()}
    assert set(kept) == {json.dumps(item).encode() for item in batch if item != event()}
    assert kept[b"7"].detail == "an event is a JSON object"
    assert kept[json.dumps(unreadable).encode()].sequence == 1


def test_an_event_of_the_future_is_quarantined(agent, acme, event):
    def at(minutes):
        when = datetime.now(UTC) + timedelta(minutes=minutes)
        return event(f"at {minutes}", time=when.isoformat().replace("+00:00", "Z"))

    assert agent.deliver([at(6), at(4)]) == ["quarantined", "accepted"]
    assert agent.deliver([event(), event("e0", time="1999-01-01T00:00:00Z")]) == ["accepted"] * 2
    with tenant_scope(acme.pk):
        assert Event.objects.get(event_id="at 6").status == "quarantined"


def test_gzip(agent, event):
    packed = gzip.compress(json.dumps([event()]).encode(), mtime=0)
    response = agent.post(URL, packed, BATCH, **{"Content-Encoding": "gzip"})
    assert response.json()["results"][0]["status"] == "accepted"


@pytest.mark.parametrize(
    ("body", "content_type", "headers", "status", "code"),
    [
        (b" ", BATCH, {}, 400, "malformed-body"),
        (b"[]", BATCH, {}, 400, "malformed-body"),
        (b"{}", BATCH, {}, 400, "malformed-body"),
        (b"[{},]", BATCH, {}, 400, "malformed-body"),
        (b"[{}] x", BATCH, {}, 400, "malformed-body"),
        (b"[{}", BATCH, {}, 400, "malformed-body"),
        (b'[{"a": NaN}]', BATCH, {}, 400, "malformed-body"),
        (b"[\xff]", BATCH, {}, 400, "malformed-body"),
        (b"[" * 100_000, BATCH, {}, 400, "malformed-body"),
        (b"not gzip", BATCH, {"Content-Encoding": "gzip"}, 400, "malformed-body"),
        (
            gzip.compress(b"[1]", mtime=0)[:-4],
            BATCH,
            {"Content-Encoding": "gzip"},
            400,
            "malformed-body",
        ),
        (b"[1]", BATCH, {"Content-Encoding": "br"}, 415, "unsupported-media-type"),
        (b"[1]", "application/json", {}, 415, "unsupported-media-type"),
        (b"[" + b"1," * 1000 + b"1]", BATCH, {}, 413, "too-large"),
        (
            gzip.compress(b" " * 70_000_000, mtime=0),
            BATCH,
            {"Content-Encoding": "gzip"},
            413,
            "too-large",
        ),
    ],
)
def test_a_bad_delivery_is_a_problem_and_stores_nothing(
    agent, acme, body, content_type, headers, status, code
):
    response = agent.post(URL, body, content_type, **headers)

    assert response.status_code == status
    assert response["Content-Type"] == "application/problem+json"
    problem = response.json()
    assert (problem["status"], problem["code"], problem["type"]) == (
        status, code, f"/problems/{code}",
    )  # fmt: skip
    assert set(problem) == {"type", "title", "status", "detail", "code", "request_id", "errors"}
    assert problem["request_id"] == response["X-Request-ID"]
    with tenant_scope(acme.pk):
        assert (Event.objects.count(), EventAside.objects.count()) == (0, 0)


def test_an_event_over_64_kib_is_invalid_and_its_neighbour_is_not(agent, event):
    big = event("e2", data={"run": "r1", "epoch": 1, "committed_step": 1, "x": "y" * 65_536})
    assert agent.deliver([big, event()]) == ["invalid", "accepted"]


def test_a_thousand_at_once(agent, acme, event):
    batch = [event(f"e{number}", sequence=str(number)) for number in range(1, 1001)]

    assert agent.deliver(batch) == ["accepted"] * 1000
    assert agent.deliver(batch) == ["duplicate"] * 1000
    with tenant_scope(acme.pk):
        assert Event.objects.count() == 1000


def test_a_delivery_costs_a_fixed_number_of_queries(agent, event, django_assert_num_queries):
    agent.deliver([event("first", type="run.started", data={"run": "r1"})])
    for size in (1, 50):
        batch = [event(f"{size} {number}") for number in range(size)]
        # Two savepoints and their releases; scope, token, scope; the evidence clock and its time;
        # one insert; the run read and written.
        with django_assert_num_queries(12):
            assert agent.deliver(batch) == ["accepted"] * size


class TestWhoMaySend:
    """Three tokens: the source's own, a colleague's of the same tenant, a stranger's."""

    def test_the_owner_may(self, acme, event):
        owner = Api(
            make_token(acme, "events:write", sources=("/clusters/acme-1/runs/r1/coordinator",))
        )
        assert owner.deliver([event()]) == ["accepted"]

    def test_a_colleague_bound_elsewhere_may_not(self, acme, event):
        colleague = Api(make_token(acme, "events:write", sources=("/clusters/acme-1/runs/r2/*",)))
        own = event(source="/clusters/acme-1/runs/r2/coordinator")

        response = colleague.post(URL, [own, event()], BATCH)

        assert response.status_code == 403
        problem = response.json()
        assert problem["code"] == "source-not-bound"
        assert problem["errors"] == [
            {"pointer": "/1/source", "detail": "not bound to /clusters/acme-1/runs/r1/coordinator"}
        ]
        with every_tenant():
            assert Event.objects.count() == 0

    def test_a_stranger_may_not_and_its_own_events_stay_its_own(self, acme, stranger, event, agent):
        foreign = Api(make_token(stranger, "events:write", sources=("/clusters/strange-1/*",)))
        assert foreign.post(URL, [event()], BATCH).status_code == 403
        assert foreign.deliver([event(source="/clusters/strange-1/runs/r1/coordinator")]) == [
            "accepted"
        ]
        assert agent.deliver([event()]) == ["accepted"]
        with tenant_scope(acme.pk):
            assert Event.objects.get().source == "/clusters/acme-1/runs/r1/coordinator"

    def test_a_node_speaks_for_itself_and_the_runs_it_coordinates(self, acme, event):
        node, other = make_node(acme, "n1"), make_node(acme, "n2")
        token = make_token(acme, "events:write", cluster=node.cluster, node=node)
        own = event(source="/clusters/acme-1/nodes/n1/agent")
        neighbour = event(source="/clusters/acme-1/nodes/n2/agent")
        assert Api(token).deliver([own]) == ["accepted"]
        assert Api(token).post(URL, [neighbour], BATCH).status_code == 403
        assert Api(token).post(URL, [event()], BATCH).status_code == 403

        with tenant_scope(acme.pk):
            Run.objects.create(tenant=acme, cluster=node.cluster, run="r1", coordinator_node=node)
            Run.objects.create(tenant=acme, cluster=node.cluster, run="r2", coordinator_node=other)

        assert Api(token).deliver([event()]) == ["accepted"]
        r2 = event(source="/clusters/acme-1/runs/r2/coordinator")
        assert Api(token).post(URL, [r2], BATCH).status_code == 403

    @pytest.mark.parametrize("token", [None, "", "nonsense", "unb_" + "a" * 12 + "." + "b" * 40])
    def test_without_a_good_token_nobody_may(self, acme, event, token):
        response = Api(token).post(URL, [event()], BATCH)

        assert response.status_code == 401
        assert response["WWW-Authenticate"] == 'Bearer realm="unbroken"'
        assert response["Content-Type"] == "application/problem+json"
        assert response.json()["code"] == "unauthorized" if token else True

    def test_a_token_that_may_only_read_may_not_send(self, acme, event):
        reader = Api(make_token(acme, "fleet:read"))
        assert reader.post(URL, [event()], BATCH).status_code == 403


def test_whoever_listens_hears_after_the_commit(
    agent, event, acme, django_capture_on_commit_callbacks
):
    heard = []

    def listen(**message):
        heard.append(message)

    events_accepted.connect(listen)
    try:
        with django_capture_on_commit_callbacks() as callbacks:
            agent.deliver([event()])
            assert heard == []
        [callback() for callback in callbacks]
        with django_capture_on_commit_callbacks(execute=True):
            agent.deliver([event()])
    finally:
        events_accepted.disconnect(listen)

    assert len(heard) == 1
    assert heard[0]["tenant_id"] == acme.pk
    assert heard[0]["runs"] == frozenset({"r1"})
    assert heard[0]["sources"] == frozenset({"/clusters/acme-1/runs/r1/coordinator"})


def test_a_listener_that_fails_fails_nobody_else(agent, event, django_capture_on_commit_callbacks):
    def fail(**_message):
        raise RuntimeError("the broker is away")

    events_accepted.connect(fail)
    try:
        with django_capture_on_commit_callbacks(execute=True):
            assert agent.deliver([event()]) == ["accepted"]
    finally:
        events_accepted.disconnect(fail)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
FIELDS = [
    "run", "epoch", "to_epoch", "from_epoch", "committed_step", "resumed_step", "failure_id",
    "status", "world_size", "spares", "mesh", "priority", "supported", "finding_id", "evidence",
    "gpu", "node", "check", "state", "step_seconds", "contract", "severity",
]  # fmt: skip
TYPES = [
    "run.started", "run.progress", "failure.detected", "recovery.completed", "run.finished",
    "health.finding", "run.support_changed", "something.new",
]  # fmt: skip


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    items=st.lists(
        st.builds(
            lambda kind, data, fields: {
                "specversion": "1.0", "id": "x", "time": "2026-05-01T00:00:00Z", "subject": "r1",
                "source": "/clusters/acme-1/runs/r1/coordinator", "type": kind,
                "data": {"run": "r1", "epoch": 1, "to_epoch": 2, "from_epoch": 1,
                         "committed_step": 3, "failure_id": "f", "finding_id": "g", **data},
                **fields,
            },
            st.sampled_from(TYPES),
            st.dictionaries(st.sampled_from(FIELDS), JSON_VALUES, max_size=4),
            st.dictionaries(
                st.sampled_from(["id", "time", "subject", "sequence", "bootid", "data", "extra"]),
                JSON_VALUES, max_size=2,
            ),
        )
        | JSON_VALUES,
        min_size=1, max_size=4,
    )
)  # fmt: skip
def test_whatever_comes_gets_an_answer(agent, items):
    statuses = agent.deliver(items)

    assert len(statuses) == len(items)
    again = agent.deliver(items)
    assert "accepted" not in again
    assert [s == "invalid" for s in again] == [s == "invalid" for s in statuses]
