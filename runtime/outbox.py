"""A durable, sequenced store of the events one source has to deliver; it sends nothing itself.

An event is in it for good once `append` returned (SQLite, WAL, synchronous=FULL): a kill -9 or a
power cut afterwards loses nothing, one before leaves nothing. Sequences run from "1" without a
hole, the first event of a source is `source.opened`, and the bytes of an event never change, so
that whatever is sent twice is the same twice. Several threads, and several processes, may append.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, cast

from runtime.events import Event, EventType, canonical_json, make_event, uuid7

MAX_EVENT_BYTES: Final = 64 * 1024
BUSY_SECONDS: Final = 10.0
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")
_SCHEMA: Final = (
    "CREATE TABLE IF NOT EXISTS identity (source TEXT NOT NULL) STRICT",
    # status: null while undelivered, else what the service answered for the event
    """CREATE TABLE IF NOT EXISTS events (
        sequence INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        type TEXT NOT NULL,
        key TEXT UNIQUE,
        body BLOB NOT NULL,
        status TEXT,
        detail TEXT
    ) STRICT""",
    "CREATE INDEX IF NOT EXISTS events_pending ON events (sequence) WHERE status IS NULL",
)


class OutboxError(Exception):
    """The outbox cannot do what was asked; the message says what and in which file."""


class OutboxFullError(OutboxError):
    """No room on the disk: the event was not stored and nothing half-written stays behind."""


class OutboxSealedError(OutboxError):
    """The source has sent its last event."""


@dataclass(frozen=True, slots=True)
class StoredEvent:
    """An event as it lies in the outbox: `body` is what goes on the wire, byte for byte."""

    sequence: int
    event_id: str
    body: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """What the service said about one event."""

    event_id: str
    status: str
    detail: str | None = None


def _wall_clock_us() -> int:
    return time.time_ns() // 1000


def read_boot_id() -> str | None:
    """The kernel's id of this boot; None where there is none to read."""
    try:
        return _BOOT_ID.read_text(encoding="ascii").strip() or None
    except OSError:
        return None


class Outbox:
    """The events of one source, in one file.

    Raises OutboxError when the file cannot be opened or belongs to another source.
    """

    def __init__(
        self,
        path: str | Path,
        source: str,
        *,
        clock_us: Callable[[], int] = _wall_clock_us,
        boot_id: str | None = None,
    ) -> None:
        self.path = Path(path)
        self.source = source
        self._clock_us = clock_us
        self._boot_id = boot_id if boot_id is not None else read_boot_id()
        self._lock = threading.RLock()
        self._listeners: list[Callable[[], None]] = []
        with _explained("open", self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._db = sqlite3.connect(
                self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
        try:
            self._prepare()
        except BaseException:
            self._db.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def append(
        self,
        event_type: EventType,
        data: Mapping[str, Any],
        time_us: int | None = None,
        *,
        key: str | None = None,
        subject: str | None = None,
    ) -> Event:
        """Store an event; it is durable when this returns.

        `key` makes the append idempotent: a second one with the same key stores nothing and
        returns the first event, as it was. `subject` defaults to the run in `data`.
        Raises OutboxSealedError, OutboxFullError, OutboxError, and ValueError for data that JSON
        cannot hold or an event above 64 KiB or of a type
        that only the outbox writes.
        """
        if event_type in ("source.opened", "source.sealed"):
            raise ValueError(f"{event_type} is written by the outbox itself")
        with self._lock, _explained("write", self.path), _transaction(self._db):
            known = _event_of_key(self._db, key)
            if known is None:
                if _event_of_key(self._db, "source.sealed") is not None:
                    raise OutboxSealedError(
                        f"{self.path}: {self.source} is sealed, it sends nothing more"
                    )
                event = self._insert(event_type, data, time_us, key=key, subject=subject)
            elif known["type"] != event_type:
                raise OutboxError(
                    f"{self.path}: the key {key!r} already names a {known['type']}, "
                    f"it cannot name a {event_type} too"
                )
            else:
                event = known
        self._tell_listeners()
        return event

    def seal(self) -> Event:
        """Store `source.sealed`, the source's last event; sealing again returns the same one."""
        with self._lock, _explained("write", self.path), _transaction(self._db):
            event = _event_of_key(self._db, "source.sealed")
            if event is None:
                data = {"last_sequence": _head_of(self._db) + 1}
                event = self._insert(
                    "source.sealed", data, None, key="source.sealed", subject=self._owner()
                )
        self._tell_listeners()
        return event

    def pending(self, limit: int = 1000) -> list[Event]:
        """The oldest undelivered events, in order of sequence."""
        return [_load(stored.body) for stored in self.pending_stored(limit)]

    def pending_stored(self, limit: int = 1000, max_bytes: int | None = None) -> list[StoredEvent]:
        """As `pending`, with the stored bytes; stops before `max_bytes`, but gives one at least."""
        chosen: list[StoredEvent] = []
        size = 0
        with self._lock, _explained("read", self.path):
            rows = self._db.execute(
                "SELECT sequence, id, body FROM events WHERE status IS NULL"
                " ORDER BY sequence LIMIT ?",
                (limit,),
            )
            for sequence, event_id, body in rows:
                size += len(body) + 1
                if chosen and max_bytes is not None and size > max_bytes:
                    break
                chosen.append(StoredEvent(sequence, event_id, body))
            rows.close()
        return chosen

    def pending_count(self) -> int:
        with self._lock, _explained("read", self.path):
            row = self._db.execute("SELECT count(*) FROM events WHERE status IS NULL").fetchone()
            return int(row[0])

    def acknowledge(self, ids: Iterable[str]) -> None:
        """Mark events as accepted by the service; unknown and repeated ids change nothing."""
        self.record_answers([Answer(event_id, "accepted") for event_id in ids])

    def record_answers(self, answers: Iterable[Answer]) -> None:
        """Keep what the service said of each event; the first answer of an event stays."""
        rows = [(answer.status, answer.detail, answer.event_id) for answer in answers]
        with self._lock, _explained("write", self.path), _transaction(self._db):
            self._db.executemany(
                "UPDATE events SET status = ?, detail = ? WHERE id = ? AND status IS NULL", rows
            )

    def answers(self) -> list[Answer]:
        """Every answer kept, in order of sequence."""
        with self._lock, _explained("read", self.path):
            rows = self._db.execute(
                "SELECT id, status, detail FROM events WHERE status IS NOT NULL ORDER BY sequence"
            ).fetchall()
        return [Answer(*row) for row in rows]

    def history(self, event_type: EventType) -> list[Event]:
        """Every event of the type, delivered or not, in order of sequence."""
        with self._lock, _explained("read", self.path):
            rows = self._db.execute(
                "SELECT body FROM events WHERE type = ? ORDER BY sequence", (event_type,)
            ).fetchall()
        return [_load(row[0]) for row in rows]

    def head(self) -> int:
        """The sequence of the newest event; 1 right after the source was opened."""
        with self._lock, _explained("read", self.path):
            return _head_of(self._db)

    def on_append(self, listener: Callable[[], None]) -> None:
        """Call `listener` after each append of this process; it must return at once."""
        with self._lock:
            self._listeners.append(listener)

    def close(self) -> None:
        """Close the file; what is in it stays deliverable."""
        with self._lock:
            self._db.close()

    def _prepare(self) -> None:
        # One transaction: a kill in here leaves no outbox at all, never one without its
        # first event.
        with _explained("open", self.path):
            _use_wal(self._db, self.path)
            with _transaction(self._db):
                for statement in _SCHEMA:
                    self._db.execute(statement)
                row = self._db.execute("SELECT source FROM identity").fetchone()
                if row is None:
                    self._db.execute("INSERT INTO identity VALUES (?)", (self.source,))
                    self._insert(
                        "source.opened", {}, None, key="source.opened", subject=self._owner()
                    )
                elif row[0] != self.source:
                    raise OutboxError(
                        f"{self.path} holds the events of {row[0]}, not of {self.source}"
                    )

    def _owner(self) -> str | None:
        """The run or node that the source speaks for: without a subject an event is invalid."""
        parts = self.source.split("/")
        return parts[-2] if len(parts) > 2 else None

    def _insert(
        self,
        event_type: EventType,
        data: Mapping[str, Any],
        time_us: int | None,
        *,
        key: str | None,
        subject: str | None,
    ) -> Event:
        now_us = self._clock_us()
        event = make_event(
            event_id=uuid7(max(now_us, 0), os.urandom(10)),
            source=self.source,
            event_type=event_type,
            time_us=now_us if time_us is None else time_us,
            data=data,
        )
        sequence = _head_of(self._db) + 1
        event["sequence"] = str(sequence)
        if self._boot_id is not None:
            event["bootid"] = self._boot_id
        if subject is not None:
            event["subject"] = subject
        body = canonical_json(event)
        if len(body) > MAX_EVENT_BYTES:
            raise ValueError(
                f"a {event_type} of {len(body)} bytes: an event may have {MAX_EVENT_BYTES}"
            )
        self._db.execute(
            "INSERT INTO events (sequence, id, type, key, body) VALUES (?, ?, ?, ?, ?)",
            (sequence, event["id"], event_type, key, body),
        )
        return _load(body)

    def _tell_listeners(self) -> None:
        for listener in tuple(self._listeners):
            listener()


def _event_of_key(db: sqlite3.Connection, key: str | None) -> Event | None:
    if key is None:
        return None
    row = db.execute("SELECT body FROM events WHERE key = ?", (key,)).fetchone()
    return None if row is None else _load(row[0])


def _head_of(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT coalesce(max(sequence), 0) FROM events").fetchone()[0])


def _use_wal(db: sqlite3.Connection, path: Path) -> None:
    mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
    if mode != "wal":
        raise OutboxError(f"{path}: this file system cannot hold a WAL ({mode})")
    db.execute("PRAGMA synchronous = FULL")


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # SQLite itself rolls back on some errors, a full disk among them.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def _explained(verb: str, path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as error:
        kind = OutboxFullError if _is_out_of_room(error) else OutboxError
        raise kind(f"cannot {verb} the outbox {path}: {error}") from error
    except OSError as error:
        raise OutboxError(f"cannot {verb} the outbox {path}: {error}") from error


def _is_out_of_room(error: sqlite3.Error) -> bool:
    # A limit on file size surfaces as an error of the write call, a full disk as FULL.
    code = getattr(error, "sqlite_errorcode", None)
    return code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE)


def _load(body: bytes) -> Event:
    return cast("Event", json.loads(body))
