"""A process's use of the embedded services: the first user starts their keeper, each holds a lock.

The kernel drops a user's shared lock however it dies; the keeper (keeper.py) stops the services
once it can take that lock exclusively. Forked children share their parent's membership.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, Final

from config.embedded.errors import EmbeddedError
from config.embedded.locks import POLL_SECONDS, is_locked, lock_within, locked, open_lock, try_lock
from config.embedded.place import Place

PROJECT: Final = Path(__file__).resolve().parents[2]
START_SECONDS: Final = 120.0  # initdb on a slow disk, at the first start
STOP_SECONDS: Final = 40.0


class _Membership:
    """This process's lock descriptors and the keeper it started, if it did."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.users: dict[Path, int] = {}
        self.keepers: dict[Path, subprocess.Popen[bytes]] = {}


_membership = _Membership()


def join(place: Place, *, services: tuple[str, ...] = ("postgres", "valkey")) -> dict[str, Any]:
    """Use the services until `leave` or the end of this process; start them if none runs.

    Returns the keeper's state (pids, sockets). Cheap when they run already. Raises EmbeddedError.
    """
    with _membership.guard:
        child = _membership.keepers.get(place.control)
        if child is not None and child.poll() is not None:
            del _membership.keepers[place.control]
        if place.control in _membership.users and is_locked(place.control / "keeper.lock"):
            return _await_ready(place, services)
        with locked(place.control / "start.lock", timeout_seconds=START_SECONDS):
            _enter(place)
            if not is_locked(place.control / "keeper.lock"):
                _start_keeper(place, services)
            return _await_ready(place, services)


def leave(place: Place) -> None:
    """Stop using the services; the last to leave waits until they are gone."""
    with _membership.guard:
        descriptor = _membership.users.pop(place.control, None)
        if descriptor is None:
            return
        os.close(descriptor)
        if not _somebody_stays(place):
            _await_gone(place)
        child = _membership.keepers.pop(place.control, None)
        if child is not None:
            child.poll()


def state(place: Place) -> dict[str, Any] | None:
    """What the keeper last wrote: status, pids, sockets; None where none runs."""
    if not is_locked(place.control / "keeper.lock"):
        return None
    return _read_state(place)


def keeper_in_use(place: Place) -> int | None:
    """The keeper's pid while it serves another process than this one, else None."""
    current = state(place)
    return current["keeper"] if current is not None and _somebody_stays(place) else None


def _enter(place: Place) -> None:
    """Take the shared lock; while a keeper is stopping it holds the lock, so this waits."""
    if place.control in _membership.users:
        return
    path = place.control / "users.lock"
    descriptor = open_lock(path)
    try:
        lock_within(descriptor, path, exclusive=False, timeout_seconds=STOP_SECONDS)
    except BaseException:
        os.close(descriptor)
        raise
    _membership.users[place.control] = descriptor


def _start_keeper(place: Place, services: tuple[str, ...]) -> None:
    (place.control / "state.json").unlink(missing_ok=True)
    with (place.control / "keeper.log").open("ab") as log:
        _membership.keepers[place.control] = subprocess.Popen(
            [sys.executable, "-m", "config.embedded.keeper", str(place.control.parent), *services],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # Ctrl-C at the user's terminal is not meant for the keeper
        )


def _await_ready(place: Place, services: tuple[str, ...]) -> dict[str, Any]:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        current = _read_state(place)
        child = _membership.keepers.get(place.control)
        if current is not None and current["status"] == "ready":
            missing = [name for name in services if name not in current["services"]]
            if missing:
                raise EmbeddedError(
                    f"the embedded services run without {missing[0]}: end the processes that "
                    "use them with other settings first"
                )
            return current
        if current is not None and current["status"] == "failed":
            raise EmbeddedError(current["message"])
        if child is not None and child.poll() is not None:
            raise EmbeddedError(
                f"the keeper of the embedded services ended with status {child.returncode}: "
                f"see {place.control / 'keeper.log'}"
            )
        time.sleep(POLL_SECONDS)
    raise EmbeddedError(
        f"the embedded services did not start within {START_SECONDS:.0f} s: "
        f"see the logs in {place.control}"
    )


def _somebody_stays(place: Place) -> bool:
    """Whether another process (a forked child too) still holds the shared lock."""
    descriptor = open_lock(place.control / "users.lock")
    try:
        return not try_lock(descriptor, exclusive=True)
    finally:
        os.close(descriptor)


def _await_gone(place: Place) -> None:
    deadline = time.monotonic() + STOP_SECONDS
    child = _membership.keepers.get(place.control)
    while time.monotonic() < deadline:
        ended = child is None or child.poll() is not None
        if ended and not is_locked(place.control / "keeper.lock"):
            return
        time.sleep(POLL_SECONDS)


def _read_state(place: Place) -> dict[str, Any] | None:
    try:
        text = (place.control / "state.json").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    current: dict[str, Any] = json.loads(text)
    return current


@atexit.register
def _leave_all() -> None:
    for control in list(_membership.users):
        leave(Place(control, control, None))
