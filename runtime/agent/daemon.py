"""The agent of one node: heartbeats, orders, health rounds and the runs it keeps, in one process.

The main thread holds all state and starts all children; the network and the probe have threads of
their own and speak to it through one queue. Without the service it goes on with what it has.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pwd
import queue
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog

from runtime.agent.client import FleetClient
from runtime.agent.config import AgentConfig, ConfigError, load_config
from runtime.agent.deliveries import RunDeliveries
from runtime.agent.desk import OrderDesk
from runtime.agent.heartbeat import Enrolled, Enrolment, Heard, HeartbeatSender, Missed
from runtime.agent.links import MakeNodeLink, NodeLink
from runtime.agent.memory import AgentMemoryError, Memory
from runtime.agent.runs import COORDINATOR_PROGRAM, RunKeeper
from runtime.agent.specs import RunSpec, SpecError, load_specs
from runtime.agent.statefolder import only_agent, read_credential, write_credential
from runtime.agent.watch import HealthWatch
from runtime.delivery import Deliverer
from runtime.events import HealthFinding
from runtime.health.policy import PolicyError, load_thermal
from runtime.health.prober import Prober
from runtime.health.rounds import ThermalRounds
from runtime.logs import configure_logs
from runtime.outbox import Outbox, OutboxError, read_boot_id

AGENT_VERSION: Final = "0.1.0"
TICK_SECONDS: Final = 0.2
FLUSH_SECONDS: Final = 1.0

log = structlog.get_logger("runtime.agent")
Message = Enrolled | Heard | Missed | HealthFinding | None


class Agent:
    """Built by `run_agent`; `run` returns the exit status once `stop` was called."""

    def __init__(
        self,
        config: AgentConfig,
        specs: dict[str, RunSpec],
        make_link: MakeNodeLink,
        outbox: Outbox,
        memory: Memory,
        coordinator_program: Sequence[str] = COORDINATOR_PROGRAM,
    ) -> None:
        self._config = config
        self._specs = specs
        self._outbox = outbox
        self._memory = memory
        self._messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._stopping = False
        self._token = config.token or read_credential(config)
        self._interval_seconds = config.heartbeat_seconds
        self._next_beat = 0.0
        self._not_before = 0.0
        self._is_beating = False
        self._has_news = False
        self._boot_id = read_boot_id()
        runs_folder = config.state_dir / "runs"
        self._keeper = RunKeeper(
            cluster=config.cluster,
            node=config.node,
            folder=runs_folder,
            listen_host=config.listen_host,
            specs=specs,
            memory=memory,
            make_link=make_link,
            coordinator_program=coordinator_program,
        )
        self._run_deliveries = RunDeliveries(
            cluster=config.cluster, folder=runs_folder, server=config.server, memory=memory
        )
        self._watch = self._make_watch()
        self._desk = OrderDesk(specs, memory, self._keeper, self._watch.hurry)
        self._deliverer: Deliverer | None = None
        self._sender = self._make_sender()

    def stop(self) -> None:
        """May be called from a signal handler: a SimpleQueue takes a message at any moment."""
        self._stopping = True
        self._messages.put(None)

    def run(self) -> int:
        log.info(
            "agent.started", node=self._config.node, pid=os.getpid(), source=self._outbox.source
        )
        self._start_deliverer()
        self._watch.start()
        if self._sender is not None:
            self._sender.start()
        status = 0
        try:
            self._keeper.resume()
            while not self._stopping:
                self._tick()
                if (dead := self._dead_part()) is not None:
                    log.critical("agent.part_died", part=dead)
                    status = 1
                    break
                with contextlib.suppress(queue.Empty):
                    self._hear(self._messages.get(timeout=TICK_SECONDS))
        finally:
            self._shut_down()
        return status

    def _tick(self) -> None:
        self._keeper.tick()
        self._run_deliveries.tick(self._token)
        if (
            self._sender is not None
            and not self._is_beating
            and time.monotonic() >= self._next_beat
        ):
            self._is_beating, self._has_news = True, False
            self._sender.send(self._heartbeat())

    def _hear(self, message: Message) -> None:
        match message:
            case None:
                return
            case Heard(answer, reported):
                self._memory.mark_reported(reported)
                if answer.interval_seconds is not None:
                    self._interval_seconds = answer.interval_seconds
                self._not_before = 0.0
                self._beat_in(0.0 if self._has_news else self._interval_seconds)
                for entry in answer.orders:
                    if self._desk.obey(entry, time.time_ns() // 1000):
                        self._tell_soon()
            case Missed(retry_seconds):
                self._beat_in(retry_seconds)
                self._not_before = self._next_beat
            case Enrolled(token):
                self._token = token
                self._keep_credential(token)
                self._start_deliverer()
                self._beat_in(0.0)
            case finding:
                self._keeper.report_finding(finding)
                self._tell_soon()

    def _beat_in(self, seconds: float) -> None:
        self._is_beating = False
        self._next_beat = time.monotonic() + seconds

    def _tell_soon(self) -> None:
        """There is news for the service: beat now, or as soon as its pause is over."""
        self._has_news = True
        self._next_beat = min(self._next_beat, self._not_before)

    def _keep_credential(self, token: str) -> None:
        try:
            write_credential(self._config, token)
        except OSError as error:
            # The token serves until this process ends; it cannot be had a second time.
            log.exception("agent.credential_not_kept", detail=str(error))
        else:
            log.info("agent.enrolled", node=self._config.node)

    def _heartbeat(self) -> dict[str, Any]:
        driver, gpus, blind = self._watch.brief()
        return {
            "cluster": self._config.cluster,
            "node": self._config.node,
            "boot_id": self._boot_id,
            "agent_version": AGENT_VERSION,
            "driver": driver,
            "gpus": gpus,
            "runs": self._keeper.status(),
            "blind": blind,
            "specs": {spec.name: digest for digest, spec in self._specs.items()},
            "sources": {self._outbox.source: self._outbox.head(), **self._run_deliveries.heads()},
            "orders": self._memory.unreported(),
        }

    def _make_watch(self) -> HealthWatch:
        prober = Prober(self._config.probe_environment)
        rounds = ThermalRounds(prober, load_thermal(self._config.thermal_policy), self._config.node)
        reports = [event["data"] for event in self._outbox.history("health.finding")]
        rounds.resume(reports)
        for report in reports:
            self._keeper.report_finding(report)
        return HealthWatch(
            prober,
            rounds,
            self._outbox,
            self._messages.put,
            self._config.health_interval_seconds,
        )

    def _make_sender(self) -> HeartbeatSender | None:
        if self._config.server is None:
            return None
        enrolment = None
        if self._token is None and self._config.enrolment_token is not None:
            body = {
                "cluster": self._config.cluster,
                "node": self._config.node,
                "source": self._config.source,
                "boot_id": self._boot_id,
                "agent_version": AGENT_VERSION,
            }
            enrolment = Enrolment(self._config.enrolment_token, body)
        client = FleetClient(self._config.server, self._token)
        return HeartbeatSender(client, self._messages.put, enrolment)

    def _start_deliverer(self) -> None:
        if self._config.server is not None and self._token is not None:
            self._deliverer = Deliverer(self._outbox, self._config.server, self._token)
            self._deliverer.start()

    def _dead_part(self) -> str | None:
        parts = {
            "health": self._watch,
            "heartbeat": self._sender,
            "delivery": self._deliverer,
            "delivery of runs": self._run_deliveries,
        }
        for name, part in parts.items():
            if part is not None and not part.is_alive():
                return name
        return None

    def _shut_down(self) -> None:
        """Children first; what the service has not heard yet stays in the outbox."""
        self._keeper.stop_all()
        self._watch.stop(timeout_seconds=2.0)
        if self._sender is not None:
            self._sender.stop(timeout_seconds=2.0)
        self._run_deliveries.stop(FLUSH_SECONDS)
        if self._deliverer is not None:
            self._deliverer.flush(FLUSH_SECONDS)
            self._deliverer.stop(timeout_seconds=2.0)
        log.info("agent.stopped", node=self._config.node)


def allowed_specs(config: AgentConfig) -> dict[str, RunSpec]:
    """The node's allow-list, by digest; empty when the configuration names none."""
    if config.specs is None:
        return {}
    specs = load_specs(config.specs, allow_root=config.allow_root)
    for spec in specs.values():
        if pwd.getpwnam(spec.user).pw_uid == 0:
            log.warning("agent.spec_runs_as_root", spec=spec.name)
    return specs


def run_agent(
    config: AgentConfig,
    make_link: MakeNodeLink,
    coordinator_program: Sequence[str] = COORDINATOR_PROGRAM,
) -> int:
    """Run until SIGTERM or SIGINT; the exit status. Raises what `main` turns into one line."""
    specs = allowed_specs(config)
    load_thermal(config.thermal_policy)
    with (
        only_agent(config),
        Outbox(config.state_dir / "outbox.db", config.source) as outbox,
    ):
        memory = Memory(config.state_dir / "memory.json")
        agent = Agent(config, specs, make_link, outbox, memory, coordinator_program)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: agent.stop())
        return agent.run()


def _make_real_link(
    *, run: str, endpoint: str, ticket: str, node: str, slots: int, spec: RunSpec, folder: Path
) -> NodeLink:
    """Imported with the first run: an agent that only watches has no need of it."""
    module = importlib.import_module("runtime.agent.node_link")
    link: NodeLink = module.make_node_link(
        run=run,
        endpoint=endpoint,
        ticket=ticket,
        node=node,
        slots=slots,
        spec=spec,
        folder=folder,
    )
    return link


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, metavar="FILE", help="agent.toml")
    parser.add_argument(
        "--print-specs",
        action="store_true",
        help="print digest and name of each run spec that is allowed here, and end",
    )


def main(
    args: argparse.Namespace,
    make_link: MakeNodeLink | None = None,
    coordinator_program: Sequence[str] = COORDINATOR_PROGRAM,
) -> int:
    """0 after SIGTERM, 1 when a part of it died, 2 for a configuration that cannot be used."""
    configure_logs()
    try:
        config = load_config(args.config, os.environ)
        if args.print_specs:
            for digest, spec in allowed_specs(config).items():
                print(digest, spec.name)
            return 0
        return run_agent(config, make_link or _make_real_link, coordinator_program)
    except (ConfigError, SpecError, PolicyError, OutboxError, AgentMemoryError) as error:
        print(f"unbroken agent: {error}", file=sys.stderr)
        return 2
