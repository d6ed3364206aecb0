"""State on the wire: chunks with a CRC each, striped over donors, whole or not at all.

A donor answers `header`, `chunk` and `digest` for one epoch only. A receiver fills fresh memory and
hands it out only when its digest is the donor's; a donor that dies costs its open chunk only.

Every answer is: 4 bytes length of the body, 4 bytes CRC-32, body. For a chunk the CRC runs over the
text "index:offset:" and the body, so a chunk in the wrong place does not pass.
"""

from __future__ import annotations

import hmac
import json
import queue
import socket
import struct
import threading
import time
import zlib
from dataclasses import dataclass
from typing import Any

from runtime import lines
from runtime.errors import TransferFailed
from runtime.worker import points
from runtime.worker.state import Snapshot

CHUNK_BYTES = 4 << 20
_FRAME = struct.Struct("!II")
# A length that arrived damaged must not take all the memory there is.
_MAX_HEADER_BYTES = 256 << 20
# Bounds one read of at most one chunk: three orders above what a slow link needs for it.
_IO_SECONDS = 10.0


@dataclass(frozen=True)
class Received:
    snapshot: Snapshot
    digest: str
    bytes: int
    seconds: float
    sources: list[str]


class Donor:
    """Serves this worker's state to others while an epoch is being formed; threads of its own."""

    def __init__(self, token: str, host: str = "127.0.0.1") -> None:
        self._token = token
        self._listener = socket.create_server((host, 0))
        self.endpoint = f"{host}:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._after_epoch = -1
        self._snapshot: Snapshot | None = None
        self._digest: str | None = None
        threading.Thread(target=self._accept, name="state-donor", daemon=True).start()

    @property
    def listener(self) -> socket.socket:
        return self._listener

    def offer(self, after_epoch: int, snapshot: Snapshot) -> None:
        """From now on serves this snapshot, to later epochs only; the tensors must stand still."""
        with self._lock:
            self._after_epoch, self._snapshot, self._digest = after_epoch, snapshot, None

    def withdraw(self) -> None:
        with self._lock:
            self._snapshot, self._digest = None, None

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(
                target=self._serve, args=(connection,), name="state-donor-peer", daemon=True
            ).start()

    def _serve(self, connection: socket.socket) -> None:
        line = lines.LineSocket(connection)
        try:
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                hello = line.receive(_IO_SECONDS)
                token = "" if hello is None else str(hello.get("token"))
                if hello is None or not hmac.compare_digest(token.encode(), self._token.encode()):
                    return
                while (request := line.receive(None)) is not None:
                    if not self._answer(connection, int(hello["epoch"]), request):
                        return
        except (OSError, ValueError, KeyError, TypeError, IndexError, RecursionError):
            return  # the receiver sees the closed line and takes another donor

    def _answer(self, connection: socket.socket, epoch: int, request: dict[str, Any]) -> bool:
        with self._lock:
            snapshot = self._snapshot
            if snapshot is None or epoch <= self._after_epoch:
                return False  # fenced
        match request["op"]:
            case "header":
                _write(connection, json.dumps(snapshot.header()).encode(), b"")
            case "digest":
                _write(connection, self._digest_of(snapshot).encode(), b"")
            case "chunk":
                points.reach("sending")
                index, offset = int(request["index"]), int(request["offset"])
                body = snapshot.bytes_of(index)[offset : offset + CHUNK_BYTES]
                _write(connection, body, f"{index}:{offset}:".encode())
        return True

    def _digest_of(self, snapshot: Snapshot) -> str:
        with self._lock:
            if self._snapshot is not snapshot:
                return snapshot.digest()
            if self._digest is None:
                self._digest = snapshot.digest()
            return self._digest

    def close(self) -> None:
        self._listener.close()


def _write(connection: socket.socket, body: bytes | memoryview, salt: bytes) -> None:
    connection.sendall(_FRAME.pack(len(body), zlib.crc32(body, zlib.crc32(salt))))
    connection.sendall(body)


class _Source:
    """A connection to one donor."""

    def __init__(self, name: str, endpoint: str, token: str, epoch: int) -> None:
        self.name = name
        self.line = lines.LineSocket.connect(endpoint, timeout_seconds=_IO_SECONDS)
        self.line.send({"token": token, "epoch": epoch})
        self.line.sock.settimeout(None)

    def ask(self, request: dict[str, Any], salt: bytes, into: memoryview | None) -> bytes:
        self.line.sock.settimeout(_IO_SECONDS)
        self.line.send(request)
        length, crc = _FRAME.unpack(self._exactly(_FRAME.size, None))
        if into is not None and length != len(into):
            raise ValueError(f"{self.name} sent {length} bytes for a chunk of {len(into)}")
        if length > _MAX_HEADER_BYTES:
            raise ValueError(f"{self.name} announced {length} bytes")
        body = self._exactly(length, into)
        if zlib.crc32(into if into is not None else body, zlib.crc32(salt)) != crc:
            raise ValueError(f"a chunk from {self.name} arrived damaged")
        return body

    def _exactly(self, length: int, into: memoryview | None) -> bytes:
        view = into if into is not None else memoryview(bytearray(length))
        done = 0
        while done < length:
            count = self.line.sock.recv_into(view[done:])
            if not count:
                raise ConnectionError(f"{self.name} closed the line")
            done += count
        return b"" if into is not None else bytes(view)


def receive(donors: list[dict[str, str]], token: str, epoch: int) -> Received:
    """Fetches the state from all donors at once; TransferFailed when none of them can finish it."""
    began = time.monotonic()
    sources: list[_Source] = []
    troubles: list[str] = []
    for donor in donors:
        try:
            sources.append(_Source(donor["name"], donor["endpoint"], token, epoch))
        except OSError as error:
            troubles.append(f"{donor['name']}: {error}")
    try:
        return _receive(sources, troubles, began)
    finally:
        for source in sources:
            source.line.close()


def _receive(sources: list[_Source], troubles: list[str], began: float) -> Received:
    snapshot, primary = _first_header(sources, troubles)
    work: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    total = 0
    for index, entry in enumerate(snapshot.entries):
        for offset in range(0, entry.nbytes, CHUNK_BYTES):
            work.put((index, offset))
            total += 1
    done: list[tuple[int, int]] = []
    alive = sources[sources.index(primary) :]
    while len(done) < total and alive:
        # A donor that fails gives its chunk back; others may have run dry: go round again.
        alive = _pull_all(alive, snapshot, work, done, troubles)
    if len(done) < total:
        raise TransferFailed("no donor could finish the state: " + "; ".join(troubles))
    digest = snapshot.digest()
    for source in alive:
        try:
            theirs = source.ask({"op": "digest"}, b"", None).decode()
        except (OSError, ValueError) as error:
            troubles.append(f"{source.name}: {error}")
            continue
        if theirs != digest:
            raise TransferFailed(
                f"the state received has digest {digest}, {source.name}'s {theirs}"
            )
        names = [each.name for each in alive]
        return Received(snapshot, digest, snapshot.nbytes, time.monotonic() - began, names)
    raise TransferFailed("no donor is left to confirm the digest: " + "; ".join(troubles))


def _first_header(sources: list[_Source], troubles: list[str]) -> tuple[Snapshot, _Source]:
    for source in sources:
        try:
            header = json.loads(source.ask({"op": "header"}, b"", None))
            return Snapshot.empty_like_header(header), source
        except (OSError, ValueError, KeyError, TypeError) as error:
            troubles.append(f"{source.name}: {error}")
    raise TransferFailed("no donor answers: " + "; ".join(troubles))


def _pull_all(
    sources: list[_Source],
    snapshot: Snapshot,
    work: queue.SimpleQueue[tuple[int, int]],
    done: list[tuple[int, int]],
    troubles: list[str],
) -> list[_Source]:
    """Drains the work with one thread a donor; returns the donors that are still sound."""
    failed: list[_Source] = []
    threads = [
        threading.Thread(
            target=_pull,
            args=(source, snapshot, work, done, troubles, failed),
            name="state-receive",
        )
        for source in sources
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [source for source in sources if source not in failed]


def _pull(
    source: _Source,
    snapshot: Snapshot,
    work: queue.SimpleQueue[tuple[int, int]],
    done: list[tuple[int, int]],
    troubles: list[str],
    failed: list[_Source],
) -> None:
    while True:
        try:
            index, offset = work.get_nowait()
        except queue.Empty:
            return
        into = snapshot.bytes_of(index)[offset : offset + CHUNK_BYTES]
        points.reach("receiving")
        try:
            request = {"op": "chunk", "index": index, "offset": offset}
            source.ask(request, f"{index}:{offset}:".encode(), into)
        except (OSError, ValueError) as error:
            troubles.append(f"{source.name}: {error}")
            work.put((index, offset))
            failed.append(source)
            return
        done.append((index, offset))
