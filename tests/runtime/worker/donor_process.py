"""A process that offers a state, for tests that kill it; prints its endpoint."""

from __future__ import annotations

import sys

import torch

from runtime.worker import transfer
from runtime.worker.state import Snapshot, StateBook

CHUNK_BYTES = 64 << 10


def state(seed: int, step: int = 12) -> Snapshot:
    """A few MB of tensors, the same in every process that asks with the same arguments."""
    torch.manual_seed(seed)
    model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.Linear(1024, 256))
    model.register_buffer("empty", torch.zeros(0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return StateBook(model, optimizer, None, None, {}).capture(step)


def main() -> None:
    transfer.CHUNK_BYTES = CHUNK_BYTES
    donor = transfer.Donor("token")
    donor.offer(4, state(int(sys.argv[1])))
    print(donor.endpoint, flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
