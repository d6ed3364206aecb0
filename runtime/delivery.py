"""Delivers what lies in an outbox to the fleet service, in order, until it has an answer.

At least once: an event is marked only after the service's answer for it came back, whatever that
answer was. While the service is away, overloaded or refuses us, everything stays in the outbox.
"""

from __future__ import annotations

import email.utils
import gzip
import math
import random
import threading
import time
from dataclasses import dataclass
from typing import Final, Self

import httpx2
import orjson
import structlog

from runtime.outbox import Answer, Outbox, OutboxError, StoredEvent

EVENTS_PATH: Final = "/api/v1/events"
BATCH_TYPE: Final = "application/cloudevents-batch+json"
FINAL_STATUSES: Final = frozenset({"accepted", "duplicate", "conflict", "quarantined", "invalid"})
LONGEST_RETRY_AFTER_SECONDS: Final = 300.0
MAX_ANSWER_BYTES: Final = 8 * 1024 * 1024

log = structlog.get_logger("runtime.delivery")


@dataclass(frozen=True, slots=True)
class DeliverySettings:
    """Bounds of delivery; all times in seconds."""

    batch_events: int = 1000
    batch_bytes: int = 1024 * 1024
    connect_seconds: float = 5.0
    total_seconds: float = 15.0
    first_backoff_seconds: float = 0.2
    longest_backoff_seconds: float = 30.0
    refused_retry_seconds: float = 60.0
    poll_seconds: float = 1.0  # how soon appends of another process are seen


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one attempt: answers, or why there are none and what that means."""

    answers: tuple[Answer, ...] = ()
    problem: str | None = None
    is_refusal: bool = False  # nothing we can mend by sending again soon
    is_too_large: bool = False
    retry_after_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Pause:
    """How long the thread rests, and what may wake it earlier; a stop always does."""

    seconds: float
    cut_by_append: bool = False
    cut_by_flush: bool = False


class _Signals:
    """What other threads tell the delivery thread, and it them, under one condition."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._is_stopped = False
        self._was_appended = False
        self._is_hurried = False
        self._attempts = 0

    @property
    def is_stopped(self) -> bool:
        return self._is_stopped

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._changed.notify_all()

    def appended(self) -> None:
        with self._changed:
            self._was_appended = True
            self._changed.notify_all()

    def hurry(self) -> None:
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()

    def end_attempt(self) -> None:
        with self._changed:
            self._attempts += 1
            self._changed.notify_all()

    def wait_for_attempt(self, timeout_seconds: float) -> None:
        """Return when an attempt ends, or after the timeout."""
        with self._changed:
            seen = self._attempts
            self._changed.wait_for(lambda: self._attempts != seen, timeout_seconds)

    def rest(self, pause: Pause) -> None:
        def is_cut() -> bool:
            return (
                self._is_stopped
                or (pause.cut_by_flush and self._is_hurried)
                or (pause.cut_by_append and self._was_appended)
            )

        with self._changed:
            self._changed.wait_for(is_cut, pause.seconds)
            # An append in the middle of the pause is in the outbox, and the next attempt reads it.
            self._was_appended = self._is_hurried = False


class Deliverer:
    """A thread that empties an outbox into `POST {url}/api/v1/events`.

    `url` is the base address of the service. The thread dies only of a bug; `is_alive` says so.
    """

    def __init__(
        self,
        outbox: Outbox,
        url: str,
        token: str,
        *,
        settings: DeliverySettings | None = None,
        name: str = "delivery",
    ) -> None:
        self.outbox = outbox
        self.settings = settings or DeliverySettings()
        self._client = _make_client(url, token, self.settings)
        self._batch_bytes = self.settings.batch_bytes
        self._failures = 0
        self._reported_refusal: str | None = None
        self._signals = _Signals()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        outbox.on_append(self._signals.appended)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def flush(self, timeout_seconds: float) -> bool:
        """Wait until nothing is pending; False when something still is after the timeout.

        Cuts a backoff short, but not a pause that the service itself asked for.
        """
        deadline = time.monotonic() + timeout_seconds
        self._signals.hurry()
        while self.outbox.pending_count() > 0:
            left_seconds = deadline - time.monotonic()
            if left_seconds <= 0 or not self.is_alive():
                return False
            self._signals.wait_for_attempt(min(left_seconds, 0.1))
        return True

    def stop(self, timeout_seconds: float | None = None) -> None:
        """End the thread; an attempt in flight is waited for, at most its total time."""
        self._signals.stop()
        if self._thread.ident is not None:
            self._thread.join(timeout_seconds or self.settings.total_seconds + 1)
        if self._thread.is_alive():
            log.warning("delivery.still_in_flight", source=self.outbox.source)
        else:
            self._client.close()

    def _run(self) -> None:
        while not self._signals.is_stopped:
            try:
                pause = self._deliver_once()
            except OutboxError as error:
                log.exception("delivery.outbox_failed", detail=str(error))
                pause = Pause(self._backoff_seconds(), cut_by_flush=True)
            self._signals.end_attempt()
            self._signals.rest(pause)

    def _deliver_once(self) -> Pause:
        """One attempt → the pause before the next."""
        batch = self.outbox.pending_stored(self.settings.batch_events, self._batch_bytes)
        if not batch:
            return Pause(self.settings.poll_seconds, cut_by_append=True, cut_by_flush=True)
        outcome = send_batch(self._client, batch, self.settings.total_seconds)
        if outcome.answers:
            self.outbox.record_answers(outcome.answers)
            self._report_answers(outcome.answers)
        if outcome.problem is None:
            self._failures, self._reported_refusal = 0, None
            self._batch_bytes = self.settings.batch_bytes
            return Pause(0.0)
        if outcome.is_too_large and len(batch) > 1:
            self._batch_bytes = max(1, sum(len(event.body) for event in batch) // 2)
            return Pause(0.0)
        return self._pause_after(outcome)

    def _pause_after(self, outcome: Outcome) -> Pause:
        if outcome.is_refusal:
            if outcome.problem != self._reported_refusal:
                self._reported_refusal = outcome.problem
                log.error(
                    "delivery.refused",
                    source=self.outbox.source,
                    detail=outcome.problem,
                    retry_seconds=self.settings.refused_retry_seconds,
                )
            return Pause(self.settings.refused_retry_seconds, cut_by_flush=True)
        pause_seconds = self._backoff_seconds()
        log.warning(
            "delivery.postponed",
            source=self.outbox.source,
            detail=outcome.problem,
            attempt=self._failures,
        )
        if outcome.retry_after_seconds is None:
            return Pause(pause_seconds, cut_by_flush=True)
        return Pause(max(pause_seconds, outcome.retry_after_seconds))

    def _backoff_seconds(self) -> float:
        self._failures += 1
        ceiling = min(
            self.settings.longest_backoff_seconds,
            self.settings.first_backoff_seconds * 2 ** min(self._failures - 1, 30),
        )
        # Jitter spreads the load of a fleet that comes back at once; it guards nothing.
        return float(ceiling * random.uniform(0.5, 1.0))  # noqa: S311

    def _report_answers(self, answers: tuple[Answer, ...]) -> None:
        for answer in answers:
            if answer.status not in ("accepted", "duplicate"):
                log.error(
                    "delivery.event_not_accepted",
                    source=self.outbox.source,
                    event_id=answer.event_id,
                    status=answer.status,
                    detail=answer.detail,
                )


def send_batch(client: httpx2.Client, batch: list[StoredEvent], total_seconds: float) -> Outcome:
    """Post the batch once; never raises for what the network or the service does."""
    body = b"[" + b",".join(event.body for event in batch) + b"]"
    deadline = time.monotonic() + total_seconds
    try:
        with client.stream(
            "POST",
            EVENTS_PATH,
            content=gzip.compress(body, compresslevel=3, mtime=0),
            headers={"content-type": BATCH_TYPE, "content-encoding": "gzip"},
        ) as response:
            answer = _read_within(response, deadline)
    except httpx2.HTTPError as error:
        return Outcome(problem=f"{type(error).__name__}: {error}")
    return _judge(response, answer, batch)


def _judge(response: httpx2.Response, answer: bytes, batch: list[StoredEvent]) -> Outcome:
    code = response.status_code
    if code == 200:
        return _match_answers(answer, batch)
    problem = f"HTTP {code}: {answer[:500].decode('utf-8', 'replace')}"
    if code in (408, 425, 429) or code >= 500:
        return Outcome(
            problem=problem,
            retry_after_seconds=parse_retry_after(response.headers.get("retry-after")),
        )
    return Outcome(problem=problem, is_refusal=True, is_too_large=code == 413)


def _match_answers(answer: bytes, batch: list[StoredEvent]) -> Outcome:
    """Answers by event id; one that is missing or unknown leaves its event undelivered."""
    try:
        results = orjson.loads(answer)["results"]
        stated = {
            str(item["id"]): (str(item["status"]), item.get("detail"))
            for item in results
            if item["status"] in FINAL_STATUSES
        }
    except (ValueError, KeyError, TypeError) as error:
        return Outcome(problem=f"an answer that cannot be read: {error!r}")
    answers = tuple(
        Answer(event.event_id, status, None if detail is None else str(detail))
        for event in batch
        if event.event_id in stated
        for status, detail in (stated[event.event_id],)
    )
    missing = len(batch) - len(answers)
    problem = f"no answer for {missing} of {len(batch)} events" if missing else None
    return Outcome(answers=answers, problem=problem)


def _read_within(response: httpx2.Response, deadline: float) -> bytes:
    """The body, or ReadTimeout when it trickles past the deadline (a monotonic instant)."""
    chunks: list[bytes] = []
    size = 0
    for chunk in response.iter_bytes():
        chunks.append(chunk)
        size += len(chunk)
        if size > MAX_ANSWER_BYTES:
            raise httpx2.ReadError(f"an answer above {MAX_ANSWER_BYTES} bytes")
        if time.monotonic() > deadline:
            raise httpx2.ReadTimeout("the answer did not end in time")
    return b"".join(chunks)


def parse_retry_after(text: str | None) -> float | None:
    """`Retry-After` in seconds or as an HTTP date → seconds from now, 0 to 300; None if absent."""
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
        except ValueError:
            return None
    if math.isnan(seconds):
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER_SECONDS)


def _make_client(url: str, token: str, settings: DeliverySettings) -> httpx2.Client:
    return httpx2.Client(
        base_url=url,
        headers={"authorization": f"Bearer {token}", "accept": "application/json"},
        timeout=httpx2.Timeout(settings.total_seconds, connect=settings.connect_seconds),
        # A redirect would carry the token to wherever it points.
        follow_redirects=False,
        # The service is addressed by its own name; a proxy of the shell is not for daemons.
        trust_env=False,
    )
