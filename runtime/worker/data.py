"""Data by step: a pure function of (seed, step, rank), so nothing has to be moved."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch


@runtime_checkable
class StepData(Protocol):
    """What `join(data=…)` takes: `steps` optimizer steps, each with a batch a rank.

    It may say `samples_per_rank` and `tokens_per_rank` of a step too; progress reports then carry
    samples and tokens per second of the whole run.
    """

    steps: int

    def batch(self, step: int, rank: int, world_size: int) -> Any:
        """The batch of one rank in step 1..steps; the same arguments give the same batch."""


class StepSampler:
    """Sample ids without replacement within an epoch of the data, reshuffled by seed each epoch."""

    def __init__(self, samples: int, batch_size: int, seed: int) -> None:
        if samples < 1 or batch_size < 1:
            raise ValueError("a sampler needs at least one sample and a batch of at least one")
        self._samples, self._batch_size, self._seed = samples, batch_size, seed
        self._cached: tuple[int, list[int]] | None = None

    def ids(self, step: int, rank: int, world_size: int) -> list[int]:
        """Ids of the samples that `rank` uses in `step` (counted from 1)."""
        first = ((step - 1) * world_size + rank) * self._batch_size
        return [self._id(position) for position in range(first, first + self._batch_size)]

    def _id(self, position: int) -> int:
        epoch, place = divmod(position, self._samples)
        if self._cached is None or self._cached[0] != epoch:
            generator = torch.Generator().manual_seed(self._seed * 1_000_003 + epoch)
            order: list[int] = torch.randperm(self._samples, generator=generator).tolist()
            self._cached = (epoch, order)
        return self._cached[1][place]
