"""A TCP proxy that sees every piece on its way from a donor, and may change or cut it."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class Proxy:
    """`change(passed, piece)` gets the bytes passed so far; None closes the line."""

    def __init__(self, target: str, change: Callable[[int, bytes], bytes | None]) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._change = change
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._sockets = [self._listener]
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.passed = 0
        self._threads = [threading.Thread(target=self._accept, name="proxy", daemon=True)]
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(self._target)
                self._sockets += [client, server]
                for source, sink, down in ((client, server, False), (server, client, True)):
                    thread = threading.Thread(
                        target=self._pump, args=(source, sink, down), name="proxy", daemon=True
                    )
                    self._threads.append(thread)
                    thread.start()

    def _pump(self, source: socket.socket, sink: socket.socket, down: bool) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(16 << 10):
                if down:
                    changed = self._change(self.passed, piece)
                    self.passed += len(piece)
                    if changed is None:
                        break
                    piece = changed
                sink.sendall(piece)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in self._threads:
            thread.join(5.0)
