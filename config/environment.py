"""Owns every setting that comes from outside, typed; it reads the environment and nothing else.

Each secret may instead be named by a file: SECRET_KEY_FILE, DATABASE_URL_FILE and so on. With
nothing set a clone runs: services are embedded, secrets are made once and kept under var/.
"""

from __future__ import annotations

import json
import os
import secrets
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured
from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_settings import (
    BaseSettings,
    NoDecode,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

BASE_DIR: Final = Path(__file__).resolve().parent.parent


class SecretFiles(PydanticBaseSettingsSource):
    """Reads NAME from the file that NAME_FILE names, for fields marked as secret."""

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        variable = f"{field_name.upper()}_FILE"
        path = os.environ.get(variable)
        if path is None or not (field.json_schema_extra or {}):
            return None, field_name, False
        if field_name.upper() in os.environ:
            raise ImproperlyConfigured(f"set {field_name.upper()} or {variable}, not both")
        try:
            return Path(path).read_text(encoding="utf-8").strip(), field_name, False
        except OSError as error:
            raise ImproperlyConfigured(f"{variable}={path}: {error.strerror}") from error

    def __call__(self) -> dict[str, Any]:
        values = {name: self.get_field_value(f, name)[0] for name, f in self._fields()}
        return {name: value for name, value in values.items() if value is not None}

    def _fields(self) -> list[tuple[str, FieldInfo]]:
        return list(self.settings_cls.model_fields.items())


def _secret(description: str) -> Any:
    return Field(default=None, description=description, json_schema_extra={"secret": True})


class Environment(BaseSettings):
    """Every key is an environment variable of the same name in capitals."""

    model_config = SettingsConfigDict(case_sensitive=False, extra="ignore", frozen=True)

    secret_key: SecretStr | None = _secret("Signs sessions; made under var/ when unset.")
    token_peppers: SecretStr | None = _secret(
        'Peppers of API tokens as JSON, {"1": "..."}; the highest number signs new tokens. '
        "Made under var/ when unset."
    )
    database_url: SecretStr | None = _secret(
        "postgresql://unbroken_app:...@host:5432/name; unset: the embedded PostgreSQL."
    )
    database_owner_url: SecretStr | None = _secret(
        "The same database as unbroken_owner; needed by migrate only."
    )
    redis_url: SecretStr | None = _secret(
        "redis://:...@host:6379/0 for Celery; unset: the embedded Valkey."
    )
    allowed_hosts: Annotated[list[str], NoDecode] = Field(
        default=["localhost", "127.0.0.1", "[::1]"],
        description="Host names the service answers to, separated by commas.",
    )
    csrf_trusted_origins: Annotated[list[str], NoDecode] = Field(
        default=[], description="Origins such as https://unbroken.example, separated by commas."
    )
    https: bool = Field(default=False, description="Served over HTTPS: cookies are secure.")
    var_dir: Path = Field(default=BASE_DIR / "var", description="Where everything local is kept.")
    log_level: str = Field(default="INFO", description="DEBUG, INFO, WARNING or ERROR.")

    @field_validator("allowed_hosts", "csrf_trusted_origins", mode="before")
    @classmethod
    def split_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, SecretFiles(settings_cls)


def load_environment() -> Environment:
    """Raises ImproperlyConfigured with one line that names the variables at fault."""
    try:
        return Environment()
    except ValidationError as error:
        problems = [f"{str(e['loc'][0]).upper()}: {e['msg']}" for e in error.errors()]
        raise ImproperlyConfigured("; ".join(problems)) from None


def kept_secret(var_dir: Path, name: str) -> str:
    """The random secret in var/NAME, made on first use; mode 600.

    Two processes that start together get the same one: whoever links the file first wins.
    """
    path = var_dir / name
    if not path.exists():
        try:
            var_dir.mkdir(parents=True, exist_ok=True)
            handle, draft = tempfile.mkstemp(dir=var_dir)  # mode 600
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(secrets.token_urlsafe(48))
            try:
                os.link(draft, path)
            except FileExistsError:
                pass
            finally:
                Path(draft).unlink()
        except OSError as error:
            raise ImproperlyConfigured(f"cannot keep a secret in {path}: {error}") from error
    return path.read_text(encoding="utf-8").strip()


def token_peppers(environment: Environment) -> dict[int, str]:
    """Pepper number → secret; the highest number signs new tokens."""
    if environment.token_peppers is None:
        return {1: kept_secret(environment.var_dir, "token_pepper")}
    try:
        peppers = json.loads(environment.token_peppers.get_secret_value())
        typed = {int(number): str(secret) for number, secret in peppers.items()}
    except (ValueError, AttributeError) as error:
        raise ImproperlyConfigured(
            'TOKEN_PEPPERS is JSON such as {"1": "a long secret"}'
        ) from error
    if not typed or any(len(secret) < 32 for secret in typed.values()):
        raise ImproperlyConfigured("TOKEN_PEPPERS needs secrets of at least 32 characters")
    return typed


def database_from_url(variable: str, url: str) -> dict[str, Any]:
    """Django's settings of one PostgreSQL connection from a postgresql:// URL."""
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ImproperlyConfigured(f"{variable} is not a URL: {error}") from None
    name = unquote(parts.path.lstrip("/"))
    if parts.scheme not in ("postgres", "postgresql") or not name:
        raise ImproperlyConfigured(f"{variable} must look like postgresql://user:secret@host/name")
    options = dict(parse_qsl(parts.query))
    return {
        "NAME": name,
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", unquote(parts.hostname or "")),
        "PORT": str(port or ""),
        "OPTIONS": options,
    }


def celery_broker(redis_url: str) -> str:
    """Celery's spelling of a Redis URL: it knows unix sockets by another name."""
    if not redis_url.startswith("unix://"):
        return redis_url
    parts = urlsplit(redis_url)
    number = dict(parse_qsl(parts.query)).get("db", "0")
    return f"redis+socket://{parts.path}?virtual_host={number}"
