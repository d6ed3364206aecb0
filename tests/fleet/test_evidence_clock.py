"""The evidence clock: behind a horizon nothing appears; deliveries at once never double."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, transaction

from fleet.locks import fix_horizon, receipt_instant
from fleet.models import Event, Run
from fleet.tenancy import tenant_scope
from tests.fleet.conftest import Api, make_tenant, make_token

pytestmark = pytest.mark.django_db(transaction=True)


def closing(function):
    """Each thread has a connection of its own, which it has to close."""

    def run(*arguments):
        try:
            return function(*arguments)
        finally:
            connection.close()

    return run


def test_a_horizon_waits_for_the_deliveries_before_it():
    read, commit = threading.Event(), threading.Event()
    order = []

    @closing
    def ingest():
        with transaction.atomic():
            instant = receipt_instant()
            read.set()
            assert commit.wait(10)
            order.append("committed")
        return instant

    @closing
    def judge():
        assert read.wait(10)
        horizon = fix_horizon()
        order.append("judged")
        return horizon

    with ThreadPoolExecutor(2) as pool:
        instant, horizon = pool.submit(ingest), pool.submit(judge)
        read.wait(10)
        until_somebody_waits()
        assert order == []
        commit.set()

    assert order == ["committed", "judged"]
    assert horizon.result() > instant.result()
    with transaction.atomic():
        assert receipt_instant() > horizon.result()


def test_a_horizon_is_let_go_at_once():
    with transaction.atomic():
        first = fix_horizon()
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
            assert cursor.fetchone() == (0,)
        assert fix_horizon() > first


def test_deliveries_at_once_that_overlap_store_each_event_once(event):
    acme = make_tenant("Acme", "acme-1")
    token = make_token(acme, "events:write", sources=("/clusters/acme-1/*",))
    started = event("start", type="run.started", data={"run": "r1"})
    assert Api(token).deliver([started]) == ["accepted"]
    events = [
        event(f"e{n}", type="failure.detected", data={
            "run": "r1", "epoch": 1, "committed_step": n, "failure_id": f"f{n}"})
        for n in range(60)
    ]  # fmt: skip

    @closing
    def deliver(offset):
        turned = events[offset:] + events[:offset]
        return Api(token).deliver(list(reversed(turned)) if offset % 2 else turned)

    with ThreadPoolExecutor(4) as pool:
        statuses = [s for answer in pool.map(deliver, [0, 7, 20, 33, 41, 50]) for s in answer]

    assert statuses.count("accepted") == 60
    assert statuses.count("duplicate") == 300
    with tenant_scope(acme.pk):
        assert Event.objects.count() == 61
        assert Run.objects.get().failures == 60


def until_somebody_waits():
    for _ in range(500):
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT count(*) FROM pg_locks WHERE locktype='advisory' AND NOT granted"
            )
            if cursor.fetchone() == (1,):
                return
            cursor.execute("SELECT pg_sleep(0.01)")
    raise AssertionError("nobody waits for the evidence clock")
