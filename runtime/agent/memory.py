"""What the agent remembers over a restart: the orders it has taken and the runs it keeps.

One JSON file, replaced whole with fsync, so that it is always the old memory or the new one.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from runtime.agent.orders import FINAL_STATES, Assignment, OrderState, Role

KEPT_ORDERS: Final = 500
log = structlog.get_logger("runtime.agent.memory")


class AgentMemoryError(Exception):
    """The file is there and cannot be read; the message names it."""


@dataclass(slots=True)
class OrderRecord:
    """How far an order got, and whether the service has heard of that."""

    order_id: str
    state: OrderState
    detail: str | None = None
    is_reported: bool = False


class Memory:
    """Raises AgentMemoryError when the file is there and cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.orders: dict[str, OrderRecord] = {}
        self.assignments: dict[tuple[str, Role], Assignment] = {}
        # Tokens of runs whose events may still lie here when the run is over.
        self.events_tokens: dict[str, str] = {}
        if path.exists():
            self._load()

    def record(self, order_id: str, state: OrderState, detail: str | None = None) -> None:
        """Remember an order's state, to be reported with the next heartbeat."""
        self.orders.pop(order_id, None)
        self.orders[order_id] = OrderRecord(order_id, state, detail)
        self._forget_old()
        self.save()

    def assign(self, assignment: Assignment) -> None:
        self.assignments[(assignment.run, assignment.role)] = assignment
        if assignment.events_token is not None:
            self.events_tokens[assignment.run] = assignment.events_token
        self.save()

    def unassign(self, run: str, role: Role) -> None:
        if self.assignments.pop((run, role), None) is not None:
            self.save()

    def forget_token(self, run: str) -> None:
        if self.events_tokens.pop(run, None) is not None:
            self.save()

    def report_again(self, order_id: str) -> None:
        """The service asks for an order that we know: it has not heard."""
        self.orders[order_id].is_reported = False

    def unreported(self) -> list[dict[str, Any]]:
        return [
            {"id": record.order_id, "state": record.state, "detail": record.detail}
            for record in self.orders.values()
            if not record.is_reported
        ]

    def mark_reported(self, entries: list[dict[str, Any]]) -> None:
        """`entries` as `unreported` gave them; a state that moved on since stays unreported."""
        for entry in entries:
            record = self.orders.get(entry["id"])
            if record is not None and record.state == entry["state"]:
                record.is_reported = True

    def save(self) -> None:
        content = {
            "orders": [asdict(record) for record in self.orders.values()],
            "assignments": [asdict(assignment) for assignment in self.assignments.values()],
            "events_tokens": self.events_tokens,
        }
        fresh = self._path.with_suffix(".new")
        try:
            # The file holds tickets: nobody else may read it.
            descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                json.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)
        except OSError as error:
            # A full disk must not end the runs of this node; the next change saves it all again.
            log.exception("memory.not_saved", path=str(self._path), detail=str(error))

    def _load(self) -> None:
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            for entry in content["orders"]:
                record = OrderRecord(**entry)
                # Cut short by a kill: the service sends it again, and it is done then.
                if record.state in FINAL_STATES:
                    self.orders[record.order_id] = record
            for entry in content["assignments"]:
                assignment = Assignment(**entry)
                self.assignments[(assignment.run, assignment.role)] = assignment
            self.events_tokens = dict(content["events_tokens"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise AgentMemoryError(
                f"{self._path}: not the memory of an agent: {error!r}"
            ) from error

    def _forget_old(self) -> None:
        ended = [
            record.order_id
            for record in self.orders.values()
            if record.is_reported and record.state in FINAL_STATES
        ]
        for order_id in ended[: max(0, len(self.orders) - KEPT_ORDERS)]:
            del self.orders[order_id]
