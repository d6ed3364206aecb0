"""The agent's configuration: one frozen value from a TOML file and the environment.

Environment beats file: UNBROKEN_AGENT_SERVER, UNBROKEN_AGENT_TOKEN, UNBROKEN_AGENT_ENROLMENT_TOKEN
(the last two also with _FILE, naming a file). Relative paths are relative to the file they are in.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from runtime.events import agent_source
from runtime.health.policy import SHIPPED_THERMAL

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SECTIONS: Final = {
    "agent": {
        "cluster",
        "node",
        "server",
        "token_file",
        "enrolment_token_file",
        "state_dir",
        "specs",
        "allow_root",
        "listen_host",
        "heartbeat_seconds",
    },
    "health": {"interval_seconds", "policy"},
    "nvml": {"library_dir", "environment"},
}


class ConfigError(Exception):
    """A configuration that cannot be used; one line that names the place."""


@dataclass(frozen=True, slots=True)
class AgentConfig:
    """Times in seconds. Without a server the agent watches, records and waits."""

    cluster: str
    node: str
    state_dir: Path
    server: str | None = None
    token: str | None = None
    enrolment_token: str | None = None
    specs: Path | None = None
    allow_root: bool = False
    listen_host: str = "127.0.0.1"
    heartbeat_seconds: float = 10.0
    health_interval_seconds: float = 1.0
    thermal_policy: Path = SHIPPED_THERMAL
    probe_environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def source(self) -> str:
        return agent_source(self.cluster, self.node)


def load_config(path: Path, environment: Mapping[str, str]) -> AgentConfig:
    """Raises ConfigError."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: {error}") from error
    try:
        return _config_from(table, path.resolve().parent, environment)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _config_from(
    table: Mapping[str, Any], folder: Path, environment: Mapping[str, str]
) -> AgentConfig:
    _refuse_unknown(table)
    agent, health, nvml = (table.get(name, {}) for name in ("agent", "health", "nvml"))
    specs = _text(agent, "agent.specs", None)
    policy = _text(health, "health.policy", None)
    return AgentConfig(
        cluster=_name(agent, "agent.cluster"),
        node=_name(agent, "agent.node"),
        state_dir=folder / _required(_text(agent, "agent.state_dir", None), "agent.state_dir"),
        server=_server(environment.get("UNBROKEN_AGENT_SERVER") or agent.get("server")),
        token=_secret(agent, folder, environment, "token", "UNBROKEN_AGENT_TOKEN"),
        enrolment_token=_secret(
            agent, folder, environment, "enrolment_token", "UNBROKEN_AGENT_ENROLMENT_TOKEN"
        ),
        specs=None if specs is None else folder / specs,
        allow_root=_flag(agent, "agent.allow_root"),
        listen_host=_required(_text(agent, "agent.listen_host", "127.0.0.1"), "agent.listen_host"),
        heartbeat_seconds=_positive(agent, "agent.heartbeat_seconds", 10.0),
        health_interval_seconds=_positive(health, "health.interval_seconds", 1.0),
        thermal_policy=SHIPPED_THERMAL if policy is None else folder / policy,
        probe_environment=_probe_environment(nvml, folder),
    )


def _refuse_unknown(table: Mapping[str, Any]) -> None:
    for section, entries in table.items():
        if section not in _SECTIONS or not isinstance(entries, dict):
            raise ConfigError(f"{section} is not a section; there are {', '.join(_SECTIONS)}")
        for key in entries:
            if key not in _SECTIONS[section]:
                raise ConfigError(f"{section}.{key} is not a setting")


def _required(value: str | None, where: str) -> str:
    if value is None:
        raise ConfigError(f"{where} is missing")
    return value


def _text(section: Mapping[str, Any], where: str, default: str | None) -> str | None:
    value = section.get(where.partition(".")[2], default)
    if value is not None and (not isinstance(value, str) or not value):
        raise ConfigError(f"{where} must be a text, not {value!r}")
    return value


def _name(section: Mapping[str, Any], where: str) -> str:
    value = _required(_text(section, where, None), where)
    if not _NAME.fullmatch(value):
        raise ConfigError(f"{where} must be letters, digits, dots and dashes, not {value!r}")
    return value


def _positive(section: Mapping[str, Any], where: str, default: float) -> float:
    value = section.get(where.partition(".")[2], default)
    if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
        raise ConfigError(f"{where} must be seconds above zero, not {value!r}")
    return float(value)


def _flag(section: Mapping[str, Any], where: str) -> bool:
    value = section.get(where.partition(".")[2], False)
    if not isinstance(value, bool):
        raise ConfigError(f"{where} must be true or false, not {value!r}")
    return value


def _server(value: Any) -> str | None:
    if value is None:
        return None
    parts = urlsplit(value) if isinstance(value, str) else None
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"agent.server must be an http or https address, not {value!r}")
    return str(value).rstrip("/")


def _secret(
    agent: Mapping[str, Any],
    folder: Path,
    environment: Mapping[str, str],
    key: str,
    variable: str,
) -> str | None:
    if environment.get(variable):
        return environment[variable]
    from_environment = environment.get(f"{variable}_FILE")
    setting = _text(agent, f"agent.{key}_file", None)
    if from_environment:
        path, where = Path(from_environment), f"{variable}_FILE"
    elif setting is not None:
        path, where = folder / setting, f"agent.{key}_file"
    else:
        return None
    try:
        secret = path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise ConfigError(f"{where}: {path}: {error.strerror}") from error
    if not secret:
        raise ConfigError(f"{where}: {path} is empty")
    return secret


def _probe_environment(nvml: Mapping[str, Any], folder: Path) -> dict[str, str]:
    environment = nvml.get("environment", {})
    if not isinstance(environment, dict) or not all(
        isinstance(value, str) for value in environment.values()
    ):
        raise ConfigError("nvml.environment must map variable names to texts")
    library_dir = _text(nvml, "nvml.library_dir", None)
    if library_dir is None:
        return environment
    if not (folder / library_dir).is_dir():
        raise ConfigError(f"nvml.library_dir: {folder / library_dir} is not a folder")
    return {"LD_LIBRARY_PATH": str(folder / library_dir), **environment}
