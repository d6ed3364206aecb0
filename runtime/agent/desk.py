"""Takes the service's orders one by one, has them carried out, and remembers how far each got."""

from __future__ import annotations

from collections.abc import Callable, Collection

import structlog

from runtime.agent.memory import Memory
from runtime.agent.orders import (
    Assignment,
    Check,
    Done,
    OrderError,
    Refuse,
    Repeat,
    Start,
    StopRun,
    decide,
    parse_order,
)
from runtime.agent.runs import RunError, RunKeeper

log = structlog.get_logger("runtime.agent.desk")


class OrderDesk:
    """`specs` are the digests allowed here; `check_now` asks for a health round."""

    def __init__(
        self,
        specs: Collection[str],
        memory: Memory,
        keeper: RunKeeper,
        check_now: Callable[[], None],
    ) -> None:
        self._specs = specs
        self._memory = memory
        self._keeper = keeper
        self._check_now = check_now

    def obey(self, entry: object, now_us: int) -> bool:
        """Carry out an order, or refuse it; whether there is news of it for the service."""
        try:
            order = parse_order(entry)
        except OrderError as error:
            log.error("order.unreadable", detail=str(error))  # noqa: TRY400  (it is input)
            return False
        action = decide(
            order,
            now_us=now_us,
            known=self._memory.orders,
            specs=self._specs,
            running=self._keeper.running(),
        )
        match action:
            case Repeat():
                # The service has not heard; the next beat says it again, at its usual time.
                self._memory.report_again(order.order_id)
                return False
            case Refuse(detail, state):
                self._memory.record(order.order_id, state, detail)
                log.warning("order.refused", order=order.order_id, kind=order.kind, detail=detail)
            case Start(assignment):
                self._start(order.order_id, assignment)
            case StopRun(run, role):
                self._memory.record(order.order_id, "acknowledged")
                was_here = self._keeper.stop(run, role)
                self._memory.record(
                    order.order_id, "completed", None if was_here else "it was not here"
                )
            case Done(detail):
                self._memory.record(order.order_id, "completed", detail)
            case Check():
                self._check_now()
                self._memory.record(order.order_id, "completed")
        return True

    def _start(self, order_id: str, assignment: Assignment) -> None:
        self._memory.record(order_id, "acknowledged")
        try:
            self._keeper.start(assignment)
        except RunError as error:
            self._memory.record(order_id, "failed", str(error))
        else:
            self._memory.record(order_id, "completed")
            log.info("order.started", order=order_id, run=assignment.run, role=assignment.role)
