"""The agent's state folder: who holds it, and the node's own credential in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from runtime.agent.config import AgentConfig, ConfigError


def credential_path(config: AgentConfig) -> Path:
    return config.state_dir / "credential"


def read_credential(config: AgentConfig) -> str | None:
    """The token that an earlier enrolment left, if any."""
    try:
        return credential_path(config).read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def write_credential(config: AgentConfig, token: str) -> None:
    path = credential_path(config)
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(token)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


@contextlib.contextmanager
def only_agent(config: AgentConfig) -> Iterator[None]:
    """Hold the state folder for this process alone; raises ConfigError when another has it."""
    try:
        config.state_dir.mkdir(parents=True, exist_ok=True)
        file = (config.state_dir / "agent.lock").open("a+", encoding="ascii")
    except OSError as error:
        raise ConfigError(f"agent.state_dir: {config.state_dir}: {error.strerror}") from error
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(
                f"agent.state_dir: {config.state_dir} is in use by another agent"
            ) from None
        yield
