"""One host, one run: a coordinator and its workers, from a command line to a clean end."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from runtime.agent.node_link import NodeLink
from runtime.agent.supervisor import Supervisor
from runtime.errors import UsageError
from runtime.processes import no_descendants_left
from runtime.worker_environment import worker_environment

FAREWELL_SECONDS = 12.0  # a little more than the coordinator itself waits for its members


@dataclass(frozen=True)
class LaunchSpec:
    """What a launch needs to know; `script` is argv of the training script."""

    script: list[str]
    ranks: int
    spares: int
    folder: Path
    run: str = "run"
    cluster: str = "local"
    contract: str | None = None
    port: int = 0
    checkpoint_every_steps: int = 0
    environment: dict[str, str] = field(default_factory=dict)
    quiet: bool = False


class Launch:
    """A coordinator as a child process (restarted when it dies) and this host's node link."""

    def __init__(self, spec: LaunchSpec) -> None:
        self.spec = spec
        self.token = secrets.token_hex(32)
        self._coordinator: subprocess.Popen[bytes] | None = None
        self._node: NodeLink | None = None
        self.coordinator_restarts = 0

    def __enter__(self) -> Self:
        spec = self.spec
        if (spec.folder / "journal").exists():
            raise UsageError(
                f"{spec.folder} holds another run already: give --folder one of its own, "
                "or remove it"
            )
        spec.folder.mkdir(parents=True, exist_ok=True)
        self._start_coordinator()
        supervisor = Supervisor(
            spec.script,
            {
                **spec.environment,
                **worker_environment(
                    run=spec.run,
                    node="local",
                    endpoint=self.endpoint,
                    token=self.token,
                    checkpoint_every_steps=spec.checkpoint_every_steps,
                    checkpoints=spec.folder / "checkpoints",
                ),
            },
            spec.folder / "logs",
            user=None,
        )
        slots = [f"w{number}" for number in range(spec.ranks + spec.spares)]
        self._node = NodeLink(
            endpoint=self.endpoint,
            token=self.token,
            node="local",
            slots=slots,
            supervisor=supervisor,
        )
        self._node.start()
        return self

    @property
    def endpoint(self) -> str:
        return (self.spec.folder / "endpoint").read_text().strip()

    @property
    def coordinator_pid(self) -> int:
        assert self._coordinator is not None  # noqa: S101 - __enter__ made it
        return self._coordinator.pid

    def _start_coordinator(self) -> None:
        spec = self.spec
        argv = [sys.executable, "-m", "runtime", "coordinator", "--folder", str(spec.folder)]
        argv += ["--run", spec.run, "--cluster", spec.cluster, "--port", str(spec.port)]
        argv += ["--ranks", str(spec.ranks), "--spares", str(spec.spares)]
        argv += ["--checkpoint-every", str(spec.checkpoint_every_steps)]
        if spec.contract is not None:
            argv += ["--contract", spec.contract]
        log = (spec.folder / "coordinator.log").open("ab") if spec.quiet else None
        try:
            self._coordinator = subprocess.Popen(
                argv, env={**os.environ, "UNBROKEN_RUN_TOKEN": self.token}, stderr=log
            )
        finally:
            if log is not None:
                log.close()
        while not (spec.folder / "endpoint").exists():
            if (status := self._coordinator.poll()) is not None:
                raise UsageError(f"the coordinator did not start (exit status {status})")
            time.sleep(0.01)

    def watch(self) -> str | None:
        """One look at everything; the outcome once the run is over, else None."""
        assert self._coordinator is not None  # noqa: S101
        assert self._node is not None  # noqa: S101
        if self._node.wait_over(0.05):
            if not self._node.is_alive():
                return self._node.outcome or "failed"
            time.sleep(0.05)
            return None
        if self._coordinator.poll() is not None:
            self.coordinator_restarts += 1
            self._start_coordinator()
        return None

    def wait(self) -> str:
        while True:
            if (outcome := self.watch()) is not None:
                return outcome

    def __exit__(self, *_exc: object) -> None:
        if self._node is not None:
            self._node.stop()
        if self._coordinator is not None:
            if self._node is not None and self._node.wait_over(0):
                # It said so itself and is about to end, unless our zygote died under a running run.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._coordinator.wait(FAREWELL_SECONDS)
            self._coordinator.terminate()
            self._coordinator.wait()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nproc", type=int, required=True, metavar="N", help="ranks that train")
    parser.add_argument("--spares", type=int, default=1, metavar="S", help="hot spares")
    parser.add_argument("--run", default="run", help="name of the run")
    parser.add_argument("--cluster", default="local")
    parser.add_argument("--contract", default=None, help="number of the contract it runs under")
    parser.add_argument("--folder", type=Path, default=None, help="journal, logs, checkpoints")
    parser.add_argument("--port", type=int, default=0, help="the coordinator's (0: any free one)")
    parser.add_argument("--checkpoint-every", type=int, default=0, metavar="STEPS")
    parser.add_argument("script", help="the training script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")


def main(arguments: argparse.Namespace) -> int:
    script = Path(arguments.script)
    if not script.is_file():
        raise UsageError(f"there is no training script at {script}")
    if arguments.nproc < 1 or arguments.spares < 0:
        raise UsageError("--nproc must be at least 1 and --spares at least 0")
    spec = LaunchSpec(
        script=[str(script), *arguments.arguments],
        ranks=arguments.nproc,
        spares=arguments.spares,
        folder=arguments.folder or Path("var/runs") / f"{arguments.run}-{os.getpid()}",
        run=arguments.run,
        cluster=arguments.cluster,
        contract=arguments.contract,
        port=arguments.port,
        checkpoint_every_steps=arguments.checkpoint_every,
    )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with no_descendants_left(), Launch(spec) as launch:
        print(f"run {spec.run}: logs in {spec.folder / 'logs'}", flush=True)
        outcome = launch.wait()
    print(f"run {spec.run}: {outcome}")
    if outcome in ("completed", "parked"):
        return 0
    print(last_words(spec.folder / "logs"), file=sys.stderr)
    return 1


def last_words(logs: Path, lines: int = 8) -> str:
    """The end of the log that most likely says why: the newest one with an exception in it."""
    newest = sorted(logs.glob("*.log"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in newest:
        text = path.read_text(errors="replace").strip()
        if "Error" in text or "Exception" in text:
            return f"{path}:\n" + "\n".join(text.splitlines()[-lines:])
    return f"no worker left a message in {logs}; see what the coordinator said above"
