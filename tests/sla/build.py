"""Builds cases for the tests of the rules: a contract, and events with running sequence numbers."""

from __future__ import annotations

import datetime as dt
from typing import Any

from sla.domain.case import read_case
from sla.domain.replay import replay
from sla.tables import TABLES

COORDINATOR = "/clusters/k1/runs/r1/coordinator"
AGENT = "/clusters/k1/nodes/n1/agent"
WITNESS = "/clusters/k1/runs/r1/witness"


def at(text: str, seconds: float = 0) -> str:
    """`06-01` → 2025-06-01T12:00:00Z, some seconds later; a longer text is taken as it is."""
    day = f"2025-{text}T12:00:00+00:00" if len(text) == 5 else text.replace("Z", "+00:00")
    moment = dt.datetime.fromisoformat(day) + dt.timedelta(seconds=seconds)
    return moment.isoformat().replace("+00:00", "Z")


class History:
    """A contract of two years from 2025-03-01 (UTC) and what is received about it."""

    def __init__(self, as_of: str = "2026-05-01T00:00:00Z", **terms: Any) -> None:
        self.document: dict[str, Any] = {
            "contract": {
                "number": "C-1",
                "customer": "acme",
                "currency": "USD",
                "timezone": "UTC",
                "starts": "2025-03-01",
                "ends": "2027-03-01",
                "terms": {"year_fee": "1200.00"} | terms,
            },
            "as_of": as_of,
            "events": [],
            "exclusions": [],
            "registered": [],
            "waived_gaps": [],
        }
        self._sequences: dict[str, int] = {}

    @property
    def events(self) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = self.document["events"]
        return events

    def event(
        self,
        event_type: str,
        when: str,
        data: dict[str, Any],
        *,
        source: str = COORDINATOR,
        run: str = "r1",
        **envelope: Any,
    ) -> str:
        """Adds an event and gives its id; `received` is its receipt instant."""
        number = self._sequences[source] = self._sequences.get(source, 0) + 1
        event_id = f"e{len(self.events) + 1:04d}"
        event = {
            "specversion": "1.0",
            "id": event_id,
            "source": source,
            "type": event_type,
            "time": when,
            "subject": run,
            "sequence": str(number),
            "data": {"run": run} | data,
        }
        if "received" in envelope:
            event["recordedtime"] = envelope.pop("received")
        event.update(envelope)
        self.events.append({key: value for key, value in event.items() if value is not ...})
        return event_id

    def failure(self, when: str, epoch: int, committed: int, **more: Any) -> str:
        data = {
            "failure_id": more.pop("failure_id", f"f{len(self.events) + 1:04d}"),
            "epoch": epoch,
            "committed_step": committed,
            "nodes": more.pop("nodes", ["n1"]),
        }
        return self.event("failure.detected", when, data, **more)

    def movement(self, when: str, epoch: int, committed: Any, **more: Any) -> str:
        """A recovery without loss unless `facts` say otherwise; `...` leaves a fact out."""
        facts = {
            "from_epoch": epoch,
            "to_epoch": epoch + 1,
            "committed_step": committed,
            "resumed_step": committed + 1 if isinstance(committed, int) else 1,
            "recomputed_steps": 0,
            "samples_skipped": 0,
            "state_source": "replica",
            "seconds": {"total": 4.5},
        } | more.pop("facts", {})
        data = {name: value for name, value in facts.items() if value is not ...}
        return self.event(more.pop("kind", "recovery.completed"), when, data, **more)

    def migration(self, when: str, epoch: int, committed: int, **more: Any) -> str:
        return self.movement(when, epoch, committed, kind="migration.completed", **more)

    def progress(self, when: str, epoch: int, committed: int, **more: Any) -> str:
        kind = more.pop("kind", "run.progress")
        return self.event(kind, when, {"epoch": epoch, "committed_step": committed}, **more)

    def incident(self, day: str, epoch: int, *, lost: int = 0) -> str:
        """A failure at noon with its recovery five seconds later."""
        first = self.failure(at(day), epoch, epoch * 100)
        facts = {"resumed_step": epoch * 100 + 1 - lost, "recomputed_steps": lost}
        self.movement(at(day, 5), epoch, epoch * 100, facts=facts)
        return first

    def exclude(self, reason: str, recorded_at: str, **names: Any) -> None:
        self.document["exclusions"].append(
            {
                "reason": reason,
                "requested_by": "ann",
                "approved_by": "bob",
                "recorded_at": recorded_at,
                "evidence": "ticket 7",
            }
            | names
        )

    def register(self, reason: str, starts: str, ends: str, registered_at: str, **of: Any) -> None:
        self.document["registered"].append(
            {
                "reason": reason,
                "registered_at": registered_at,
                "starts": starts,
                "ends": ends,
                "requested_by": "ann",
                "approved_by": "bob",
            }
            | of
        )

    def waive(self, source: str, recorded_at: str, **what: Any) -> None:
        self.document["waived_gaps"].append(
            {
                "source": source,
                "requested_by": "ann",
                "approved_by": "bob",
                "recorded_at": recorded_at,
            }
            | what
        )

    def replay(self, as_of: str | None = None) -> dict[str, Any]:
        document = self.document if as_of is None else self.document | {"as_of": as_of}
        return replay(read_case(document, TABLES))

    def incidents(self, as_of: str | None = None) -> list[dict[str, Any]]:
        incidents: list[dict[str, Any]] = self.replay(as_of)["incidents"]
        return incidents

    def verdicts(self, as_of: str | None = None) -> list[tuple[str, list[str], int]]:
        return [
            (incident["verdict"], incident["reasons"], incident["lost_steps"])
            for incident in self.incidents(as_of)
        ]

    def year(self, index: int = 1, as_of: str | None = None) -> dict[str, Any]:
        years: list[dict[str, Any]] = self.replay(as_of)["years"]
        return years[index - 1]
