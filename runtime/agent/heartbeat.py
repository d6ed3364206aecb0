"""The thread that carries heartbeats to the service, so that no other waits for the network.

It sends the body it is handed and hands back what came of it; it keeps no state of the node.
"""

from __future__ import annotations

import queue
import random
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

from runtime.agent.client import (
    FleetClient,
    HeartbeatAnswer,
    ServiceAwayError,
    ServiceRefusedError,
)

REFUSED_RETRY_SECONDS: Final = 60.0
LONGEST_BACKOFF_SECONDS: Final = 10.0
log = structlog.get_logger("runtime.agent.heartbeat")


@dataclass(frozen=True, slots=True)
class Enrolled:
    """The service gave this node its own token."""

    token: str


@dataclass(frozen=True, slots=True)
class Heard:
    """The service took the heartbeat with these orders reported, and answered."""

    answer: HeartbeatAnswer
    reported: list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Missed:
    """No answer; when to try again, in seconds from now."""

    retry_seconds: float


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The one-time token and what the node says of itself with it."""

    token: str
    body: dict[str, Any]


class HeartbeatSender:
    """`deliver` gets Enrolled, Heard or Missed, once for each body handed to `send`."""

    def __init__(
        self,
        client: FleetClient,
        deliver: Callable[[Enrolled | Heard | Missed], None],
        enrolment: Enrolment | None,
    ) -> None:
        self._client = client
        self._deliver = deliver
        self._enrolment = enrolment
        self._bodies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._failures = 0
        self._reported: str | None = None
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def send(self, body: dict[str, Any]) -> None:
        self._bodies.put(body)

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def stop(self, timeout_seconds: float) -> None:
        """A heartbeat in flight is waited for, this long at most; then it ends with the process."""
        self._bodies.put(None)
        self._thread.join(timeout_seconds)
        if not self._thread.is_alive():
            self._client.close()

    def _run(self) -> None:
        while (body := self._bodies.get()) is not None:
            self._deliver(self._attempt(body))

    def _attempt(self, body: dict[str, Any]) -> Enrolled | Heard | Missed:
        try:
            if self._enrolment is not None:
                token = self._client.enrol(self._enrolment.token, self._enrolment.body)
                self._enrolment = None
                return Enrolled(token)
            answer = self._client.heartbeat(body)
        except ServiceAwayError as error:
            self._say(f"away: {error}", is_error=False)
            self._failures += 1
            ceiling = min(0.5 * 2 ** min(self._failures, 20), LONGEST_BACKOFF_SECONDS)
            # Jitter: a fleet must not come back in one beat.
            pause = ceiling * random.uniform(0.5, 1.0)  # noqa: S311
            return Missed(max(pause, error.retry_after_seconds or 0.0))
        except ServiceRefusedError as error:
            self._say(f"refused: {error}", is_error=True)
            return Missed(REFUSED_RETRY_SECONDS)
        if self._reported is not None:
            log.info("heartbeat.restored")
        self._failures, self._reported = 0, None
        return Heard(answer, body["orders"])

    def _say(self, detail: str, *, is_error: bool) -> None:
        """Once for each new reason, not once a beat."""
        if detail != self._reported:
            self._reported = detail
            (log.error if is_error else log.warning)("heartbeat.missed", detail=detail)
