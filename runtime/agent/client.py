"""The agent's calls to the fleet service: enrolment and heartbeat, one attempt each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import httpx2
import orjson

from runtime.delivery import parse_retry_after

HEARTBEAT_PATH: Final = "/api/v1/fleet/heartbeats"
ENROL_PATH: Final = "/api/v1/fleet/enroll"
CONNECT_SECONDS: Final = 3.0
TOTAL_SECONDS: Final = 10.0
INTERVAL_BOUNDS_SECONDS: Final = (0.1, 60.0)


class ServiceAwayError(Exception):
    """No usable answer; trying again later may help."""

    def __init__(self, detail: str, retry_after_seconds: float | None = None) -> None:
        super().__init__(detail)
        self.retry_after_seconds = retry_after_seconds


class ServiceRefusedError(Exception):
    """The service understood and refuses; somebody has to mend the token or the request."""


@dataclass(frozen=True, slots=True)
class HeartbeatAnswer:
    """Orders as sent, not yet judged; the interval in seconds, held within sane bounds."""

    orders: list[Any] = field(default_factory=list)
    interval_seconds: float | None = None


class FleetClient:
    """One connection to one service; used by one thread at a time."""

    def __init__(self, server: str, token: str | None) -> None:
        self._token = token
        self._client = httpx2.Client(
            base_url=server,
            timeout=httpx2.Timeout(TOTAL_SECONDS, connect=CONNECT_SECONDS),
            follow_redirects=False,
            trust_env=False,
        )

    def heartbeat(self, body: dict[str, Any]) -> HeartbeatAnswer:
        """Raises ServiceAwayError and ServiceRefusedError."""
        answer = self._post(HEARTBEAT_PATH, body, self._token)
        orders = answer.get("orders", [])
        if not isinstance(orders, list):
            raise ServiceAwayError(f"orders must be a list, not {orders!r}")
        interval = answer.get("interval_seconds")
        if isinstance(interval, bool) or not isinstance(interval, int | float):
            return HeartbeatAnswer(orders)
        lowest, highest = INTERVAL_BOUNDS_SECONDS
        return HeartbeatAnswer(orders, min(max(float(interval), lowest), highest))

    def enrol(self, enrolment_token: str, body: dict[str, Any]) -> str:
        """The node's own token, for the one-time `enrolment_token`; raises as `heartbeat`."""
        token = self._post(ENROL_PATH, body, enrolment_token).get("token")
        if not isinstance(token, str) or not token:
            raise ServiceAwayError("the answer to the enrolment holds no token")
        self._token = token
        return token

    def close(self) -> None:
        self._client.close()

    def _post(self, path: str, body: dict[str, Any], token: str | None) -> dict[str, Any]:
        headers = {"content-type": "application/json"}
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        try:
            response = self._client.post(path, content=orjson.dumps(body), headers=headers)
        except httpx2.HTTPError as error:
            raise ServiceAwayError(f"{type(error).__name__}: {error}") from error
        code = response.status_code
        if code in (200, 201):
            return _object(response.content)
        problem = f"HTTP {code} to {path}: {response.text[:300]}"
        if code in (408, 425, 429) or code >= 500:
            retry_after = parse_retry_after(response.headers.get("retry-after"))
            raise ServiceAwayError(problem, retry_after)
        raise ServiceRefusedError(problem)


def _object(content: bytes) -> dict[str, Any]:
    try:
        answer = orjson.loads(content)
    except ValueError as error:
        raise ServiceAwayError(f"an answer that cannot be read: {error}") from error
    if not isinstance(answer, dict):
        raise ServiceAwayError("an answer that is no JSON object")
    return answer
