"""State arrives whole and with its donor's digest, from whoever is left, or not at all."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest
import torch

from runtime.errors import TransferFailed
from runtime.lines import LineSocket
from runtime.worker import transfer
from runtime.worker.transfer import Donor, receive
from tests.runtime.worker.donor_process import CHUNK_BYTES, state
from tests.runtime.worker.proxy import Proxy

STATE = state(1)
EPOCH = 5


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "CHUNK_BYTES", CHUNK_BYTES)


@pytest.fixture
def make() -> Iterator[Callable[..., Donor]]:
    """Donors in this process: they offer STATE to epochs after 4."""
    with contextlib.ExitStack() as stack:

        def made(snapshot=STATE, after_epoch: int = EPOCH - 1) -> Donor:
            donor = Donor("token")
            stack.callback(donor.close)
            if snapshot is not None:
                donor.offer(after_epoch, snapshot)
            return donor

        yield made


@pytest.fixture
def through() -> Iterator[Callable[..., Proxy]]:
    with contextlib.ExitStack() as stack:

        def made(endpoint: str, change: Callable[[int, bytes], bytes | None]) -> Proxy:
            proxy = Proxy(endpoint, change)
            stack.callback(proxy.close)
            return proxy

        yield made


@pytest.fixture
def process() -> Iterator[Callable[[int], tuple[subprocess.Popen, str]]]:
    started = []

    def made(seed: int) -> tuple[subprocess.Popen, str]:
        argv = [sys.executable, "-m", "tests.runtime.worker.donor_process", str(seed)]
        popen = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(popen)
        return popen, popen.stdout.readline().strip()

    yield made
    for popen in started:
        popen.kill()
        popen.wait()
        popen.stdin.close()
        popen.stdout.close()


def donors(*endpoints: str) -> list[dict[str, str]]:
    return [{"name": f"d{n}", "endpoint": endpoint} for n, endpoint in enumerate(endpoints)]


def unchanged(_passed: int, piece: bytes) -> bytes:
    return piece


def test_three_donors_each_send_a_part(make, through):
    proxies = [through(make().endpoint, unchanged) for _ in range(3)]

    received = receive(donors(*(each.endpoint for each in proxies)), "token", EPOCH)

    assert received.digest == STATE.digest() == received.snapshot.digest()
    assert received.bytes == STATE.nbytes
    assert received.sources == ["d0", "d1", "d2"]
    passed = [each.passed for each in proxies]
    assert min(passed) > CHUNK_BYTES
    assert sum(passed) < STATE.nbytes * 1.05  # nothing was sent twice
    for mine, theirs in zip(received.snapshot.tensors, STATE.tensors, strict=True):
        assert torch.equal(mine, theirs)


def test_a_donor_killed_in_the_middle_costs_its_open_chunk_only(make, through, process):
    popen, endpoint = process(1)

    def kill(passed: int, piece: bytes) -> bytes | None:
        if passed < STATE.nbytes // 4:
            return piece
        popen.kill()
        popen.wait()
        return None

    # Alone until it dies: the other donor's line stands, but its proxy holds everything back.
    dying = through(endpoint, kill)
    living = through(make().endpoint, lambda _, piece: piece if popen.wait() else None)

    received = receive(donors(dying.endpoint, living.endpoint), "token", EPOCH)

    assert popen.returncode == -9
    assert received.digest == STATE.digest()
    assert received.sources == ["d1"]
    assert living.passed < STATE.nbytes * 0.8


def flip(place: int, done: threading.Event) -> Callable[[int, bytes], bytes]:
    """Flips one bit of the byte at a place in the donor's stream."""

    def change(passed: int, piece: bytes) -> bytes:
        if not passed <= place < passed + len(piece):
            return piece
        done.set()
        damaged = bytearray(piece)
        damaged[place - passed] ^= 0x10
        return bytes(damaged)

    return change


def after(event: threading.Event) -> Callable[[int, bytes], bytes]:
    """Holds everything back until something has happened elsewhere."""

    def change(_passed: int, piece: bytes) -> bytes:
        event.wait(20.0)
        return piece

    return change


# In the header's length, its check sum and its body; in a chunk.
@pytest.mark.parametrize("place", [0, 2, 6, 40, 300_000, 1_000_001])
def test_a_damaged_byte_is_noticed_and_another_donor_serves(
    make, through, place: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(transfer, "_IO_SECONDS", 1.0)  # for a length that says too much
    flipped = threading.Event()
    damaged = through(make().endpoint, flip(place, flipped))
    sound = through(make().endpoint, after(flipped))

    received = receive(donors(damaged.endpoint, sound.endpoint), "token", EPOCH)

    assert flipped.is_set()
    assert received.digest == STATE.digest()
    assert received.sources == ["d1"]


def test_a_damaged_byte_of_the_only_donor_is_a_failed_transfer(make, through):
    damaged = through(make().endpoint, flip(300_000, threading.Event()))

    with pytest.raises(TransferFailed, match=r"no donor could finish.*arrived damaged"):
        receive(donors(damaged.endpoint), "token", EPOCH)


def test_donors_of_different_states_are_found_out_by_the_digest(make, through):
    began = threading.Event()

    def tell(passed: int, piece: bytes) -> bytes:
        if passed > 200_000:
            began.set()
        return piece

    def wait(passed: int, piece: bytes) -> bytes:
        if passed > 200_000:
            began.wait(20.0)  # so that both of them have sent chunks
        return piece

    first = through(make(STATE).endpoint, wait)
    second = through(make(state(2)).endpoint, tell)

    with pytest.raises(TransferFailed, match="the state received has digest"):
        receive(donors(first.endpoint, second.endpoint), "token", EPOCH)


def test_a_donor_whose_digest_is_another_is_not_believed(make):
    donor = make()
    donor._digest = "0" * 64

    with pytest.raises(TransferFailed, match="d0's 0000"):
        receive(donors(donor.endpoint), "token", EPOCH)


@pytest.mark.parametrize("epoch", [EPOCH - 1, 0])
def test_an_epoch_that_is_over_is_fenced(make, epoch: int):
    with pytest.raises(TransferFailed, match="no donor answers: d0: d0 closed the line"):
        receive(donors(make().endpoint), "token", epoch)


def test_a_wrong_token_gets_nothing(make):
    with pytest.raises(TransferFailed, match="no donor answers"):
        receive(donors(make().endpoint), "tok", EPOCH)


def test_what_was_withdrawn_is_not_given(make):
    donor = make()
    donor.withdraw()

    with pytest.raises(TransferFailed, match="no donor answers"):
        receive(donors(donor.endpoint), "token", EPOCH)


def test_none_left_is_a_failed_transfer_that_names_them_all(make):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = f"127.0.0.1:{listener.getsockname()[1]}"

    with pytest.raises(TransferFailed, match=r"d0: .*refused.*; d1: d1 closed the line"):
        receive(donors(dead, make(None).endpoint), "token", EPOCH)
    with pytest.raises(TransferFailed, match="no donor answers"):
        receive([], "token", EPOCH)


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "chunk", "index": 10_000, "offset": 0},
        {"op": "chunk", "index": None, "offset": 0},
        {"op": "chunk"},
        {"no": "op"},
    ],
)
def test_a_bad_request_closes_its_own_line_only(make, request_: dict):
    donor = make()
    line = LineSocket.connect(donor.endpoint, 5.0)
    line.send({"token": "token", "epoch": EPOCH})
    line.send(request_)

    assert line.sock.recv(1) == b""
    line.close()
    assert receive(donors(donor.endpoint), "token", EPOCH).digest == STATE.digest()


def test_the_state_of_tensors_that_are_live_is_what_they_hold(make):
    snapshot = state(2)
    received = receive(donors(make(snapshot).endpoint), "token", EPOCH)

    snapshot.tensors[0].zero_()

    assert received.digest != snapshot.digest()
    assert received.snapshot.digest() == received.digest
