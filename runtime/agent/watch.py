"""The thread that does the health rounds and makes each finding durable before it is acted on."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, cast

import structlog

from runtime.events import HealthFinding
from runtime.health.prober import Prober
from runtime.health.rounds import ThermalRounds
from runtime.outbox import Outbox, OutboxError

log = structlog.get_logger("runtime.agent.watch")


class HealthWatch:
    """Every `interval_seconds` a round; each finding goes to the outbox, then to `deliver`.

    A full disk does not silence it: the finding is handed on, and stored once there is room.
    """

    def __init__(
        self,
        prober: Prober,
        rounds: ThermalRounds,
        outbox: Outbox,
        deliver: Callable[[HealthFinding], None],
        interval_seconds: float,
    ) -> None:
        self._prober = prober
        self._rounds = rounds
        self._outbox = outbox
        self._deliver = deliver
        self._interval_seconds = interval_seconds
        self._unstored: list[tuple[HealthFinding, int]] = []
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="health", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def hurry(self) -> None:
        """Do a round now."""
        self._wake.set()

    def stop(self, timeout_seconds: float) -> None:
        """The probe child ends with this thread, or with the process when a call hangs."""
        self._stop.set()
        self._wake.set()
        self._thread.join(timeout_seconds)

    def brief(self) -> tuple[str | None, list[dict[str, Any]], list[dict[str, Any]]]:
        """(driver, GPUs, blind) of the last round, as a heartbeat says it."""
        last = self._rounds.last
        severities = self._rounds.severities
        gpus = [
            {
                "uuid": gpu.uuid,
                "serial": gpu.serial,
                "pci_bus_id": gpu.pci_bus_id,
                "slot": gpu.index,
                "name": gpu.name,
                "temperature_celsius": gpu.temperature_celsius,
                "finding": None if gpu.uuid is None else severities.get(gpu.uuid),
            }
            for gpu in last.gpus
        ]
        return last.driver, gpus, [entry.as_json() for entry in last.blind]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                began = time.monotonic()
                self._wake.clear()
                self._round()
                self._wake.wait(max(0.0, began + self._interval_seconds - time.monotonic()))
        finally:
            self._prober.stop()

    def _round(self) -> None:
        now_us = time.time_ns() // 1000
        for finding in self._rounds.round(now_us):
            log.warning(
                "health.finding",
                finding=finding["finding_id"],
                state=finding["state"],
                severity=finding["severity"],
                gpu=finding["gpu"],
            )
            self._unstored.append((finding, now_us))
            self._store()
            self._deliver(finding)
        self._store()

    def _store(self) -> None:
        while self._unstored:
            finding, time_us = self._unstored[0]
            revision = finding["evidence"]["revision"]
            try:
                self._outbox.append(
                    "health.finding",
                    cast("dict[str, Any]", finding),
                    time_us,
                    key=f"{finding['finding_id']}/{revision}",
                    # Without a subject an event is invalid (R15): a node's finding names the node.
                    subject=finding["gpu"]["uuid"] if finding["gpu"] else finding["node"],
                )
            except OutboxError as error:
                log.exception("health.finding_not_stored", detail=str(error))
                return
            self._unstored.pop(0)
