"""A small real HTTP server that answers as the fleet service does, and keeps what it received."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

TOKEN = "token-of-n1"


@dataclass(frozen=True, slots=True)
class Request:
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


class Service:
    """Start it with `with`; port 0 is any free one. Replies in `next_replies` go first."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.events: dict[tuple[str, str], bytes] = {}
        self.order: list[dict[str, Any]] = []
        self.heartbeats: list[dict[str, Any]] = []
        self.orders: list[dict[str, Any]] = []
        self.interval_seconds: float = 0.2
        self.next_replies: list[Reply] = []
        self.enrolment_tokens: set[str] = set()
        self.judge: Callable[[dict[str, Any]], str] = lambda event: "accepted"
        self.lock = threading.Lock()
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.headers.get("content-encoding") == "gzip":
                    body = gzip.decompress(body)
                headers = {name.lower(): value for name, value in self.headers.items()}
                reply = service.answer(Request(self.path, headers, body))
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("content-length", str(len(reply.body)))
                self.end_headers()
                self.wfile.write(reply.body)

            def log_message(self, *_args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port: int = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.02,))

    def __enter__(self) -> Self:
        self.thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, request: Request) -> Reply:
        with self.lock:
            self.requests.append(request)
            if self.next_replies:
                return self.next_replies.pop(0)
            if request.path == "/api/v1/fleet/enroll":
                return self._enrol(request)
            if request.headers.get("authorization") != f"Bearer {TOKEN}":
                return Reply(401, b'{"code": "unauthorized"}')
            if request.path == "/api/v1/events":
                return self._take_events(request)
            if request.path == "/api/v1/fleet/heartbeats":
                return self._take_heartbeat(request)
            return Reply(404, b"{}")

    def _enrol(self, request: Request) -> Reply:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.enrolment_tokens:
            return Reply(401, b'{"code": "unauthorized"}')
        self.enrolment_tokens.remove(token)
        return Reply(201, json.dumps({"token": TOKEN}).encode())

    def _take_events(self, request: Request) -> Reply:
        results = []
        for event in json.loads(request.body):
            body = json.dumps(event, sort_keys=True).encode()
            identity = (event["source"], event["id"])
            if identity in self.events:
                status = "duplicate" if self.events[identity] == body else "conflict"
            else:
                status = self.judge(event)
                self.events[identity] = body
                self.order.append(event)
            results.append({"id": event["id"], "status": status, "detail": None})
        return Reply(200, json.dumps({"results": results}).encode())

    def _take_heartbeat(self, request: Request) -> Reply:
        heartbeat = json.loads(request.body)
        self.heartbeats.append(heartbeat)
        done = {
            entry["id"]
            for beat in self.heartbeats
            for entry in beat["orders"]
            if entry["state"] in ("completed", "refused", "failed", "expired")
        }
        orders = [order for order in self.orders if order.get("id") not in done]
        answer = {"orders": orders, "interval_seconds": self.interval_seconds}
        return Reply(200, json.dumps(answer).encode())
