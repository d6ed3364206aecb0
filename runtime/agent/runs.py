"""The runs on this node: it starts, supervises and ends their coordinators and node links.

Used from the agent's main thread only. Which order may start what is decided elsewhere.
"""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from runtime.agent.children import KeptProgram
from runtime.agent.links import MakeNodeLink, NodeLink
from runtime.agent.memory import Memory
from runtime.agent.orders import Assignment, Role
from runtime.agent.specs import RunSpec

STOP_GRACE_SECONDS: Final = 10.0
COORDINATOR_PROGRAM: Final = (sys.executable, "-m", "runtime", "coordinator")
ROOT: Final = Path(__file__).resolve().parents[2]

log = structlog.get_logger("runtime.agent.runs")


class RunError(Exception):
    """A run's role could not be started here; the message says why."""


class RunKeeper:
    """Every role of every run on this node, and what is remembered of them over a restart."""

    def __init__(
        self,
        *,
        cluster: str,
        node: str,
        folder: Path,
        listen_host: str,
        specs: Mapping[str, RunSpec],
        memory: Memory,
        make_link: MakeNodeLink,
        coordinator_program: Sequence[str] = COORDINATOR_PROGRAM,
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._folder = folder
        self._listen_host = listen_host
        self._specs = specs
        self._memory = memory
        self._make_link = make_link
        self._coordinator_program = coordinator_program
        self._coordinators: dict[str, KeptProgram] = {}
        self._links: dict[str, NodeLink] = {}
        self._findings: dict[str, Mapping[str, Any]] = {}

    def running(self) -> dict[tuple[str, Role], int]:
        """(run, role) → epoch of its assignment."""
        return {key: entry.epoch for key, entry in self._memory.assignments.items()}

    def start(self, assignment: Assignment) -> None:
        """Take up a role, in place of the same role in an older epoch. Raises RunError."""
        spec = self._specs.get(assignment.spec)
        if spec is None:
            raise RunError(f"spec {assignment.spec} is not on this node's allow-list")
        self._end(assignment.run, assignment.role)
        # Remembered first: a kill in between leads to a start, never to a role nobody knows of.
        self._memory.assign(assignment)
        try:
            spec.check()
            if assignment.role == "coordinator":
                self._start_coordinator(assignment, spec)
            else:
                self._start_link(assignment, spec)
        except Exception as error:
            # Whatever a run's own part raises must not take the node's agent down.
            log.exception("run.not_started", run=assignment.run, role=assignment.role)
            self._memory.unassign(assignment.run, assignment.role)
            raise RunError(f"{type(error).__name__}: {error}") from error

    def resume(self) -> None:
        """Take up again what was kept before the agent was restarted."""
        for assignment in tuple(self._memory.assignments.values()):
            try:
                self.start(assignment)
            except RunError as error:
                log.error(  # noqa: TRY400  (start has logged the traceback)
                    "run.not_resumed",
                    run=assignment.run,
                    role=assignment.role,
                    detail=str(error),
                )

    def stop(self, run: str, role: Role | None) -> bool:
        """End the role, or all of them; False when the run is not here."""
        roles: tuple[Role, ...] = ("worker", "coordinator") if role is None else (role,)
        found = [entry for entry in roles if (run, entry) in self._memory.assignments]
        for entry in found:
            self._end(run, entry)
            self._memory.unassign(run, entry)
        return bool(found)

    def tick(self) -> None:
        """Start again what died, and forget what is over."""
        for run, child in tuple(self._coordinators.items()):
            child.tick()
            if child.state in ("finished", "failed"):
                log.info("run.coordinator_over", run=run, state=child.state)
                self._end(run, "coordinator")
                self._memory.unassign(run, "coordinator")
        for run, link in tuple(self._links.items()):
            if not link.is_alive():
                log.info("run.link_over", run=run)
                self._end(run, "worker")
                self._memory.unassign(run, "worker")

    def report_finding(self, finding: Mapping[str, Any]) -> None:
        """Tell every link; one that joins later hears of what is still open."""
        if finding["state"] == "cleared":
            self._findings.pop(finding["finding_id"], None)
        else:
            self._findings[finding["finding_id"]] = finding
        for run, link in self._links.items():
            _tell(run, link, finding)

    def status(self) -> list[dict[str, Any]]:
        """The heartbeat's `runs`: one entry a run."""
        entries: dict[str, dict[str, Any]] = {}
        for (run, role), assignment in self._memory.assignments.items():
            entry = entries.setdefault(
                run,
                {
                    "id": run,
                    "epoch": assignment.epoch,
                    "committed_step": None,
                    "roles": [],
                    "endpoint": None,
                    "coordinator": None,
                    "workers": [],
                },
            )
            entry["roles"].append(role)
            if role == "coordinator" and run in self._coordinators:
                entry["coordinator"] = self._coordinators[run].state
                entry["endpoint"] = self._endpoint(run)
            elif role == "worker" and run in self._links:
                status = self._links[run].status()
                entry["epoch"] = status["epoch"]
                entry["committed_step"] = status["committed_step"]
                entry["workers"] = list(status["workers"])
        return list(entries.values())

    def stop_all(self) -> None:
        """End everything here; the assignments stay remembered for the next start."""
        for run in tuple(self._links):
            self._end(run, "worker")
        for child in self._coordinators.values():
            child.ask_to_stop()
        for run in tuple(self._coordinators):
            self._end(run, "coordinator")

    def _start_coordinator(self, assignment: Assignment, spec: RunSpec) -> None:
        run = assignment.run
        folder = self._folder / run
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        if is_new and os.geteuid() == 0:
            # Once, and the folder only: later its owner may have put links to anything in it.
            account = pwd.getpwnam(spec.user)
            os.chown(folder, account.pw_uid, account.pw_gid, follow_symlinks=False)
        child = KeptProgram(
            f"coordinator of {run}",
            self._coordinator_argv(assignment, folder),
            coordinator_environment(assignment),
            folder / "coordinator.log",
            spec.user,
        )
        child.start()
        self._coordinators[run] = child

    def _coordinator_argv(self, assignment: Assignment, folder: Path) -> list[str]:
        """The command line; where it listens and writes is the node's word, not the order's."""
        options = {
            **assignment.options,
            "cluster": self._cluster,
            "run": assignment.run,
            "folder": str(folder),
            "host": self._listen_host,
        }
        argv = list(self._coordinator_program)
        for key, value in options.items():
            flag = f"--{key.replace('_', '-')}"
            if value is True:
                argv.append(flag)
            elif value is not None and value is not False:
                values = value if isinstance(value, list) else [value]
                argv += [f"{flag}={item}" for item in values]
        return argv

    def _start_link(self, assignment: Assignment, spec: RunSpec) -> None:
        if assignment.endpoint is None:
            raise RunError("a worker needs the endpoint of its coordinator")
        link = self._make_link(
            run=assignment.run,
            endpoint=assignment.endpoint,
            ticket=assignment.ticket,
            node=self._node,
            slots=assignment.slots,
            spec=spec,
            folder=self._folder / assignment.run,
        )
        self._links[assignment.run] = link
        try:
            link.start()
        except BaseException:
            self._end(assignment.run, "worker")
            raise
        for finding in self._findings.values():
            _tell(assignment.run, link, finding)

    def _end(self, run: str, role: Role) -> None:
        if role == "coordinator" and run in self._coordinators:
            self._coordinators.pop(run).stop(STOP_GRACE_SECONDS)
        elif role == "worker" and run in self._links:
            link = self._links.pop(run)
            try:
                link.stop()
            except Exception:
                log.exception("run.link_not_stopped", run=run)

    def _endpoint(self, run: str) -> str | None:
        """Where the coordinator says it listens; None until it does."""
        try:
            return (self._folder / run / "endpoint").read_text(encoding="ascii").strip() or None
        except OSError:
            return None


def coordinator_environment(assignment: Assignment) -> dict[str, str]:
    """The agent's environment without its secrets, and with the run's."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith("UNBROKEN_AGENT_")
    }
    path = (str(ROOT), environment.get("PYTHONPATH", ""))
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, path))
    environment["UNBROKEN_RUN_TOKEN"] = assignment.ticket
    return environment


def _tell(run: str, link: NodeLink, finding: Mapping[str, Any]) -> None:
    try:
        link.report_finding(finding)
    except Exception:
        log.exception("run.finding_not_reported", run=run, finding=finding["finding_id"])
