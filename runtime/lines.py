"""Newline-delimited JSON over a stream socket: the one framing of every control connection."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

MAX_LINE_BYTES = 1 << 20


def encode(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> dict[str, Any]:
    """One line → one message; ValueError where it is not a JSON object."""
    message = json.loads(line)
    if not isinstance(message, dict):
        raise ValueError("a control message is a JSON object")  # noqa: TRY004 - a bad value from the wire
    return message


class LineSocket:
    """A blocking socket that reads and writes whole messages; one reader, one writer at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = bytearray()

    @classmethod
    def connect(cls, endpoint: str, timeout_seconds: float) -> LineSocket:
        """Connects to `host:port`; OSError when nobody answers within the timeout."""
        host, _, port = endpoint.rpartition(":")
        sock = socket.create_connection((host, int(port)), timeout=timeout_seconds)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return cls(sock)

    def send(self, message: dict[str, Any]) -> None:
        self.sock.sendall(encode(message))

    def receive(self, timeout_seconds: float | None = None) -> dict[str, Any] | None:
        """The next message; None at the end of the stream; TimeoutError when none came in time."""
        self.sock.settimeout(timeout_seconds)
        while (end := self._buffer.find(b"\n")) < 0:
            if len(self._buffer) > MAX_LINE_BYTES:
                raise ValueError("a control message is longer than 1 MiB")
            piece = self.sock.recv(65536)
            if not piece:
                return None
            self._buffer += piece
        line = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        return decode(line)

    def close(self) -> None:
        # shutdown first: another thread may be blocked in recv on this socket.
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()
