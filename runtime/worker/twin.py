"""The uninterrupted twin: the same training in plain torch, without any failover.

Of the runtime it uses only the bucket plan with its hooks, the seed rule and the state's digest.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from runtime.processes import die_with_parent
from runtime.worker.drill_model import SIZES, build
from runtime.worker.drill_trace import Trace
from runtime.worker.gradients import Reducer, shared_buffers
from runtime.worker.numerics import seed_step
from runtime.worker.state import StateBook


class PlainSum:
    """A plain asynchronous all-reduce with the waiting side that the reducer expects."""

    def __init__(self, buffer: torch.Tensor) -> None:
        self._work = dist.all_reduce(buffer, async_op=True)

    def wait(self) -> bool:
        assert self._work is not None  # noqa: S101 - this rank is in the group
        self._work.wait()
        return True


def train(size: str, steps: int, seed: int, trace: Trace) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    training = build(SIZES[size], steps, seed)
    model, optimizer = training.model, training.optimizer
    reducer = Reducer(list(model.named_parameters()), PlainSum, shared_buffers(model))
    for step in range(1, steps + 1):
        batch = training.data.batch(step, rank, world_size)
        trace.attempt(step)
        trace.write("begin", rank=rank, step=step, epoch=1, ids=batch.ids)
        seed_step(seed, rank, step)
        reducer.begin_step()
        loss = training.loss(batch)
        loss.backward()
        reducer.finish(rank, world_size)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        training.scheduler.step()
        optimizer.zero_grad(set_to_none=True)
        trace.write("committed", rank=rank, step=step, epoch=1, loss=float(loss.detach()).hex())
    book = StateBook(model, optimizer, training.scheduler, None, {})
    trace.write("final", rank=rank, step=steps, epoch=1, digest=book.capture(steps).digest())


def main() -> None:
    folder, size, ranks = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    steps, seed = int(sys.argv[4]), int(sys.argv[5])
    torch.set_num_threads(1)
    children = []
    parent = os.getpid()
    for rank in range(ranks):
        pid = os.fork()
        if pid == 0:
            status = 1
            if not die_with_parent(parent):
                os._exit(1)
            try:
                store = dist.FileStore(str(folder / "twin-store"), ranks)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=ranks)
                train(size, steps, seed, Trace(folder / "trace.jsonl"))
                status = 0
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stderr.flush()
                os._exit(status)
        children.append(pid)
    failed = [pid for pid in children if os.waitpid(pid, 0)[1] != 0]
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
