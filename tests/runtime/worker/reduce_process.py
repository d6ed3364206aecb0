"""Four real Gloo processes that reduce gradients; prints one JSON document of what each saw."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from runtime.worker.gradients import Reducer, shared_buffers
from runtime.worker.state import tensor_bytes
from runtime.worker.twin import PlainSum

RANKS = 4
SMALL = 4 * 50  # bytes a bucket: many buckets


class Model(torch.nn.Module):
    """Two dtypes, a parameter that no loss reaches, one that only rank 2's does, and buffers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a = torch.nn.Parameter(torch.randn(7, 5))
        self.b = torch.nn.Parameter(torch.randn(11, dtype=torch.float64))
        self.unused = torch.nn.Parameter(torch.randn(4))
        self.sometimes = torch.nn.Parameter(torch.randn(3))
        self.c = torch.nn.Parameter(torch.randn(60))
        self.register_buffer("count", torch.zeros(2, dtype=torch.int64))
        self.register_buffer("flag", torch.tensor([False, False, False]))
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def gradients(model: Model, rank: int, whole: bool) -> dict[str, torch.Tensor]:
    torch.manual_seed(100 + rank)
    made = {}
    for name in ("a", "b", "c") + (("sometimes",) if rank == 2 else ()):
        parameter = dict(model.named_parameters())[name]
        if whole:
            made[name] = torch.randint(-99, 99, parameter.shape).to(parameter.dtype)
        else:
            made[name] = torch.randn(parameter.shape, dtype=parameter.dtype)
    return made


def reduce(rank: int, whole: bool) -> dict[str, str]:
    model = Model()
    reducer = Reducer(
        list(model.named_parameters()), PlainSum, shared_buffers(model), bucket_bytes=SMALL
    )
    model.count += rank + 5
    model.flag[rank % 3] = True
    model.mean += 0.1 * (rank + 1)
    model.scratch += rank
    reducer.begin_step()
    parameters = dict(model.named_parameters())
    made = gradients(model, rank, whole)
    sum((parameters[name] * made[name]).sum() for name in made).backward()
    assert reducer.finish(rank, RANKS)
    found = {name: bytes(tensor_bytes(each.grad)).hex() for name, each in parameters.items()}
    return found | {name: bytes(tensor_bytes(each)).hex() for name, each in model.named_buffers()}


def plain(rank: int) -> dict[str, str]:
    """The mean by plain all-reduces of the same flat buckets."""
    model = Model()
    parameters = [item for item in model.named_parameters() if item[1].requires_grad]
    made = gradients(model, rank, whole=False)
    reducer = Reducer(parameters, PlainSum, [], bucket_bytes=SMALL)
    found = {}
    for bucket in reducer.plan.buckets:
        names = [parameters[index][0] for index in bucket.indices]
        flat = torch.cat(
            [
                made.get(name, torch.zeros_like(parameters[i][1])).reshape(-1).to(bucket.dtype)
                for name, i in zip(names, bucket.indices, strict=True)
            ]
        )
        dist.all_reduce(flat)
        flat /= RANKS
        for name, part in zip(
            names, flat.split([parameters[i][1].numel() for i in bucket.indices]), strict=True
        ):
            found[name] = bytes(tensor_bytes(part)).hex()
    return found


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    children = []
    for rank in range(RANKS):
        if (pid := os.fork()) == 0:
            store = dist.FileStore(str(folder / "store"), RANKS)
            dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS)
            seen = {"whole": reduce(rank, True), "real": reduce(rank, False), "plain": plain(rank)}
            (folder / f"rank{rank}").write_text(json.dumps(seen))
            os._exit(0)
        children.append(pid)
    sys.exit(any(os.waitpid(pid, 0)[1] for pid in children))


if __name__ == "__main__":
    main()
