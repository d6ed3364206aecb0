"""`python -m runtime launch`: a user's script in the form that the documentation shows."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

SCRIPT = """
import os, signal, sys, time
from pathlib import Path
import torch
from runtime.worker import StepSampler, join

out = Path(sys.argv[1])
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5),
                            torch.nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

class Data:
    steps = 12
    sampler = StepSampler(100, 4, seed=1)
    def batch(self, step, rank, world_size):
        ids = torch.tensor(self.sampler.ids(step, rank, world_size))
        return torch.sin(ids[:, None] * torch.arange(1, 9))

# So large that the first steps overflow and are skipped: they commit and change no parameter.
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
run = join(model=model, optimizer=optimizer, data=Data(), scaler=scaler)
first = True
for batch in run.steps():
    if run.step == 6 and run.rank == 2 and sys.argv[2] == "fail" and not (out / "failed").exists():
        (out / "failed").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[2] == "leave" and run.step == 4:
        break
    if sys.argv[2] == "raise" and run.step == 4 and run.rank == 1:
        raise RuntimeError("a mistake of the user's")
    loss = model(batch).square().mean()
    scaler.scale(loss).backward()
    run.commit(loss)
time.sleep(1.0)  # what a script does behind its loop is waited for
(out / f"rank{run.rank}").write_text(f"{run.state_digest()} {scaler.get_scale() < 2.0**127}")
"""


def launch(tmp_path: Path, mode: str, *flags: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    out = tmp_path / mode
    out.mkdir()
    return subprocess.run(
        [
            *(sys.executable, "-m", "runtime", "launch", "--nproc", "4", "--spares", "1"),
            *("--folder", str(tmp_path / f"run-{mode}"), *flags, str(script), str(out), mode),
        ],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def digests(folder: Path) -> list[str]:
    return [(folder / f"rank{rank}").read_text() for rank in range(4)]


def test_running_statistics_and_a_gradient_scaler_survive_bit_for_bit(tmp_path: Path):
    sound, failed = launch(tmp_path, "sound"), launch(tmp_path, "fail")

    assert sound.returncode == 0, sound.stderr
    assert failed.returncode == 0, failed.stderr
    assert (tmp_path / "fail" / "failed").exists()
    (end,) = {*digests(tmp_path / "sound"), *digests(tmp_path / "fail")}
    assert end.endswith(" True")  # the scaler did skip steps


def test_an_exception_of_the_script_fails_the_run_and_says_where_to_look(tmp_path: Path):
    done = launch(tmp_path, "raise")

    assert done.returncode == 1
    assert "run run: failed" in done.stdout
    assert "RuntimeError: a mistake of the user's" in done.stderr.splitlines()


def test_a_loop_that_is_left_early_fails_the_run_instead_of_going_round(tmp_path: Path):
    done = launch(tmp_path, "leave")

    assert done.returncode == 1
    assert "let the loop over run.steps() end" in done.stderr


def test_a_folder_of_another_run_is_refused(tmp_path: Path):
    (tmp_path / "run-again").mkdir()
    (tmp_path / "run-again" / "journal").touch()

    done = launch(tmp_path, "again")

    assert done.returncode == 2
    assert "holds another run already" in done.stderr


def test_a_script_that_cannot_start_fails_the_run(tmp_path: Path):
    script = tmp_path / "broken.py"
    script.write_text("import nothing_of_that_name\n")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "runtime", "launch", "--nproc", "2", "--spares", "0"),
            *("--folder", str(tmp_path / "run"), str(script)),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )

    assert done.returncode == 1
    assert "No module named 'nothing_of_that_name'" in done.stderr


def test_a_port_in_use_is_one_clear_line(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = launch(tmp_path, "port", "--port", str(port))

    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert "Traceback" not in done.stderr


def test_outside_a_run_join_says_how_to_start():
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import torch; from runtime.worker import join; m = torch.nn.Linear(1, 1);"
            "join(model=m, optimizer=torch.optim.SGD(m.parameters(), lr=1.0), data=None)",
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 1
    assert "python -m runtime launch --nproc N" in done.stderr


def test_a_terminated_launcher_leaves_no_process(tmp_path: Path):
    script = tmp_path / "train.py"
    script.write_text("import time\ntime.sleep(600)\n")
    mark = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "runtime", "launch", "--nproc", "2", "--spares", "0"),
            *("--folder", str(tmp_path / "run"), str(script)),
        ],
        env={**os.environ, "UNBROKEN_TEST_MARK": mark},
        stdout=subprocess.PIPE,
    )
    while len(with_mark(mark)) < 5:  # launcher, coordinator, zygote, two workers
        assert process.poll() is None
        time.sleep(0.05)

    process.send_signal(signal.SIGTERM)
    process.wait(20)

    assert with_mark(mark) == []


def with_mark(mark: str) -> list[int]:
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                continue
    return found
