"""Owns where the embedded services keep their files and which account runs them.

As root PostgreSQL refuses to run, so both run as `nobody`; where that account cannot reach var/,
the data lives in a private folder among the system's temporary files, which var/ remembers.
"""

from __future__ import annotations

import os
import pwd
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from config.embedded.errors import EmbeddedError
from config.embedded.locks import locked

SOCKET_PATH_LIMIT = 107  # bytes in sockaddr_un.sun_path, less the closing zero
POSTGRES_SOCKET = ".s.PGSQL.5432"


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the services run as, where that is not the caller."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Place:
    """`control` belongs to the caller (locks, state, logs); `root` to the account."""

    control: Path
    root: Path
    account: Account | None

    @property
    def postgres_data(self) -> Path:
        return self.root / "postgresql"

    @property
    def socket_dir(self) -> Path:
        return self.root / "run"

    @property
    def valkey_socket(self) -> Path:
        return self.socket_dir / "valkey.sock"

    @property
    def database_url(self) -> str:
        host = str(self.socket_dir).replace("/", "%2F")
        return f"postgresql://unbroken_app@{host}/unbroken"

    @property
    def redis_url(self) -> str:
        return f"unix://{self.valkey_socket}?db=0"


def find_place(var_dir: Path) -> Place:
    """Decide, and remember, where the services of this var/ live. Starts nothing."""
    control = var_dir.absolute() / "services"
    try:
        control.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmbeddedError(f"cannot create {control}: {error.strerror}") from error
    account = unprivileged_account() if os.geteuid() == 0 else None
    data = control / "data"
    longest = len(os.fsencode(data / "run" / POSTGRES_SOCKET))
    if longest <= SOCKET_PATH_LIMIT and reachable(control, account):
        return Place(control, data, account)
    return Place(control, _temporary_root(control, account), account)


def unprivileged_account() -> Account:
    for name in ("nobody", "daemon"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(name, entry.pw_uid, entry.pw_gid)
    raise EmbeddedError(
        "PostgreSQL does not run as root and this machine has no account 'nobody': "
        "run as another user, or set DATABASE_URL and REDIS_URL"
    )


def reachable(path: Path, account: Account | None) -> bool:
    """Whether the account may walk down to `path` (every folder on the way lets it pass)."""
    if account is None:
        return True
    resolved = path.resolve()
    folders = [resolved, *resolved.parents] if resolved.is_dir() else resolved.parents
    return all(_may_enter(folder.stat(), account) for folder in folders)


def _may_enter(status: os.stat_result, account: Account) -> bool:
    if status.st_uid == account.uid:
        return bool(status.st_mode & stat.S_IXUSR)
    if status.st_gid == account.gid:
        return bool(status.st_mode & stat.S_IXGRP)
    return bool(status.st_mode & stat.S_IXOTH)


def _temporary_root(control: Path, account: Account | None) -> Path:
    """The private folder that `control/elsewhere` names, made on first use."""
    note = control / "elsewhere"
    with locked(control / "elsewhere.lock", timeout_seconds=10):
        if note.exists():
            root = Path(note.read_text(encoding="utf-8").strip())
            if _is_private(root, account):
                return root
        root = Path(
            tempfile.mkdtemp(prefix="unbroken-services-")
        )  # mode 700, a name nobody can guess
        if account is not None:
            os.chown(root, account.uid, account.gid)
        if not reachable(root.parent, account):
            root.rmdir()
            raise EmbeddedError(
                f"neither {control} nor {root.parent} can be reached by the account "
                f"'{account.name if account else ''}': move the project, or set TMPDIR"
            )
        note.write_text(f"{root}\n", encoding="utf-8")
    sys.stderr.write(f"unbroken: the data of the embedded services is kept in {root}\n")
    return root


def _is_private(root: Path, account: Account | None) -> bool:
    """A folder of the account's own that others cannot enter, and no link."""
    try:
        status = root.lstat()
    except OSError:
        return False
    owner = account.uid if account else os.geteuid()
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == owner
        and stat.S_IMODE(status.st_mode) & 0o077 == 0
    )
