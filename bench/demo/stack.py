"""The service's processes: embedded databases, web server, Celery worker and beat, kept running."""

from __future__ import annotations

import json
import os
import pwd
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx2

from bench.demo.plan import ROOT
from runtime.agent.children import KeptProgram
from runtime.errors import UsageError

PYTHON = sys.executable
READY_SECONDS = 60.0
STOP_SECONDS = 8.0


class Stack:
    """Starts, watches and ends the programs of the service; also anything else that is kept."""

    def __init__(self, folder: Path, port: int | None) -> None:
        self.folder = folder
        self.port = _free_port() if port is None else _checked(port)
        self.programs: dict[str, KeptProgram] = {}
        self.is_interrupted = False
        self._user = pwd.getpwuid(os.geteuid()).pw_name

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def migrate(self) -> None:
        """Raises UsageError with the command's last words."""
        done = subprocess.run(
            [PYTHON, "manage.py", "migrate", "--database", "owner", "--verbosity", "0"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            raise UsageError(f"the database could not be prepared: {done.stderr.strip()[-500:]}")

    def start_service(self) -> None:
        bind = f"127.0.0.1:{self.port}"
        web = ["gunicorn", "config.wsgi:application", "--bind", bind, "--workers", "1"]
        web += ["--threads", "8", "--worker-class", "gthread", "--graceful-timeout", "3"]
        web += ["--no-control-socket"]
        worker = ["celery", "--app", "config", "worker", "--pool", "solo", "--loglevel", "info"]
        beat = ["celery", "--app", "config", "beat", "--loglevel", "info"]
        beat += ["--schedule", str(self.folder / "beat-schedule"), "--pidfile", ""]
        for name, argv in (("web", web), ("celery", worker), ("beat", beat)):
            self.keep(name, [PYTHON, "-m", *argv])
        self._await_web()

    def keep(self, name: str, argv: list[str], environment: dict[str, str] | None = None) -> None:
        log = self.folder / f"{name}.log"
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
        program = KeptProgram(
            name, argv, {**os.environ, "PYTHONPATH": path, **(environment or {})}, log, self._user
        )
        program.start()
        self.programs[name] = program

    def tick(self) -> None:
        """Starts again what died, and writes down who is who for those who look from outside.

        Raises KeyboardInterrupt once Ctrl-C was pressed: Python loses the exception where it
        strikes inside a callback or a destructor.
        """
        if self.is_interrupted:
            raise KeyboardInterrupt
        for program in self.programs.values():
            program.tick()
            if program.state in ("failed", "finished"):
                log = self.folder / f"{program.name}.log"
                raise UsageError(f"{program.name} ended for good; see {log}")
        fresh = self.folder / "pids.new"
        pids = {name: program.pid for name, program in self.programs.items()}
        fresh.write_text(json.dumps(pids))
        fresh.replace(self.folder / "pids.json")

    def stop(self) -> None:
        # Agents first: they end their runs, and deliver what is left while the web server lives.
        agents = [each for name, each in self.programs.items() if name.startswith("node-")]
        others = [each for each in self.programs.values() if each not in agents]
        for together in (agents, others):
            for program in together:
                program.ask_to_stop()
            for program in together:
                program.stop(STOP_SECONDS)
        self.programs.clear()

    def _await_web(self) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while time.monotonic() < deadline:
            self.tick()
            try:
                if httpx2.get(f"{self.url}/api/v1/schema", timeout=5.0).is_success:
                    return
            except httpx2.TransportError:
                time.sleep(0.1)
        raise UsageError(f"the web server did not answer; see {self.folder / 'web.log'}")


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


def _checked(port: int) -> int:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise UsageError(
            f"port {port} cannot be used: {os.strerror(error.errno or 0)}; "
            "choose another PORT or end what has it"
        ) from error
    return port
