"""The probe child on the real pynvml and a scripted NVML library: hangs, losses, replacement."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from runtime.health.policy import load_thermal
from runtime.health.prober import Prober, ProberSettings
from runtime.health.readings import Blind
from runtime.health.rounds import ThermalRounds
from runtime.health.stub import SCENARIO_VARIABLE, StubGpu, write_scenario
from tests.runtime.waiting import wait_for

COOL = [
    StubGpu("GPU-1", 45, serial="1651", pci="00000000:1B:00.0", name="NVIDIA A"),
    StubGpu("GPU-2", 50, serial="1652", pci="00000000:2B:00.0", gpu_max=None),
]


@pytest.fixture
def scenario(tmp_path: Path) -> Path:
    path = tmp_path / "nvml.txt"
    write_scenario(path, COOL)
    return path


@pytest.fixture
def prober(nvml_library: Path, scenario: Path) -> Iterator[Prober]:
    probe = make_prober(nvml_library, scenario)
    yield probe
    probe.stop()


def make_prober(library: Path, scenario: Path, **bounds: float) -> Prober:
    environment = {"LD_LIBRARY_PATH": str(library), SCENARIO_VARIABLE: str(scenario)}
    values = {"answer_seconds": 1.0, "longest_restart_seconds": 0.1, **bounds}
    return Prober(environment, ProberSettings(**values))  # type: ignore[arg-type]


def test_reads_what_the_library_says(prober: Prober) -> None:
    reading = prober.sample()

    assert reading.driver == "575.57.08"
    assert reading.blind == ()
    one, two = reading.gpus
    assert one.reference() == {
        "uuid": "GPU-1",
        "serial": "1651",
        "pci_bus_id": "00000000:1B:00.0",
        "slot": 0,
    }
    assert (one.name, one.temperature_celsius) == ("NVIDIA A", 45)
    assert one.thresholds_celsius == {"gpu_max": 87, "slowdown": 90, "shutdown": 95}
    assert two.thresholds_celsius == {"slowdown": 90, "shutdown": 95}


def test_follows_the_temperature_in_one_child(prober: Prober, scenario: Path) -> None:
    assert [gpu.temperature_celsius for gpu in prober.sample().gpus] == [45, 50]
    child = prober.child_pid

    write_scenario(scenario, [StubGpu("GPU-1", 91), COOL[1]])

    assert [gpu.temperature_celsius for gpu in prober.sample().gpus] == [91, 50]
    assert prober.child_pid == child


def test_a_hung_call_is_named_and_the_other_gpu_goes_on(prober: Prober, scenario: Path) -> None:
    prober.sample()
    first_child = prober.child_pid
    hung = StubGpu("GPU-1", 45, hang="nvmlDeviceGetTemperature")
    write_scenario(scenario, [hung, COOL[1]])

    began = time.monotonic()
    reading = prober.sample()

    assert time.monotonic() - began < 10
    assert [gpu.uuid for gpu in reading.gpus] == ["GPU-2"]
    reason = "hung: the call did not come back in time"
    assert reading.blind == (Blind("nvml", "GPU-1", 0, "nvmlDeviceGetTemperature", reason),)
    assert prober.child_pid != first_child
    # The next rounds do not wait for it again, and still say that it is out of sight.
    began = time.monotonic()
    again = prober.sample()
    assert time.monotonic() - began < 0.9
    assert again.blind == reading.blind


def test_a_gpu_that_hung_is_tried_again(nvml_library: Path, scenario: Path) -> None:
    prober = make_prober(nvml_library, scenario, hung_gpu_retry_seconds=0.2)
    try:
        write_scenario(scenario, [StubGpu("GPU-1", hang="nvmlDeviceGetUUID"), COOL[1]])
        assert [blind.function for blind in prober.sample().blind] == ["nvmlDeviceGetUUID"]

        write_scenario(scenario, COOL)

        wait_for(lambda: not prober.sample().blind, 5)
    finally:
        prober.stop()


def test_a_library_that_hangs_is_blindness_of_all(prober: Prober, scenario: Path) -> None:
    write_scenario(scenario, COOL, hang="nvmlInitWithFlags")

    reading = prober.sample()

    assert reading.gpus == ()
    [blind] = reading.blind
    assert (blind.gpu, blind.slot, blind.function) == (None, None, "nvmlInitWithFlags")
    write_scenario(scenario, COOL)
    wait_for(lambda: len(prober.sample().gpus) == 2, 5)


def test_no_driver_is_blind_and_recovers_with_it(prober: Prober, scenario: Path) -> None:
    scenario.unlink()
    reading = prober.sample()
    assert reading.gpus == ()
    assert reading.blind == (Blind("nvml", None, None, "nvmlInitWithFlags", "Driver Not Loaded"),)

    write_scenario(scenario, COOL)

    wait_for(lambda: len(prober.sample().gpus) == 2, 5)


def test_no_library_is_blind(tmp_path: Path) -> None:
    prober = Prober({"LD_LIBRARY_PATH": str(tmp_path)})
    try:
        [blind] = prober.sample().blind
    finally:
        prober.stop()
    assert blind.function == "nvmlInitWithFlags"
    assert blind.reason == "NVML Shared Library Not Found"


def test_a_lost_gpu_is_blind_and_not_healthy(prober: Prober, scenario: Path) -> None:
    prober.sample()
    lost = StubGpu("GPU-1", errors={"nvmlDeviceGetHandleByIndex_v2": 15})
    write_scenario(scenario, [lost, COOL[1]])

    reading = prober.sample()

    assert [gpu.temperature_celsius for gpu in reading.gpus] == [None, 50]
    assert reading.blind == (
        Blind("nvml", "GPU-1", 0, "nvmlDeviceGetHandleByIndex_v2", "GPU is lost"),
    )


def test_a_killed_child_is_replaced(prober: Prober) -> None:
    prober.sample()
    child = prober.child_pid
    assert child is not None
    os.kill(child, signal.SIGKILL)

    reading = wait_for(lambda: (r := prober.sample()).gpus and r, 5)

    assert len(reading.gpus) == 2
    assert prober.child_pid != child


def test_the_child_dies_with_a_parent_that_is_killed(nvml_library: Path, scenario: Path) -> None:
    write_scenario(scenario, [StubGpu("GPU-1", hang="nvmlDeviceGetTemperature")])
    program = (
        "import threading\n"
        "from runtime.health.prober import Prober\n"
        "p = Prober()\n"
        "threading.Thread(target=p.sample).start()\n"
        "while p.child_pid is None: pass\n"
        "print(p.child_pid, flush=True)\n"
    )
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(nvml_library),
        SCENARIO_VARIABLE: str(scenario),
    }
    parent = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert Path(f"/proc/{child}").exists()

    parent.kill()
    parent.communicate()

    wait_for(lambda: not is_running(child), 5)


def is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_rounds_open_and_keep_a_finding_through_blindness(prober: Prober, scenario: Path) -> None:
    rounds = ThermalRounds(prober, load_thermal(), "n1")
    write_scenario(scenario, [StubGpu("GPU-1", 94), COOL[1]])

    [finding] = rounds.round(1_000_000)

    assert (finding["state"], finding["severity"]) == ("opened", "failed")
    assert finding["evidence"]["driver"] == "575.57.08"
    assert rounds.severities == {"GPU-1": "failed"}
    write_scenario(scenario, [COOL[1]])
    assert rounds.round(2_000_000) == []
    assert rounds.last.blind[0].as_json() == {
        "check": "thermal",
        "gpu": "GPU-1",
        "slot": None,
        "function": None,
        "reason": "the GPU is no longer listed by NVML",
    }
    write_scenario(scenario, [StubGpu("GPU-1", None), COOL[1]])
    wait_for(lambda: rounds.round(3_000_000) == [] and rounds.last.gpus[0].uuid == "GPU-1")
    [blind] = rounds.last.blind
    assert (blind.gpu, blind.reason) == ("GPU-1", "not supported")
    assert rounds.severities == {"GPU-1": "failed"}
