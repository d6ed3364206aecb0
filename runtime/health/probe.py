"""The disposable child that talks to NVML: it answers on pipes and judges nothing.

`python -m runtime.health.probe PARENT_PID` reads requests, one JSON object a line, from stdin:
{"sample": n, "skip": [indices]}. Before each NVML call it writes {"at": [index or null, function]},
so that its parent can name the call that never came back; then {"sample": n, "driver", "gpus"} or,
when the library itself does not answer, {"sample": n, "failed": {"function", "reason"}} and it
ends: only a new process loads a new driver's library.
"""

from __future__ import annotations

import functools
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, Final

import pynvml

from runtime.processes import die_with_parent

_CAPABILITY_MISSING: Final = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_DEPRECATED,
    }
)
_THRESHOLDS: Final = {
    "shutdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SHUTDOWN,
    "slowdown": pynvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN,
    "mem_max": pynvml.NVML_TEMPERATURE_THRESHOLD_MEM_MAX,
    "gpu_max": pynvml.NVML_TEMPERATURE_THRESHOLD_GPU_MAX,
}
_VALUE_NOT_AVAILABLE: Final = 0xFFFFFFFF


class LibraryFailedError(Exception):
    """NVML as a whole does not answer."""

    def __init__(self, function: str, reason: str) -> None:
        super().__init__(f"{function}: {reason}")
        self.function = function
        self.reason = reason


class Probe:
    """One process's view of NVML; what never changes of a GPU is read once."""

    def __init__(self, write: Callable[[dict[str, Any]], None]) -> None:
        self._write = write
        self._driver: str | None = None
        self._is_ready = False
        self._identities: dict[int, dict[str, Any]] = {}

    def sample(self, skip: frozenset[int]) -> dict[str, Any]:
        """One round over all GPUs but those in `skip`; raises LibraryFailedError."""
        if not self._is_ready:
            self._library("nvmlInitWithFlags", pynvml.nvmlInit)
            self._driver = self._optional(
                "nvmlSystemGetDriverVersion", pynvml.nvmlSystemGetDriverVersion
            )
            self._is_ready = True
        count = self._library("nvmlDeviceGetCount_v2", pynvml.nvmlDeviceGetCount)
        gpus = [self._gpu(index) for index in range(count) if index not in skip]
        return {"driver": self._driver, "gpus": gpus}

    def _gpu(self, index: int) -> dict[str, Any]:
        problems: dict[str, str] = {}

        def ask(function: str, call: Callable[[], Any]) -> Any:
            self._write({"at": [index, function]})
            try:
                return call()
            except pynvml.NVMLError as error:
                if error.value not in _CAPABILITY_MISSING:
                    problems[function] = str(error)
                return None

        handle = ask(
            "nvmlDeviceGetHandleByIndex_v2", lambda: pynvml.nvmlDeviceGetHandleByIndex(index)
        )
        uuid = handle and ask("nvmlDeviceGetUUID", lambda: pynvml.nvmlDeviceGetUUID(handle))
        if uuid is None:
            known = self._identities.get(index, {"uuid": None})
            return {**known, "index": index, "problems": problems}
        identity = self._identities.get(index)
        # The place says nothing about who is in it: the order may change under a living process.
        if identity is None or identity["uuid"] != uuid:
            identity = {"uuid": uuid, **_identity(ask, handle)}
            if not problems:
                self._identities[index] = identity
        temperature = ask(
            "nvmlDeviceGetTemperature",
            lambda: pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        )
        return {
            **identity,
            "index": index,
            "temperature_celsius": _available(temperature),
            "problems": problems,
        }

    def _library(self, function: str, call: Callable[[], Any]) -> Any:
        self._write({"at": [None, function]})
        try:
            return call()
        except pynvml.NVMLError as error:
            raise LibraryFailedError(function, str(error)) from error

    def _optional(self, function: str, call: Callable[[], Any]) -> Any:
        self._write({"at": [None, function]})
        try:
            return call()
        except pynvml.NVMLError:
            return None


def _identity(ask: Callable[[str, Callable[[], Any]], Any], handle: Any) -> dict[str, Any]:
    pci = ask("nvmlDeviceGetPciInfo_v3", lambda: pynvml.nvmlDeviceGetPciInfo(handle))
    thresholds: dict[str, int | None] = {}
    for name, kind in _THRESHOLDS.items():
        call = functools.partial(pynvml.nvmlDeviceGetTemperatureThreshold, handle, kind)
        thresholds[name] = _available(ask("nvmlDeviceGetTemperatureThreshold", call))
    return {
        "serial": ask("nvmlDeviceGetSerial", lambda: pynvml.nvmlDeviceGetSerial(handle)),
        "name": ask("nvmlDeviceGetName", lambda: pynvml.nvmlDeviceGetName(handle)),
        "pci_bus_id": None if pci is None else _text(pci.busId),
        "thresholds_celsius": {
            key: value for key, value in thresholds.items() if value is not None
        },
    }


def _available(value: int | None) -> int | None:
    return None if value is None or value == _VALUE_NOT_AVAILABLE else int(value)


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def main() -> int:
    # Also when an NVML call never returns.
    if not die_with_parent(int(sys.argv[1])):
        return 0
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The driver's library may print; the answers go to a descriptor it does not know.
    answers = os.dup(1)
    os.dup2(2, 1)

    def write(message: dict[str, Any]) -> None:
        os.write(answers, json.dumps(message, separators=(",", ":")).encode() + b"\n")

    probe = Probe(write)
    write({"ready": os.getpid()})
    for line in sys.stdin:
        request = json.loads(line)
        number = request["sample"]
        try:
            write({"sample": number, **probe.sample(frozenset(request["skip"]))})
        except LibraryFailedError as failure:
            detail = {"function": failure.function, "reason": failure.reason}
            write({"sample": number, "failed": detail})
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
