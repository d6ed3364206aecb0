"""The node's own allow-list of run specs; it says what may be started here and starts nothing.

A spec is named on the wire by its digest only: the SHA-256 of its canonical JSON (name, argv,
environment, user, code digest). What is not in the list, has changed since, or would run as root
is refused.
"""

from __future__ import annotations

import os
import pwd
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, cast

from runtime.events import canonical_json, sha256_hex

_KEYS: Final = frozenset({"name", "argv", "environment", "user", "code", "code_digest"})
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class SpecError(Exception):
    """A spec that cannot be allowed; the message names it and the reason."""


@dataclass(frozen=True, slots=True)
class RunSpec:
    """What a run starts on this node. `code` are the files that `code_digest` covers."""

    name: str
    argv: tuple[str, ...]
    user: str
    code_digest: str
    environment: Mapping[str, str] = field(default_factory=dict)
    code: tuple[Path, ...] = ()
    allow_root: bool = False  # the node's own word, no part of what the digest names

    @property
    def digest(self) -> str:
        return sha256_hex(
            canonical_json(
                {
                    "name": self.name,
                    "argv": list(self.argv),
                    "environment": dict(self.environment),
                    "user": self.user,
                    "code_digest": self.code_digest,
                }
            )
        )

    def check(self) -> None:
        """Raises SpecError when the spec may not run now: changed code, or a forbidden user."""
        check_user(self.name, self.user, allow_root=self.allow_root)
        found = digest_code(self.code)
        if found != self.code_digest:
            raise SpecError(
                f"spec {self.name}: its code changed since the agent read it "
                f"({self.code_digest[:12]} became {found[:12]}); restart the agent to allow it"
            )


def load_specs(path: Path, *, allow_root: bool = False) -> dict[str, RunSpec]:
    """The allow-list, by digest. Raises SpecError with file, spec and reason.

    `allow_root` is for a machine of one's own where no other account reaches the interpreter.
    """
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SpecError(f"{path}: {error}") from error
    entries = table.get("spec", [])
    if set(table) - {"spec"} or not isinstance(entries, list):
        raise SpecError(f"{path}: it must hold [[spec]] tables and nothing else")
    specs: dict[str, RunSpec] = {}
    for index, entry in enumerate(entries):
        try:
            spec = _spec_from(entry, path.parent, allow_root)
        except SpecError as error:
            raise SpecError(f"{path}: spec[{index}]: {error}") from error
        if any(known.name == spec.name for known in specs.values()):
            raise SpecError(f"{path}: spec[{index}]: the name {spec.name} is there twice")
        specs[spec.digest] = spec
    return specs


def check_user(name: str, user: str, *, allow_root: bool = False) -> None:
    """Raises SpecError unless this process can start programs as `user`, who is not root."""
    try:
        account = pwd.getpwnam(user)
    except KeyError:
        raise SpecError(f"spec {name}: there is no user {user!r} on this node") from None
    if account.pw_uid == 0 and not allow_root:
        raise SpecError(
            f"spec {name}: user {user!r} is root, and nothing is run as root: "
            "name an ordinary account as its user"
        )
    if os.geteuid() not in (0, account.pw_uid):
        raise SpecError(f"spec {name}: this agent may not start programs as {user!r}")


def digest_code(files: tuple[Path, ...]) -> str:
    """SHA-256 over the name and the content of each file; raises SpecError when one is gone."""
    try:
        parts = [[file.name, sha256_hex(file.read_bytes())] for file in files]
    except OSError as error:
        raise SpecError(f"code cannot be read: {error}") from error
    return sha256_hex(canonical_json(parts))


def _spec_from(entry: Any, folder: Path, allow_root: bool) -> RunSpec:
    if not isinstance(entry, dict):
        raise SpecError("it is not a table")
    if unknown := sorted(set(entry) - _KEYS):
        raise SpecError(f"unknown key {unknown[0]}")
    name = entry.get("name")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise SpecError(f"name must be letters, digits, dots and dashes, not {name!r}")
    environment = entry.get("environment", {})
    if not isinstance(environment, dict) or not all(
        _VARIABLE.fullmatch(key) and isinstance(value, str) for key, value in environment.items()
    ):
        raise SpecError("environment must map variable names to strings")
    user = entry.get("user", pwd.getpwuid(os.geteuid()).pw_name)
    if not isinstance(user, str):
        raise SpecError(f"user must be a string, not {user!r}")
    check_user(name, user, allow_root=allow_root)
    code = tuple(folder / file for file in _strings(entry, "code", default=[]))
    digest = digest_code(code)
    if entry.get("code_digest", digest) != digest:
        raise SpecError(f"code_digest is {entry['code_digest']!r}, the code has {digest}")
    argv = tuple(_strings(entry, "argv"))
    if not argv:
        raise SpecError("argv must name a program")
    return RunSpec(name, argv, user, digest, environment, code, allow_root)


def _strings(entry: Mapping[str, Any], key: str, default: list[str] | None = None) -> list[str]:
    value = entry.get(key, default)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise SpecError(f"{key} must be a list of strings, not {value!r}")
    return cast("list[str]", value)
