"""The process that owns the embedded services: starts them, restarts what dies, stops them last.

`python -m config.embedded.keeper VAR_DIR SERVICE...`, started by membership.join and never by
hand. It lives while any user holds users.lock; killed itself, the kernel stops its servers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from config.embedded import programs
from config.embedded.errors import EmbeddedError
from config.embedded.locks import lock_within, open_lock, try_lock
from config.embedded.place import Place, find_place
from config.embedded.servers import Postgres, Server, Valkey

LOOK_SECONDS = 0.1
MOST_RESTARTS = 20  # in a row, each within RESTART_WINDOW_SECONDS of the one before
RESTART_WINDOW_SECONDS = 10.0


class Keeper:
    def __init__(self, place: Place, services: list[str]) -> None:
        self.place = place
        self.asked_to_stop = False
        self.wanted = services
        self.servers: list[Server] = []
        self.restarts = 0
        self.last_restart = 0.0

    def run(self) -> int:
        keeper_lock = open_lock(self.place.control / "keeper.lock")
        # Others look at this lock by taking it shared for a moment.
        lock_within(
            keeper_lock, self.place.control / "keeper.lock", exclusive=True, timeout_seconds=5
        )
        users_lock = open_lock(self.place.control / "users.lock")
        # Whatever the user who started us had blocked, our servers must hear.
        signal.pthread_sigmask(signal.SIG_SETMASK, set())
        signal.signal(signal.SIGTERM, self._stop_soon)
        signal.signal(signal.SIGINT, self._stop_soon)
        try:
            self._start()
            while not self.asked_to_stop and not try_lock(users_lock, exclusive=True):
                self._restart_the_dead()
                time.sleep(LOOK_SECONDS)
        except EmbeddedError as error:
            self._write("failed", str(error))
            return 1
        finally:
            for server in reversed(self.servers):
                server.stop()
        (self.place.control / "state.json").unlink(missing_ok=True)
        return 0

    def _start(self) -> None:
        self._write("starting")
        programs.prepare_folder(self.place, self.place.root)
        programs.prepare_folder(self.place, self.place.socket_dir)
        makers: dict[str, Callable[[Place], Server]] = {"postgres": Postgres, "valkey": Valkey}
        for name in self.wanted:
            server = makers[name](self.place)
            self.servers.append(server)
            server.start()
        self._write("ready")

    def _restart_the_dead(self) -> None:
        dead = [s for s in self.servers if s.process is None or s.process.poll() is not None]
        if not dead:
            return
        now = time.monotonic()
        self.restarts = self.restarts + 1 if now - self.last_restart < RESTART_WINDOW_SECONDS else 1
        self.last_restart = now
        if self.restarts > MOST_RESTARTS:
            raise EmbeddedError(
                f"{dead[0].name} keeps ending: see the logs in {self.place.control}"
            )
        self._write("starting")
        for server in dead:
            status = server.process.returncode if server.process else None
            sys.stderr.write(f"{server.name} ended with status {status}: starting it again\n")
            server.start()
        self._write("ready")

    def _stop_soon(self, _number: int, _frame: FrameType | None) -> None:
        self.asked_to_stop = True

    def _write(self, status: str, message: str = "") -> None:
        pids = {s.name: s.process.pid for s in self.servers if s.process is not None}
        state = {
            "status": status,
            "message": message,
            "keeper": os.getpid(),
            "services": pids,
            "root": str(self.place.root),
        }
        draft = self.place.control / "state.json.draft"
        draft.write_text(json.dumps(state, indent=1), encoding="utf-8")
        draft.rename(self.place.control / "state.json")


if __name__ == "__main__":
    sys.exit(Keeper(find_place(Path(sys.argv[1])), sys.argv[2:]).run())
