"""The drill's training script: what a user would write, plus a trace and self-inflicted faults."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from runtime.worker import Run, join
from runtime.worker.drill_faults import Faults
from runtime.worker.drill_model import SIZES, Training, build
from runtime.worker.drill_trace import Trace


def train(training: Training, run: Run, trace: Trace) -> None:
    faults = Faults.from_environment(
        lambda: trace.write("fault", rank=run.rank, step=run.step, epoch=run.epoch)
    )
    faults.attach(training.model, training.optimizer)
    for batch in run.steps():
        rank, step, epoch = run.rank, run.step, run.epoch
        faults.rank, faults.step = rank, step
        trace.attempt(step)
        trace.write("begin", rank=rank, step=step, epoch=epoch, ids=batch.ids)
        loss = training.loss(batch)
        trace.write("forward", rank=rank, step=step, epoch=epoch)
        loss.backward()
        trace.write("backward", rank=rank, step=step, epoch=epoch)
        if done := run.commit(loss, clip_norm=1.0):
            trace.write("committed", rank=rank, step=done.step, epoch=epoch, loss=done.loss.hex())
    digest = run.state_digest()
    trace.write("final", rank=run.rank, step=run.committed_step, epoch=run.epoch, digest=digest)


def main() -> None:
    size, steps, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    training = build(SIZES[size], steps, seed)
    trace = Trace(Path(os.environ["UNBROKEN_DRILL_FOLDER"]) / "trace.jsonl")
    sample = training.data.batch(1, 0, 1)
    run = join(
        model=training.model,
        optimizer=training.optimizer,
        scheduler=training.scheduler,
        data=training.data,
        seed=seed,
        warm_up=lambda: training.loss(sample),
    )
    train(training, run, trace)


if __name__ == "__main__":
    main()
