"""The two servers: how each is prepared, started, known to be ready, and stopped."""

from __future__ import annotations

import os
import pwd
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import Protocol

from config.embedded import programs
from config.embedded.binaries import find_postgres, find_valkey
from config.embedded.errors import EmbeddedError
from config.embedded.place import Place

READY_SECONDS = 60.0
POLL_SECONDS = 0.02

# Roles and database of design.md section 5. Single-user mode takes one statement a line.
BOOTSTRAP = """\
CREATE ROLE unbroken_owner LOGIN CREATEDB NOSUPERUSER NOBYPASSRLS;
CREATE ROLE unbroken_app LOGIN NOSUPERUSER NOCREATEDB NOBYPASSRLS;
CREATE DATABASE unbroken OWNER unbroken_owner;
REVOKE ALL ON DATABASE unbroken FROM PUBLIC;
GRANT CONNECT, TEMPORARY ON DATABASE unbroken TO unbroken_app;
"""

POSTGRES_SETTINGS = {
    "listen_addresses": "",
    "unix_socket_permissions": "0700",
    "port": "5432",
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",
    # Parallel queries need /dev/shm, which containers keep small.
    "max_parallel_workers_per_gather": "0",
    "max_parallel_maintenance_workers": "0",
}


class Server(Protocol):
    name: str
    process: subprocess.Popen[bytes] | None

    def start(self) -> None: ...

    def stop(self) -> None: ...


class Postgres:
    """Peer authentication: only the operating-system user that owns the project gets in."""

    name = "postgres"

    def __init__(self, place: Place) -> None:
        self.place = place
        self.programs = find_postgres(place)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Raises EmbeddedError with the last line of the server's log."""
        data = self.place.postgres_data
        if not data.exists():
            self._create(data)
        if data.stat().st_uid != (self.place.account.uid if self.place.account else os.geteuid()):
            raise EmbeddedError(f"{data} belongs to another account: move it away or run as before")
        self._write_access_rules(data)
        self._bury_predecessor(data)
        settings = {**POSTGRES_SETTINGS, "unix_socket_directories": str(self.place.socket_dir)}
        argv = [str(self.programs / "postgres"), "-D", str(data)]
        argv += [part for key, value in settings.items() for part in ("-c", f"{key}={value}")]
        log = self.place.control / "postgres.log"
        deadline = time.monotonic() + READY_SECONDS
        while not self._start_once(argv, log, deadline):
            time.sleep(0.2)

    def _start_once(self, argv: list[str], log: Path, deadline: float) -> bool:
        """False while children of a killed server still hold its shared memory."""
        begin = log.stat().st_size if log.exists() else 0
        self.process = programs.start(self.place, argv, log=log, when_orphaned=signal.SIGINT)
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                with log.open("rb") as file:
                    file.seek(begin)
                    text = file.read().decode(errors="replace")
                if "is still in use" in text or "is starting up" in text:
                    return False
                raise EmbeddedError(f"PostgreSQL did not start: {_last_line(text)} (see {log})")
            if self._is_ready():
                return True
            time.sleep(POLL_SECONDS)
        raise EmbeddedError(f"PostgreSQL was not ready within {READY_SECONDS:.0f} s (see {log})")

    def _is_ready(self) -> bool:
        """postmaster.pid, as pg_ctl reads it: the process on line 1, its status on line 8."""
        try:
            text = (self.place.postgres_data / "postmaster.pid").read_text(encoding="utf-8")
        except OSError:
            return False
        lines = text.splitlines()
        ours = str(self.process.pid) if self.process else ""
        return len(lines) >= 8 and lines[0].strip() == ours and lines[7].strip() == "ready"

    def stop(self) -> None:
        _stop(self.process, [(signal.SIGINT, 20), (signal.SIGQUIT, 5), (signal.SIGKILL, 5)])

    def _create(self, data: Path) -> None:
        """Everything in a draft folder, renamed when whole: half a database is never seen."""
        draft = data.with_name(f"{data.name}.{os.getpid()}")
        programs.prepare_folder(self.place, draft)
        initdb = [str(self.programs / "initdb"), "-D", str(draft), "-U", "postgres"]
        initdb += ["--encoding=UTF8", "--locale=C", "--auth=reject", "--no-sync"]
        done = programs.run(self.place, initdb)
        if done.returncode != 0:
            raise EmbeddedError(f"initdb failed: {_last_line(done.stderr or done.stdout)}")
        single = [str(self.programs / "postgres"), "--single", "-D", str(draft), "postgres"]
        done = programs.run(self.place, single, stdin=BOOTSTRAP)
        if done.returncode != 0 or "ERROR" in done.stderr:
            raise EmbeddedError(f"roles could not be made: {_last_line(done.stderr)}")
        draft.rename(data)

    def _write_access_rules(self, data: Path) -> None:
        user = pwd.getpwuid(os.geteuid()).pw_name
        rules = "local all all peer map=unbroken\n"
        names = "".join(
            f'unbroken "{user}" {role}\n' for role in ("unbroken_owner", "unbroken_app")
        )
        for name, text in (("pg_hba.conf", rules), ("pg_ident.conf", names)):
            (data / name).write_text(text, encoding="utf-8")
            (data / name).chmod(0o600)
            if self.place.account is not None:
                os.chown(data / name, self.place.account.uid, self.place.account.gid)

    def _bury_predecessor(self, data: Path) -> None:
        """Wait for a server that a killed keeper left behind; drop a dead one's pid file.

        The keeper's lock says that nobody else may run on this folder, so a pid that belongs to
        some other program by now is stale, whatever PostgreSQL would think of it.
        """
        pid_file = data / "postmaster.pid"
        deadline = time.monotonic() + 30
        while (pid := _first_number(pid_file)) and _works_in(pid, data):
            if time.monotonic() > deadline:
                raise EmbeddedError(f"a PostgreSQL of an earlier start (process {pid}) won't end")
            time.sleep(POLL_SECONDS)
        if Path("/proc/self/cwd").exists():
            pid_file.unlink(missing_ok=True)


class Valkey:
    """Carries tasks only, so it keeps nothing on disk; its socket lies in a private folder."""

    name = "valkey"

    def __init__(self, place: Place) -> None:
        self.place = place
        self.program = find_valkey(place)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.place.valkey_socket.unlink(missing_ok=True)
        log = self.place.control / "valkey.log"
        argv = [str(self.program), "--port", "0", "--unixsocket", str(self.place.valkey_socket)]
        argv += ["--unixsocketperm", "700", "--save", "", "--appendonly", "no"]
        argv += ["--dir", str(self.place.socket_dir), "--daemonize", "no"]
        self.process = programs.start(self.place, argv, log=log, when_orphaned=signal.SIGTERM)
        deadline = time.monotonic() + READY_SECONDS
        while not self._answers():
            if self.process.poll() is not None:
                text = log.read_text(encoding="utf-8", errors="replace")
                raise EmbeddedError(f"Valkey did not start: {_last_line(text)} (see {log})")
            if time.monotonic() > deadline:
                raise EmbeddedError(f"Valkey was not ready within {READY_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(2)
            try:
                connection.connect(str(self.place.valkey_socket))
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
            except OSError:
                return False

    def stop(self) -> None:
        _stop(self.process, [(signal.SIGTERM, 5), (signal.SIGKILL, 5)])


def _stop(
    process: subprocess.Popen[bytes] | None, ladder: list[tuple[signal.Signals, int]]
) -> None:
    """Each signal in turn with so many seconds to obey it."""
    if process is None:
        return
    for number, seconds in ladder:
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            continue


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    fatal = [line for line in lines if "FATAL" in line or "ERROR" in line]
    return (fatal or lines or ["it said nothing"])[-1]


def _first_number(path: Path) -> int:
    try:
        return int(path.read_text(encoding="utf-8").split()[0])
    except (OSError, ValueError, IndexError):
        return 0


def _works_in(pid: int, folder: Path) -> bool:
    """A PostgreSQL server's working directory is its data folder."""
    try:
        return Path(f"/proc/{pid}/cwd").resolve(strict=True) == folder.resolve()
    except OSError:
        return False
