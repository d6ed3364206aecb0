"""Delivery: everything in the outbox reaches a real HTTP server, once in effect, in order."""

from __future__ import annotations

import email.utils
import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog.testing

from runtime.delivery import Deliverer, DeliverySettings, parse_retry_after
from runtime.outbox import Outbox
from tests.runtime.service import TOKEN, Reply, Service
from tests.runtime.waiting import wait_for

SOURCE = "/clusters/c1/nodes/n1/agent"
FAST = DeliverySettings(
    connect_seconds=1.0,
    total_seconds=2.0,
    first_backoff_seconds=0.02,
    longest_backoff_seconds=0.1,
    refused_retry_seconds=0.3,
    poll_seconds=0.1,
)


@pytest.fixture
def outbox(tmp_path: Path) -> Iterator[Outbox]:
    with Outbox(tmp_path / "outbox.db", SOURCE) as box:
        yield box


def fill(outbox: Outbox, count: int) -> None:
    for index in range(count):
        outbox.append("run.progress", {"run": "r1", "index": index})


def received(service: Service) -> list[str]:
    return [event["sequence"] for event in service.order]


def test_delivers_in_order_the_exact_bytes(outbox: Outbox) -> None:
    fill(outbox, 25)
    stored = outbox.pending_stored()
    settings = DeliverySettings(batch_events=10)

    with Service() as service, Deliverer(outbox, service.url, TOKEN, settings=settings) as sender:
        assert sender.flush(5)

    assert received(service) == [str(n) for n in range(1, 27)]
    assert [len(json.loads(request.body)) for request in service.requests] == [10, 10, 6]
    first = service.requests[0]
    assert first.body == b"[" + b",".join(event.body for event in stored[:10]) + b"]"
    assert first.headers["content-type"] == "application/cloudevents-batch+json"
    assert first.headers["content-encoding"] == "gzip"
    assert {answer.status for answer in outbox.answers()} == {"accepted"}


def test_an_append_while_idle_goes_out_at_once(outbox: Outbox) -> None:
    slow_poll = DeliverySettings(poll_seconds=60)
    with Service() as service, Deliverer(outbox, service.url, TOKEN, settings=slow_poll) as sender:
        assert sender.flush(5)
        outbox.append("run.progress", {"run": "r1"})
        wait_for(lambda: received(service) == ["1", "2"], 2)


def test_server_away_then_back(outbox: Outbox) -> None:
    with Service() as service:
        port = service.port
    fill(outbox, 5)

    with Deliverer(outbox, f"http://127.0.0.1:{port}", TOKEN, settings=FAST) as sender:
        assert not sender.flush(0.5)
        assert outbox.pending_count() == 6
        with Service(port) as service:
            assert sender.flush(5)
            assert received(service) == [str(n) for n in range(1, 7)]


def test_an_answer_that_was_lost_leads_to_harmless_duplicates(outbox: Outbox) -> None:
    fill(outbox, 3)
    with Service() as service:
        # The events are kept, and the answer is not what the agent hears.
        original = service.answer
        answered = threading.Event()

        def lose_first(request):  # type: ignore[no-untyped-def]
            reply = original(request)
            if answered.is_set():
                return reply
            answered.set()
            return Reply(502, b"bad gateway")

        service.answer = lose_first  # type: ignore[method-assign]
        with Deliverer(outbox, service.url, TOKEN, settings=FAST) as sender:
            assert sender.flush(5)

    assert received(service) == ["1", "2", "3", "4"]
    assert service.requests[0].body == service.requests[1].body
    assert {answer.status for answer in outbox.answers()} == {"duplicate"}


def test_every_final_status_ends_delivery_and_is_kept(outbox: Outbox) -> None:
    fill(outbox, 4)
    statuses = ["accepted", "duplicate", "conflict", "quarantined", "invalid"]
    with Service() as service:
        service.judge = lambda event: statuses[int(event["sequence"]) - 1]
        with (
            structlog.testing.capture_logs() as logs,
            Deliverer(outbox, service.url, TOKEN, settings=FAST) as sender,
        ):
            assert sender.flush(5)

    assert [answer.status for answer in outbox.answers()] == statuses
    assert len(service.requests) == 1
    told = [line["status"] for line in logs if line["event"] == "delivery.event_not_accepted"]
    assert told == ["conflict", "quarantined", "invalid"]


def test_an_event_without_an_answer_is_sent_again(outbox: Outbox) -> None:
    fill(outbox, 1)
    first, second = outbox.pending()
    partial = {"results": [{"id": first["id"], "status": "accepted"}, {"id": "x", "status": "y"}]}
    unknown = {"results": [{"id": second["id"], "status": "perhaps"}]}
    with Service() as service:
        service.next_replies = [
            Reply(200, json.dumps(partial).encode()),
            Reply(200, json.dumps(unknown).encode()),
            Reply(200, b"<html>"),
        ]
        with Deliverer(outbox, service.url, TOKEN, settings=FAST) as sender:
            assert sender.flush(5)

    assert [len(json.loads(request.body)) for request in service.requests] == [2, 1, 1, 1]
    assert received(service) == ["2"]


def test_retry_after_is_obeyed_even_by_flush(outbox: Outbox) -> None:
    with Service() as service:
        service.next_replies = [Reply(503, b"", {"Retry-After": "1"})]
        began = time.monotonic()
        with Deliverer(outbox, service.url, TOKEN, settings=FAST) as sender:
            wait_for(lambda: service.requests)
            assert not sender.flush(0.3)
            assert sender.flush(5)
        assert time.monotonic() - began >= 1.0

    assert len(service.requests) == 2


def test_a_wrong_token_is_reported_once_and_loses_nothing(outbox: Outbox) -> None:
    with Service() as service, structlog.testing.capture_logs() as logs:
        sender = Deliverer(outbox, service.url, "wrong", settings=FAST)
        sender.start()
        wait_for(lambda: len(service.requests) >= 3, 5)
        sender.stop()

    refusals = [line for line in logs if line["event"] == "delivery.refused"]
    assert len(refusals) == 1
    assert refusals[0]["log_level"] == "error"
    assert refusals[0]["detail"] == 'HTTP 401: {"code": "unauthorized"}'
    assert outbox.pending_count() == 1


def test_too_large_batches_are_halved(outbox: Outbox) -> None:
    fill(outbox, 7)
    with Service() as service:
        service.next_replies = [Reply(413, b"{}"), Reply(413, b"{}")]
        with Deliverer(outbox, service.url, TOKEN, settings=FAST) as sender:
            assert sender.flush(5)

    sizes = [len(json.loads(request.body)) for request in service.requests]
    assert sizes[0] == 8
    assert sizes[2] < sizes[1] < 8
    assert received(service) == [str(n) for n in range(1, 9)]


def test_a_server_that_hangs_is_left_after_the_total_time(outbox: Outbox) -> None:
    release = threading.Event()
    with Service() as service:
        original = service.answer

        def hang_once(request):  # type: ignore[no-untyped-def]
            if not service.requests:
                service.requests.append(request)
                release.wait(10)
            return original(request)

        service.answer = hang_once  # type: ignore[method-assign]
        settings = DeliverySettings(total_seconds=0.3, first_backoff_seconds=0.01)
        with Deliverer(outbox, service.url, TOKEN, settings=settings) as sender:
            assert sender.flush(5)
        release.set()

    assert received(service) == ["1"]


def test_stop_ends_the_thread_and_leaves_the_rest_pending(outbox: Outbox) -> None:
    before = set(threading.enumerate())
    sender = Deliverer(outbox, "http://127.0.0.1:9", TOKEN, settings=FAST, name="delivery-x")
    sender.start()
    assert "delivery-x" in {thread.name for thread in threading.enumerate()}

    sender.stop()

    assert not sender.is_alive()
    assert set(threading.enumerate()) == before
    assert outbox.pending_count() == 1


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (None, None),
        ("7", 7.0),
        ("-3", 0.0),
        ("9999999", 300.0),
        ("nan", None),
        ("soon", None),
        (email.utils.formatdate(0, usegmt=True), 0.0),
    ],
)
def test_retry_after_forms(text: str | None, seconds: float | None) -> None:
    assert parse_retry_after(text) == seconds


def test_retry_after_as_a_date_ahead() -> None:
    ahead = email.utils.formatdate(time.time() + 100, usegmt=True)
    seconds = parse_retry_after(ahead)
    assert seconds is not None
    assert 97 < seconds <= 100
