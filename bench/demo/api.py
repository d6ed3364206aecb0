"""The service as its clients see it: a few REST calls with a bearer token."""

from __future__ import annotations

import time
from typing import Any

import httpx2


class Api:
    """GET and POST of JSON; while the service restarts, `get` waits for it."""

    def __init__(self, url: str, token: str) -> None:
        self._url = url
        self._client = httpx2.Client(
            base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=10.0
        )

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        return self._document(self._client.post(path, json=body))

    def get(self, path: str, patience_seconds: float = 0.0) -> dict[str, Any]:
        """Raises httpx2.HTTPError when the service does not answer within the patience."""
        deadline = time.monotonic() + patience_seconds
        while True:
            try:
                answer = self._client.get(path)
                if answer.status_code < 500 or time.monotonic() >= deadline:
                    return self._document(answer)
            except httpx2.TransportError:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(0.2)

    def pages(self, path: str, patience_seconds: float = 0.0) -> list[dict[str, Any]]:
        """Every entry of a cursor-paged list."""
        found: list[dict[str, Any]] = []
        while path:
            page = self.get(path, patience_seconds)
            found += page["results"]
            path = (page.get("next") or "").removeprefix(self._url)
        return found

    @staticmethod
    def _document(answer: httpx2.Response) -> dict[str, Any]:
        if answer.is_error:
            raise httpx2.HTTPStatusError(
                f"{answer.request.method} {answer.request.url}: {answer.status_code} "
                f"{answer.text[:500]}",
                request=answer.request,
                response=answer,
            )
        document: dict[str, Any] = answer.json()
        return document
