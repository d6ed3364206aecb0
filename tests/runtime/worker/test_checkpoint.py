"""A checkpoint is there whole, with the bits of its manifest, or it is not used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from runtime.errors import CheckpointInvalid
from runtime.worker import checkpoint
from runtime.worker.state import StateBook


def book(seed: int = 1) -> StateBook:
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32))
    model.register_buffer("mask", torch.tensor([True, False]))
    model.register_buffer("coarse", torch.randn(3, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return StateBook(model, optimizer, None, None, {})


def files(path: Path) -> list[Path]:
    return sorted(each for each in path.rglob("*") if each.is_file())


def test_it_comes_back_to_the_bit(tmp_path: Path):
    source, target = book(1), book(2)

    entry = checkpoint.save(tmp_path, source.capture(40), epoch=3)
    step = target.apply(checkpoint.load(Path(entry["path"]), entry["digest"]))

    assert entry == {
        "step": 40,
        "path": str(tmp_path / "step_000000040.epoch_3"),
        "digest": source.capture(40).digest(),
    }
    assert step == 40
    assert target.capture(40).digest() == source.capture(40).digest()
    assert [each.name for each in tmp_path.iterdir()] == ["step_000000040.epoch_3"]


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, str]:
    entry = checkpoint.save(tmp_path, book().capture(40), epoch=3)
    return Path(entry["path"]), entry["digest"]


def damages(size: int) -> list[int]:
    """Places all over a file: both ends and an even spread."""
    return sorted({0, 1, size // 2, size - 2, size - 1, *range(0, size, max(1, size // 12))})


def load_or_say(path: Path, digest: str) -> str:
    """The digest of what was loaded; empty where the checkpoint was refused."""
    try:
        return checkpoint.load(path, digest).digest()
    except CheckpointInvalid:
        return ""


def test_a_flipped_bit_anywhere_is_never_used(saved: tuple[Path, str]):
    path, digest = saved
    refused = 0
    for file in files(path):
        body = file.read_bytes()
        for place in damages(len(body)):
            damaged = bytearray(body)
            damaged[place] ^= 0x04
            file.write_bytes(damaged)

            found = load_or_say(path, digest)

            assert found in ("", digest)  # where the bit says nothing, the bits are the same
            refused += found == ""
        file.write_bytes(body)
    assert refused > 20
    assert load_or_say(path, digest) == digest


def test_a_flipped_bit_of_a_tensor_is_refused_by_name(saved: tuple[Path, str]):
    path, digest = saved
    (file,) = [each for each in files(path) if each.suffix == ".distcp"]
    body = file.read_bytes()
    weight = bytes(memoryview(book().model[0].weight.detach().numpy()).cast("B"))
    place = body.index(weight)
    file.write_bytes(body[:place] + bytes([body[place] ^ 1]) + body[place + 1 :])

    with pytest.raises(CheckpointInvalid, match=r"step_000000040\.epoch_3"):
        checkpoint.load(path, digest)


def test_a_truncated_or_missing_file_is_refused(saved: tuple[Path, str]):
    path, digest = saved
    for file in files(path):
        body = file.read_bytes()
        for keep in (0, 1, len(body) // 2, len(body) - 1):
            file.write_bytes(body[:keep])
            assert load_or_say(path, digest) in ("", digest)
        file.write_bytes(body[: len(body) // 2])
        assert load_or_say(path, digest) == ""
        file.unlink()
        assert load_or_say(path, digest) == ""
        file.write_bytes(body)

    assert load_or_say(path, digest) == digest


@pytest.mark.parametrize("manifest", ["", "[]", "null", '{"header": 7}', '{"header": {}}'])
def test_a_manifest_of_another_shape_is_refused(saved: tuple[Path, str], manifest: str):
    path, digest = saved
    (path / "manifest.json").write_text(manifest)

    with pytest.raises(CheckpointInvalid, match="cannot be read"):
        checkpoint.load(path, digest)


def test_a_whole_checkpoint_of_another_state_is_refused(tmp_path: Path):
    entry = checkpoint.save(tmp_path, book(1).capture(40), epoch=3)

    with pytest.raises(CheckpointInvalid, match="does not have the digest"):
        checkpoint.load(Path(entry["path"]), book(2).capture(40).digest())


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from runtime.worker import checkpoint
from tests.runtime.worker.test_checkpoint import book

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder = Path(sys.argv[1])
said = []
saver = checkpoint.Saver(folder, said.append)
saver.begin(book(1).capture(20), 1)
saver.wait()
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
saver.begin(book(2).capture(40), 1)
saver.wait()
assert isinstance(saver.error, OSError), saver.error
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
saver.begin(book(3).capture(60), 1)
saver.wait()
print([entry["step"] for entry in said])
"""


def test_a_full_disk_leaves_the_one_before_valid_and_no_half_one(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path), "3000"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[20, 60]"
    assert "checkpoint not written" in done.stdout
    assert "Traceback" not in done.stderr
    names = ["step_000000020.epoch_1", "step_000000060.epoch_1"]
    assert sorted(each.name for each in tmp_path.iterdir()) == names
    path = tmp_path / names[0]
    digest = json.loads((path / "manifest.json").read_text())["digest"]
    assert digest == book(1).capture(20).digest() == checkpoint.load(path, digest).digest()


def test_the_newest_two_are_kept_by_number_and_not_by_name(tmp_path: Path):
    for step, epoch in ((30, 9), (40, 9), (40, 10), (100, 10)):
        checkpoint.save(tmp_path, book().capture(step), epoch)

    checkpoint.prune(tmp_path)

    assert sorted(each.name for each in tmp_path.iterdir()) == [
        "step_000000040.epoch_10",
        "step_000000100.epoch_10",
    ]


def test_what_a_killed_process_left_half_written_is_cleared_away(tmp_path: Path):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    left = tmp_path / f".step_000000020.epoch_1.{ended.pid}"
    at_work = tmp_path / f".step_000000020.epoch_1.{os.getppid()}"
    for folder in (left, at_work):
        (folder / "tensors").mkdir(parents=True)

    checkpoint.prune(tmp_path)

    assert list(tmp_path.iterdir()) == [at_work]


def test_saving_a_step_again_replaces_it_whole(tmp_path: Path):
    checkpoint.save(tmp_path, book(1).capture(40), epoch=3)
    entry = checkpoint.save(tmp_path, book(2).capture(40), epoch=3)

    found = checkpoint.load(Path(entry["path"]), entry["digest"])

    assert found.digest() == book(2).capture(40).digest()
