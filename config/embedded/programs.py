"""Starts programs as the embedded services' account, tied to their keeper's life."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from config.embedded.place import Place

_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def clean_environment() -> dict[str, str]:
    """The caller's environment less what would steer PostgreSQL (PGDATA, PGPORT …)."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


def prepare_folder(place: Place, folder: Path) -> None:
    """A folder of the account's own, mode 700."""
    folder.mkdir(parents=True, exist_ok=True)
    if place.account is not None:
        os.chown(folder, place.account.uid, place.account.gid)
    folder.chmod(0o700)


def run(place: Place, argv: Sequence[str], *, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program to its end as the account; its output comes back."""
    account = place.account
    return subprocess.run(
        argv,
        input=stdin,
        capture_output=True,
        text=True,
        cwd=place.root,
        env=clean_environment(),
        timeout=120,
        user=account.uid if account else None,
        group=account.gid if account else None,
        extra_groups=[] if account else None,
    )


def start(
    place: Place, argv: Sequence[str], *, log: Path, when_orphaned: signal.Signals
) -> subprocess.Popen[bytes]:
    """Start a server as the account; the kernel sends it `when_orphaned` if we are killed."""
    account = place.account

    def tie_to_parent() -> None:
        # After the change of user, which would clear it; the keeper has one thread only.
        if _libc is not None:
            _libc.prctl(_PR_SET_PDEATHSIG, int(when_orphaned), 0, 0, 0)

    with log.open("ab") as output:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=place.root,
            env=clean_environment(),
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            preexec_fn=tie_to_parent,
        )
