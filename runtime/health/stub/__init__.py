"""A scripted NVML library for machines without a GPU: it is built here and knows no policy.

Tests and the demo run the real pynvml on it. The scenario file may change at any moment; writing
it is atomic, so that a call in the library never reads half a scenario.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).with_name("nvml_stub.c")
LIBRARY_NAME: Final = "libnvidia-ml.so.1"  # the exact name that pynvml loads
SCENARIO_VARIABLE: Final = "UNBROKEN_NVML_STUB"


class StubBuildError(Exception):
    """The compiler is missing or refused the source; the message says which."""


@dataclass(frozen=True, slots=True)
class StubGpu:
    """One GPU of a scenario; temperatures in degrees Celsius, None is "not supported"."""

    uuid: str
    temperature: int | None = 45
    serial: str | None = None
    pci: str | None = None
    name: str | None = "NVIDIA Stub"
    slowdown: int | None = 90
    shutdown: int | None = 95
    gpu_max: int | None = 87
    errors: Mapping[str, int] = field(default_factory=dict)
    hang: str | None = None

    def lines(self, index: int) -> list[str]:
        fields = {
            "uuid": self.uuid,
            "serial": self.serial,
            "pci": self.pci,
            "name": self.name,
            "temperature": self.temperature,
            "threshold.slowdown": self.slowdown,
            "threshold.shutdown": self.shutdown,
            "threshold.gpu_max": self.gpu_max,
            "hang": self.hang,
            **{f"error.{function}": code for function, code in self.errors.items()},
        }
        return [f"gpu{index}.{key} = {value}" for key, value in fields.items() if value is not None]


def build(folder: Path) -> Path:
    """Compile the library into `folder` and return its path; what is newer than the source stays.

    Raises StubBuildError.
    """
    library = folder / LIBRARY_NAME
    if library.exists() and library.stat().st_mtime >= SOURCE.stat().st_mtime:
        return library
    folder.mkdir(parents=True, exist_ok=True)
    compiler = os.environ.get("CC", "gcc")
    # Several tests or agents may build at once: each into its own file, the last one wins.
    unfinished = folder / f"{LIBRARY_NAME}.{os.getpid()}"
    command = [compiler, "-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"]
    command += [f"-Wl,-soname,{LIBRARY_NAME}", "-o", str(unfinished), str(SOURCE)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    except FileNotFoundError as error:
        raise StubBuildError(f"the compiler {compiler!r} was not found") from error
    if result.returncode != 0:
        raise StubBuildError(f"{' '.join(command)}: {result.stderr.strip()}")
    unfinished.replace(library)
    return library


def write_scenario(
    path: Path,
    gpus: Sequence[StubGpu],
    *,
    driver: str | None = "575.57.08",
    errors: Mapping[str, int] | None = None,
    hang: str | None = None,
) -> None:
    """Replace the scenario at `path` in one step; `errors` and `hang` are the library's own."""
    lines = [f"gpus = {len(gpus)}"]
    lines += [f"driver = {driver}"] if driver is not None else []
    lines += [f"hang = {hang}"] if hang is not None else []
    lines += [f"error.{function} = {code}" for function, code in (errors or {}).items()]
    for index, gpu in enumerate(gpus):
        lines += gpu.lines(index)
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", dir=path.parent, prefix=path.name, delete=False, encoding="utf-8"
    ) as file:
        file.write("\n".join(lines) + "\n")
    Path(file.name).replace(path)
