"""A program that the agent keeps running: started again when it dies, ended whole when told to."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import structlog

from runtime.processes import await_group_gone

FIRST_RESTART_SECONDS: Final = 0.2
LONGEST_RESTART_SECONDS: Final = 10.0
STEADY_SECONDS: Final = 30.0  # after this long a life, the next death is a new story
# 2: the same arguments will fail the same way; 3: the program did its work, which failed for good
FAILED_FOR_GOOD: Final = frozenset({2, 3})

log = structlog.get_logger("runtime.agent.children")
ChildState = Literal["running", "restarting", "finished", "failed"]


class KeptProgram:
    """One child in its own session; call `tick` often, all from the thread that started it
    (the child is killed when that thread ends)."""

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        environment: Mapping[str, str],
        log_path: Path,
        user: str,
    ) -> None:
        self.name = name
        self.state: ChildState = "running"
        self._argv = [sys.executable, "-m", "runtime.agent.tether", str(os.getpid()), *argv]
        self._environment = dict(environment)
        self._log_path = log_path
        self._user = user
        self._deaths = 0
        self._started_at = 0.0
        self._restart_at = 0.0
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Raises OSError when the program or its log cannot be opened."""
        account = pwd.getpwnam(self._user)
        switch = os.geteuid() == 0 and account.pw_uid != 0
        with self._log_path.open("ab") as output:
            self._process = subprocess.Popen(
                self._argv,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=self._environment,
                start_new_session=True,
                user=account.pw_uid if switch else None,
                group=account.pw_gid if switch else None,
                extra_groups=[] if switch else None,
            )
        self._started_at = time.monotonic()
        self.state = "running"
        log.info("child.started", child=self.name, pid=self._process.pid)

    def tick(self) -> None:
        """See whether it died, and start it again when its time has come."""
        now = time.monotonic()
        if self.state == "running" and self._process is not None:
            code = self._process.poll()
            if code is not None:
                self._bury(code, now)
        elif self.state == "restarting" and now >= self._restart_at:
            try:
                self.start()
            except OSError as error:
                self._deaths += 1
                self._restart_at = now + self._pause_seconds()
                log.warning("child.not_started", child=self.name, detail=str(error))

    def ask_to_stop(self) -> None:
        """SIGTERM to the whole session; `stop` is still due."""
        self.state = "finished" if self.state != "failed" else "failed"
        self._signal(signal.SIGTERM)

    def stop(self, grace_seconds: float) -> None:
        """End the whole session: SIGTERM, and SIGKILL to what is left after the grace."""
        self.ask_to_stop()
        if self._process is None:
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(grace_seconds)
        # Also after a clean exit: what it started itself may have stayed.
        self._signal(signal.SIGKILL)
        self._process.wait()
        if not await_group_gone(self._process.pid):
            log.warning("child.left_behind", child=self.name, session=self._process.pid)

    def _bury(self, code: int, now: float) -> None:
        self._signal(signal.SIGKILL)
        if code == 0 or code in FAILED_FOR_GOOD:
            self.state = "finished" if code == 0 else "failed"
            log.info("child.ended", child=self.name, exit_status=code)
            return
        if now - self._started_at >= STEADY_SECONDS:
            self._deaths = 0
        self._deaths += 1
        self.state = "restarting"
        self._restart_at = now + self._pause_seconds()
        log.warning("child.died", child=self.name, exit_status=code, deaths=self._deaths)

    def _pause_seconds(self) -> float:
        return float(
            min(FIRST_RESTART_SECONDS * 2 ** min(self._deaths - 1, 30), LONGEST_RESTART_SECONDS)
        )

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            return
        # The session outlives its first process, so its group may be there when that is reaped;
        # the number of a group in use is not given to anybody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, number)
