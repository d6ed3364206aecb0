"""What the agent remembers: states to report, assignments, and what a kill cut short."""

from __future__ import annotations

from pathlib import Path

import pytest

from runtime.agent.memory import KEPT_ORDERS, AgentMemoryError, Memory
from runtime.agent.orders import Assignment

RUN = Assignment("r1", "worker", 1, 2, "h:1", "ticket", "spec", {"ranks": 4}, "events-token")


def test_survives_a_restart_and_forgets_what_was_cut_short(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "memory.json")
    memory.record("o1", "completed", "fine")
    memory.record("o2", "acknowledged")
    memory.assign(RUN)

    again = Memory(tmp_path / "memory.json")

    assert again.unreported() == [{"id": "o1", "state": "completed", "detail": "fine"}]
    assert again.assignments == {("r1", "worker"): RUN}
    assert again.events_tokens == {"r1": "events-token"}
    assert (tmp_path / "memory.json").stat().st_mode & 0o777 == 0o600


def test_a_state_that_moved_on_in_flight_is_reported_too(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "memory.json")
    memory.record("o1", "acknowledged")
    sent = memory.unreported()
    memory.record("o1", "completed")

    memory.mark_reported(sent)
    assert [entry["state"] for entry in memory.unreported()] == ["completed"]

    memory.mark_reported(memory.unreported())
    assert memory.unreported() == []
    memory.report_again("o1")
    assert [entry["state"] for entry in memory.unreported()] == ["completed"]


def test_keeps_a_bounded_number_of_ended_orders_and_all_others(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "memory.json")
    memory.save = lambda: None  # type: ignore[method-assign]  # six hundred fsyncs prove nothing
    memory.record("unreported", "completed")
    for number in range(KEPT_ORDERS + 100):
        memory.record(f"o{number}", "completed")
        memory.orders[f"o{number}"].is_reported = True

    assert len(memory.orders) == KEPT_ORDERS
    assert "unreported" in memory.orders
    assert "o0" not in memory.orders


def test_a_full_disk_does_not_end_the_agent(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    memory = Memory(folder / "memory.json")
    memory.record("o1", "completed")
    assert [entry["id"] for entry in memory.unreported()] == ["o1"]

    folder.mkdir()
    memory.assign(RUN)

    assert Memory(folder / "memory.json").unreported() == memory.unreported()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "memory.json"
    for text in ("", "[]", '{"orders": [], "assignments": [{}], "events_tokens": {}}'):
        path.write_text(text, encoding="utf-8")
        with pytest.raises(AgentMemoryError, match="not the memory of an agent"):
            Memory(path)
