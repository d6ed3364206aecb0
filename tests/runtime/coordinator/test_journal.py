"""The journal gives back the last state that was written whole, whatever happened to the file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.coordinator import journal as journal_module
from runtime.coordinator.journal import Journal
from runtime.coordinator.model import Config, State, Worker


def state(epoch: int) -> State:
    made = State(Config("run", "cluster", 4, 2), epoch=epoch)
    made.workers["w0#1"] = Worker("w0#1", "w0", 1, "n0", 7, received={"digest": "d"})
    made.checkpoints = [{"step": epoch, "path": "p", "digest": "d"}]
    return made


def written(path: Path, *epochs: int) -> bytes:
    journal = Journal(path)
    for epoch in epochs:
        journal.write(state(epoch))
    journal.close()
    return path.read_bytes()


def epoch_of(path: Path) -> int | None:
    found = Journal.read(path)
    return None if found is None else found.epoch


def test_the_last_state_comes_back_whole(tmp_path: Path):
    assert Journal.read(tmp_path / "journal") is None

    written(tmp_path / "journal", 1, 2, 3)

    assert Journal.read(tmp_path / "journal") == state(3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    path = tmp_path_factory.mktemp("journal") / "journal"
    return path, written(path, 1, 2)


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_torn_last_line_falls_back_to_the_one_before(whole: tuple[Path, bytes], data):
    path, body = whole
    first = body.index(b"\n") + 1
    cut = data.draw(st.integers(first, len(body) - 1))
    path.write_bytes(body[:cut])

    assert epoch_of(path) == 1


@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_a_flipped_bit_is_never_believed(whole: tuple[Path, bytes], data):
    path, body = whole
    place = data.draw(st.integers(0, len(body) * 8 - 1))
    damaged = bytearray(body)
    damaged[place // 8] ^= 1 << place % 8
    path.write_bytes(damaged)

    found = Journal.read(path)

    assert found in (state(1), state(2), None)
    first = body.index(b"\n")
    if place // 8 < first:
        assert found == state(2)


def test_what_is_written_after_a_torn_line_counts(tmp_path: Path):
    path = tmp_path / "journal"
    body = written(path, 1, 2)
    path.write_bytes(body[:-20])

    written(path, 3)

    assert epoch_of(path) == 3


def test_a_long_journal_is_compacted_to_its_last_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    path = tmp_path / "journal"
    line = len(written(path, 1))
    monkeypatch.setattr(journal_module, "COMPACT_BYTES", 3 * line)
    sizes = []
    journal = Journal(path)
    for epoch in range(2, 9):
        journal.write(state(epoch))
        sizes.append(path.stat().st_size)
        assert epoch_of(path) == epoch
    journal.close()

    assert max(sizes) <= 3 * line
    assert list(tmp_path.iterdir()) == [path]


FULL_DISK = """
import resource, signal, sys
from pathlib import Path
from runtime.coordinator.journal import Journal
from tests.runtime.coordinator.test_journal import state

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path(sys.argv[1])
journal = Journal(path)
journal.write(state(1))
size = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, resource.RLIM_INFINITY))
try:
    journal.write(state(2))
except OSError as error:
    print(type(error).__name__)
assert path.stat().st_size == size
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
journal.write(state(3))
"""


def test_a_full_disk_leaves_what_stood_before_and_room_for_what_comes(tmp_path: Path):
    path = tmp_path / "journal"

    done = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True
    )

    assert done.stdout == "OSError\n"
    assert epoch_of(path) == 3
    assert path.read_bytes().count(b"\n") == 2


WRITER = """
import sys
from pathlib import Path
from runtime.coordinator import journal
from tests.runtime.coordinator.test_journal import state

journal.COMPACT_BYTES = 20_000
made = journal.Journal(Path(sys.argv[1]))
epoch = 0
while True:
    epoch += 1
    made.write(state(epoch))
    print(epoch, flush=True)
"""


@pytest.mark.parametrize("after", [1, 40, 333])
def test_a_writer_killed_at_any_moment_loses_nothing_it_had_said(tmp_path: Path, after: int):
    path = tmp_path / "journal"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True
    )
    said = 0
    while said < after:
        said = int(writer.stdout.readline())
    os.kill(writer.pid, signal.SIGKILL)
    rest = writer.stdout.read().split()
    writer.wait()
    said = int(rest[-1]) if rest else said

    assert epoch_of(path) in (said, said + 1)

    written(path, 100_000)
    assert epoch_of(path) == 100_000


def test_a_line_is_what_the_module_says(tmp_path: Path):
    line = written(tmp_path / "journal", 5)

    assert line[8:9] == b" "
    assert json.loads(line[9:])["epoch"] == 5
