"""Delivers what the coordinators of this node's runs left in their outboxes, to the last event.

A coordinator only writes its outbox; the agent, which outlives it, sends. Used from one thread.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

from runtime.agent.memory import Memory
from runtime.delivery import Deliverer
from runtime.events import coordinator_source
from runtime.outbox import Outbox, OutboxError

OUTBOX_NAME: Final = "outbox.db"
log = structlog.get_logger("runtime.agent.deliveries")


class RunDeliveries:
    """One deliverer a run, from the moment its outbox appears until the run is over and nothing
    is left to send; an outbox found at start with something in it is taken up likewise."""

    def __init__(self, *, cluster: str, folder: Path, server: str | None, memory: Memory) -> None:
        self._cluster = cluster
        self._folder = folder
        self._server = server
        self._memory = memory
        self._open: dict[str, tuple[Outbox, Deliverer | None]] = {}
        self._unusable: set[str] = set()
        self._leftovers = {path.parent.name for path in folder.glob(f"*/{OUTBOX_NAME}")}

    def tick(self, agent_token: str | None) -> None:
        """`agent_token` serves the runs that came without a token of their own."""
        active = {run for run, role in self._memory.assignments if role == "coordinator"}
        for run in (active | self._leftovers) - set(self._open) - self._unusable:
            self._take_up(run, agent_token)
        for run in set(self._open) - active:
            outbox, _deliverer = self._open[run]
            if outbox.pending_count() == 0:
                self._put_down(run)
                self._leftovers.discard(run)
                self._memory.forget_token(run)

    def heads(self) -> dict[str, int]:
        """Source → head sequence, of the outboxes that are open."""
        return {outbox.source: outbox.head() for outbox, _ in self._open.values()}

    def is_alive(self) -> bool:
        return all(sender is None or sender.is_alive() for _, sender in self._open.values())

    def stop(self, flush_seconds: float) -> None:
        for _outbox, deliverer in self._open.values():
            if deliverer is not None:
                deliverer.flush(flush_seconds)
        for run in tuple(self._open):
            self._put_down(run)

    def _take_up(self, run: str, agent_token: str | None) -> None:
        path = self._folder / run / OUTBOX_NAME
        token = self._memory.events_tokens.get(run, agent_token)
        # Its coordinator creates it; without a token there is nothing to be done with it yet.
        if not path.exists() or (self._server is not None and token is None):
            return
        try:
            outbox = Outbox(path, coordinator_source(self._cluster, run))
        except OutboxError as error:
            self._unusable.add(run)
            log.exception("delivery.outbox_unusable", run=run, detail=str(error))
            return
        deliverer = None
        if self._server is not None and token is not None:
            deliverer = Deliverer(outbox, self._server, token, name=f"delivery-{run}")
            deliverer.start()
        self._open[run] = (outbox, deliverer)
        self._leftovers.add(run)

    def _put_down(self, run: str) -> None:
        outbox, deliverer = self._open.pop(run)
        if deliverer is not None:
            deliverer.stop()
        outbox.close()
