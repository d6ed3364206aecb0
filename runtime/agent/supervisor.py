"""Starts and ends the workers of one run on this node, through a zygote that has torch imported."""

from __future__ import annotations

import json
import os
import pwd
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Live:
    """A process in a slot that has not ended."""

    worker: str
    slot: str
    incarnation: int
    pid: int


class Supervisor:
    """One zygote and its children; `news` carries what happens to them."""

    def __init__(
        self, argv: list[str], environment: Mapping[str, str], log_folder: Path, user: str | None
    ) -> None:
        """`argv[0]` is the training script; `user` (as root only) is who the workers run as."""
        self._argv = argv
        self._environment = dict(environment)
        self._logs = log_folder
        self._user = user
        self._lock = threading.Lock()
        self._live: dict[str, Live] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._reader: threading.Thread | None = None
        self.news: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def start(self) -> None:
        self._logs.mkdir(parents=True, exist_ok=True)
        if account := self._account():
            os.chown(self._logs, account["user"], account["group"], follow_symlinks=False)
        environment = {
            # A worker has no use for the agent's own secrets.
            **{k: v for k, v in os.environ.items() if not k.startswith("UNBROKEN_AGENT_")},
            # Threads of these libraries would not survive the fork.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "runtime.worker.zygote", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the one who started us
            **self._account(),
        )
        self._reader = threading.Thread(target=self._read, name="zygote-news", daemon=True)
        self._reader.start()

    def _account(self) -> dict[str, Any]:
        """How to become the user that the workers run as; nothing where we are that user."""
        if self._user is None:
            return {}
        account = pwd.getpwnam(self._user)
        if account.pw_uid == os.geteuid():
            return {}
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}

    def spawn(self, slot: str, incarnation: int) -> None:
        worker = f"{slot}#{incarnation}"
        self._order(
            {
                "op": "spawn",
                "worker": worker,
                "slot": slot,
                "incarnation": incarnation,
                "argv": self._argv,
                "environment": {
                    **self._environment,
                    "UNBROKEN_SLOT": slot,
                    "UNBROKEN_INCARNATION": str(incarnation),
                },
                "log": str(self._logs / f"{worker.replace('/', '_')}.log"),
            }
        )

    def kill(self, worker: str) -> None:
        """SIGKILL, also for a stopped process; the news of its end follows."""
        self._order({"op": "kill", "worker": worker})

    def live(self) -> list[Live]:
        with self._lock:
            return list(self._live.values())

    def stop(self) -> None:
        """Ends every worker and the zygote, and waits until they are gone."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()
        if self._reader is not None:
            self._reader.join()

    def _order(self, order: dict[str, Any]) -> None:
        if self._process is None or self._process.stdin is None:
            return
        with self._lock:
            try:
                self._process.stdin.write(json.dumps(order).encode() + b"\n")
                self._process.stdin.flush()
            except (BrokenPipeError, ValueError):
                return  # the zygote ended, and with it every worker; the reader says so

    def _read(self) -> None:
        assert self._process is not None  # noqa: S101 - start made it
        assert self._process.stdout is not None  # noqa: S101
        for line in self._process.stdout:
            message = json.loads(line)
            with self._lock:
                if message["op"] == "spawned":
                    name = message["worker"]
                    self._live[name] = Live(
                        name, message["slot"], message["incarnation"], message["pid"]
                    )
                elif message["op"] == "exited":
                    self._live.pop(message["worker"], None)
            self.news.put(message)
        with self._lock:
            lost, self._live = list(self._live.values()), {}
        for each in lost:
            self.news.put(
                {
                    "op": "exited",
                    "worker": each.worker,
                    "slot": each.slot,
                    "incarnation": each.incarnation,
                    "pid": each.pid,
                    "status": -9,
                }
            )
        self.news.put({"op": "closed"})


def process_state(pid: int) -> str:
    """The state letter of a process (`man 5 proc`), `X` where it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return "X"
    return text.rpartition(")")[2].split()[0]
