"""Keeps one disposable probe child, asks it for readings, and replaces it when a call hangs.

It never calls NVML in its own process. What it could not see it reports as blind, by GPU and by
the name of the call; it draws no conclusion about a GPU's health.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from runtime.health.readings import Blind, GpuReading, NodeReading

CHECK: Final = "nvml"
_ROOT: Final = Path(__file__).resolve().parents[2]  # where the child finds this package
log = structlog.get_logger("runtime.health.prober")


@dataclass(frozen=True, slots=True)
class ProberSettings:
    """Bounds in seconds. A hang is known after start_seconds + answer_seconds at the latest."""

    start_seconds: float = 8.0
    answer_seconds: float = 4.0
    kill_seconds: float = 1.0
    hung_gpu_retry_seconds: float = 60.0
    longest_restart_seconds: float = 30.0
    # A child stuck in the kernel survives SIGKILL; more than a few of them help nobody.
    undead_limit: int = 3


@dataclass(frozen=True, slots=True)
class _Hung:
    blind: Blind
    retry_at: float  # monotonic seconds


class ProbeFailedError(Exception):
    """The child gave no answer: which call it was in, on which GPU, and what is known of it."""

    def __init__(self, slot: int | None, function: str | None, reason: str) -> None:
        super().__init__(reason)
        self.slot = slot
        self.function = function
        self.reason = reason


class Prober:
    """Used by one thread, which must live as long as the child is wanted: the kernel ends the
    child when the thread that started it ends.

    `environment` is laid over the agent's own, for the child alone (LD_LIBRARY_PATH, say).
    """

    def __init__(
        self,
        environment: Mapping[str, str] | None = None,
        settings: ProberSettings | None = None,
    ) -> None:
        self.settings = settings or ProberSettings()
        self._environment = {**os.environ, **(environment or {})}
        path = (str(_ROOT), self._environment.get("PYTHONPATH", ""))
        self._environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
        self._child: _Child | None = None
        self._undead: list[subprocess.Popen[bytes]] = []
        self._hung: dict[int, _Hung] = {}
        self._uuids: dict[int, str] = {}
        self._failures = 0
        self._start_at = 0.0
        self._why_blind = Blind(CHECK, None, None, None, "no reading yet")

    @property
    def child_pid(self) -> int | None:
        return None if self._child is None else self._child.process.pid

    def sample(self) -> NodeReading:
        """One round; takes start_seconds + 2 * answer_seconds at the most. Never raises."""
        now = time.monotonic()
        self._hung = {slot: hung for slot, hung in self._hung.items() if hung.retry_at > now}
        if self._child is None and now < self._start_at:
            return NodeReading(blind=(self._why_blind,))
        # The second try is for the other GPUs, once the one that hangs is known.
        for _try in range(2):
            try:
                return self._ask()
            except ProbeFailedError as failure:
                self._drop_child()
                blind = self._blame(failure)
                if failure.slot is None:
                    break
        return NodeReading(blind=self._with_hung((blind,)))

    def stop(self) -> None:
        """End the child; one that the kernel holds is left to it."""
        self._drop_child()

    def _ask(self) -> NodeReading:
        if self._child is None:
            self._child = self._start()
        answer = self._child.ask(sorted(self._hung), self.settings.answer_seconds)
        if "failed" in answer:
            failed = answer["failed"]
            raise ProbeFailedError(None, failed["function"], failed["reason"])
        self._failures = 0
        gpus = tuple(GpuReading.from_json(entry) for entry in answer["gpus"])
        self._uuids.update({gpu.index: gpu.uuid for gpu in gpus if gpu.uuid is not None})
        blind = tuple(
            Blind(CHECK, gpu.uuid, gpu.index, function, reason)
            for gpu in gpus
            for function, reason in gpu.problems.items()
        )
        return NodeReading(driver=answer["driver"], gpus=gpus, blind=self._with_hung(blind))

    def _with_hung(self, blind: tuple[Blind, ...]) -> tuple[Blind, ...]:
        hung = tuple(entry.blind for entry in self._hung.values() if entry.blind not in blind)
        return blind + hung

    def _start(self) -> _Child:
        self._undead = [process for process in self._undead if process.poll() is None]
        if len(self._undead) >= self.settings.undead_limit:
            pids = ", ".join(str(process.pid) for process in self._undead)
            raise ProbeFailedError(None, None, f"earlier probes cannot be killed: pids {pids}")
        child = _Child(self._environment)
        try:
            child.wait_ready(self.settings.start_seconds)
        except ProbeFailedError:
            self._child = child
            raise
        return child

    def _drop_child(self) -> None:
        if self._child is None:
            return
        process, self._child = self._child.process, None
        process.kill()
        try:
            process.wait(self.settings.kill_seconds)
        except subprocess.TimeoutExpired:
            self._undead.append(process)
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()

    def _blame(self, failure: ProbeFailedError) -> Blind:
        uuid = None if failure.slot is None else self._uuids.get(failure.slot)
        blind = Blind(CHECK, uuid, failure.slot, failure.function, failure.reason)
        log.warning("health.probe_failed", **blind.as_json())
        now = time.monotonic()
        if failure.slot is not None:
            retry_at = now + self.settings.hung_gpu_retry_seconds
            self._hung[failure.slot] = _Hung(blind, retry_at)
        else:
            # Starting an interpreter each second on a node without a driver costs a core's tenth.
            pause_seconds = min(2.0**self._failures, self.settings.longest_restart_seconds)
            self._failures += 1
            self._start_at = now + pause_seconds
            self._why_blind = blind
        return blind


class _Child:
    """One probe process and the lines it writes."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "runtime.health.probe", str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
            bufsize=0,
        )
        self._buffer = b""
        self._samples = 0
        self._at: tuple[int | None, str | None] = (None, None)

    def wait_ready(self, timeout_seconds: float) -> None:
        self._until("ready", None, time.monotonic() + timeout_seconds)

    def ask(self, skip: list[int], timeout_seconds: float) -> dict[str, Any]:
        self._samples += 1
        self._at = (None, None)
        request = json.dumps({"sample": self._samples, "skip": skip}).encode() + b"\n"
        try:
            os.write(_fd(self.process.stdin), request)
        except OSError as error:
            raise ProbeFailedError(None, None, f"the probe is gone: {error}") from error
        return self._until("sample", self._samples, time.monotonic() + timeout_seconds)

    def _until(self, key: str, value: int | None, deadline: float) -> dict[str, Any]:
        """The message that has `key` (with `value`); raises ProbeFailedError past the deadline."""
        while True:
            line, separator, rest = self._buffer.partition(b"\n")
            if not separator:
                self._read_more(deadline)
                continue
            self._buffer = rest
            message: dict[str, Any] = json.loads(line)
            if "at" in message:
                slot, function = message["at"]
                self._at = (slot, function)
            elif key in message and value in (None, message[key]):
                return message

    def _read_more(self, deadline: float) -> None:
        slot, function = self._at
        descriptor = _fd(self.process.stdout)
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        if not poller.poll(max(0.0, deadline - time.monotonic()) * 1000):
            raise ProbeFailedError(slot, function, "hung: the call did not come back in time")
        chunk = os.read(descriptor, 65536)
        if not chunk:
            raise ProbeFailedError(slot, function, f"the probe died in the call ({self._fate()})")
        self._buffer += chunk

    def _fate(self) -> str:
        try:
            return f"exit status {self.process.wait(1.0)}"
        except subprocess.TimeoutExpired:
            return "its pipe is closed and it still runs"


def _fd(pipe: Any) -> int:
    return int(pipe.fileno())
