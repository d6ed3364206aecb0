"""The outbox: sequences without a hole, bytes that never change, one event a key."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from runtime.events import canonical_json, problems_of
from runtime.outbox import Answer, Outbox, OutboxError, OutboxSealedError

SOURCE = "/clusters/c1/runs/r1/coordinator"
NOON_US = 1_777_636_800_000_000  # 2026-05-01T12:00:00Z


def open_outbox(folder: Path, source: str = SOURCE) -> Outbox:
    return Outbox(folder / "outbox.db", source, clock_us=lambda: NOON_US, boot_id="boot-1")


def test_a_new_outbox_holds_source_opened_and_nothing_else(tmp_path: Path) -> None:
    with open_outbox(tmp_path) as outbox:
        [event] = outbox.pending()

    assert event == {
        "specversion": "1.0",
        "id": event["id"],
        "source": SOURCE,
        "type": "source.opened",
        "subject": "r1",
        "time": "2026-05-01T12:00:00Z",
        "datacontenttype": "application/json",
        "sequence": "1",
        "bootid": "boot-1",
        "data": {},
    }
    assert event["id"][14] == "7"


def test_a_source_s_first_and_last_event_can_be_read_by_the_rules(tmp_path: Path) -> None:
    for source in (SOURCE, "/clusters/c1/nodes/n1/agent"):
        folder = tmp_path / source.replace("/", "_")
        folder.mkdir()
        with open_outbox(folder, source) as outbox:
            outbox.seal()
            edges = outbox.pending()

        assert [problems_of(event) for event in edges] == [[], []]


def test_reopening_goes_on_where_it_was(tmp_path: Path) -> None:
    with open_outbox(tmp_path) as outbox:
        outbox.append("run.progress", {"run": "r1", "epoch": 1}, NOON_US + 1)

    with open_outbox(tmp_path) as outbox:
        event = outbox.append("run.progress", {"run": "r1", "epoch": 2})

        assert event["sequence"] == "3"
        assert event["subject"] == "r1"
        assert outbox.head() == 3
        assert [e["sequence"] for e in outbox.pending()] == ["1", "2", "3"]
        assert outbox.pending()[1]["time"] == "2026-05-01T12:00:00.000001Z"


def test_stored_bytes_are_the_canonical_event_and_do_not_change(tmp_path: Path) -> None:
    with open_outbox(tmp_path) as outbox:
        event = outbox.append("run.progress", {"run": "r1", "text": "é", "loss": 0.1})
        before = outbox.pending_stored()

    with open_outbox(tmp_path) as outbox:
        after = outbox.pending_stored()

    assert before == after
    assert after[1].body == canonical_json(event)
    assert after[1].event_id == event["id"]


def test_a_repeated_key_stores_nothing_and_returns_the_first(tmp_path: Path) -> None:
    with open_outbox(tmp_path) as outbox:
        first = outbox.append("run.started", {"run": "r1", "spares": 2}, key="started")
    with open_outbox(tmp_path) as outbox:
        again = outbox.append("run.started", {"run": "r1", "spares": 9}, key="started")

        assert again == first
        assert outbox.head() == 2
        with pytest.raises(OutboxError, match=r"'started' already names a run\.started"):
            outbox.append("run.finished", {"run": "r1"}, key="started")
        assert outbox.head() == 2


def test_acknowledged_events_are_no_longer_pending_and_keep_their_answer(tmp_path: Path) -> None:
    with open_outbox(tmp_path) as outbox:
        one = outbox.append("run.progress", {"run": "r1"})
        two = outbox.append("run.progress", {"run": "r1"})
        outbox.acknowledge([one["id"], "nobody"])
        outbox.record_answers(
            [Answer(one["id"], "conflict"), Answer(two["id"], "quarantined", "no such run")]
        )

        assert [event["type"] for event in outbox.pending()] == ["source.opened"]
        assert outbox.pending_count() == 1
        assert outbox.answers() == [
            Answer(one["id"], "accepted", None),
            Answer(two["id"], "quarantined", "no such run"),
        ]


def test_a_sealed_source_takes_nothing_more(tmp_path: Path) -> None:
    with open_outbox(tmp_path) as outbox:
        outbox.append("run.progress", {"run": "r1"}, key="p1")
        sealed = outbox.seal()

        assert sealed["sequence"] == "3"
        assert sealed["data"] == {"last_sequence": 3}
        assert outbox.seal() == sealed
        assert outbox.append("run.progress", {"run": "r1"}, key="p1")["sequence"] == "2"
        with pytest.raises(OutboxSealedError):
            outbox.append("run.progress", {"run": "r1"})
        assert outbox.head() == 3


def test_refuses_the_file_of_another_source(tmp_path: Path) -> None:
    open_outbox(tmp_path).close()

    with pytest.raises(OutboxError, match="holds the events of /clusters/c1/runs/r1/coordinator"):
        open_outbox(tmp_path, "/clusters/c1/runs/r2/coordinator")


def test_refuses_a_file_that_is_no_outbox(tmp_path: Path) -> None:
    (tmp_path / "outbox.db").write_bytes(b"not a database " * 100)

    with pytest.raises(OutboxError, match=r"cannot open the outbox .*outbox\.db"):
        open_outbox(tmp_path)


def test_a_bad_event_leaves_no_trace(tmp_path: Path) -> None:
    with open_outbox(tmp_path) as outbox:
        with pytest.raises(ValueError, match="an event may have 65536"):
            outbox.append("run.progress", {"run": "r1", "text": "x" * 65536})
        with pytest.raises(ValueError, match="JSON"):
            outbox.append("run.progress", {"run": "r1", "loss": float("nan")})
        with pytest.raises(ValueError, match="written by the outbox itself"):
            outbox.append("source.opened", {})

        assert outbox.head() == 1
        assert outbox.append("run.progress", {"run": "r1"})["sequence"] == "2"


def test_pending_stored_stops_at_its_size_but_gives_one(tmp_path: Path) -> None:
    with open_outbox(tmp_path) as outbox:
        for index in range(4):
            outbox.append("run.progress", {"run": "r1", "text": "x" * 1000, "index": index})

        assert [e.sequence for e in outbox.pending_stored(limit=3)] == [1, 2, 3]
        assert [e.sequence for e in outbox.pending_stored(max_bytes=3000)] == [1, 2, 3]
        assert [e.sequence for e in outbox.pending_stored(max_bytes=10)] == [1]


def test_threads_and_a_second_handle_share_one_sequence(tmp_path: Path) -> None:
    with open_outbox(tmp_path) as outbox, open_outbox(tmp_path) as other:

        def write(target: Outbox, name: str) -> None:
            for index in range(25):
                target.append("run.progress", {"run": name, "index": index})

        threads = [
            threading.Thread(target=write, args=(target, f"{name}-{target is other}"))
            for name in "ab"
            for target in (outbox, other)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        events = outbox.pending()

    assert [event["sequence"] for event in events] == [str(n) for n in range(1, 102)]
    by_run: dict[str, list[int]] = {}
    for event in events[1:]:
        by_run.setdefault(event["data"]["run"], []).append(event["data"]["index"])
    assert set(by_run) == {"a-False", "a-True", "b-False", "b-True"}
    assert all(indexes == list(range(25)) for indexes in by_run.values())


def test_listeners_hear_of_each_append(tmp_path: Path) -> None:
    heard: list[int] = []
    with open_outbox(tmp_path) as outbox:
        outbox.on_append(lambda: heard.append(outbox.head()))
        outbox.append("run.progress", {"run": "r1"})
        outbox.seal()

    assert heard == [2, 3]


def test_events_hold_what_cloudevents_readers_expect(tmp_path: Path) -> None:
    with open_outbox(tmp_path) as outbox:
        outbox.append("health.finding", {"node": "n1"}, subject="GPU-1")
        body = json.loads(outbox.pending_stored()[1].body)

    assert body["subject"] == "GPU-1"
    assert {"specversion", "id", "source", "type", "time", "sequence", "bootid"} <= set(body)
