"""The loop that survives: `join` gives a Run, whose `steps` and `commit` hide failures."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from runtime.errors import UsageError
from runtime.worker import points
from runtime.worker.data import StepData
from runtime.worker.gradients import Reducer, shared_buffers
from runtime.worker.link import Identity
from runtime.worker.membership import Membership
from runtime.worker.numerics import fingerprint, framework, seed_step
from runtime.worker.state import HasStateDict, StateBook

WARM_UP_STEPS = 2


@dataclass(frozen=True)
class Committed:
    """A step that counts, on every rank and for ever."""

    step: int
    loss: float
    grad_norm: float | None


def join(
    *,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    data: StepData,
    scheduler: HasStateDict | None = None,
    scaler: torch.amp.GradScaler | None = None,
    extras: Mapping[str, HasStateDict] | None = None,
    seed: int = 0,
    warm_up: Callable[[], torch.Tensor] | None = None,
) -> Run:
    """Joins the run that started this process and returns once this process has a rank.

    A spare waits in here until it is needed. `warm_up` computes a loss on any batch of the right
    shape; with it, two steps run before this process takes part, so that its first real step costs
    no more than any other. A `scaler` scales in the script (`scaler.scale(loss).backward()`), the
    rest of its work is done in `commit`.

    All state is as it was before the warm-up when `join` returns.

    Raises UsageError where the arguments cannot work, before anything is joined.
    """
    identity = Identity.from_environment()
    if identity is None:
        raise UsageError(
            "this process belongs to no run: start the script with "
            "`python -m runtime launch --nproc N --spares S SCRIPT`"
        )
    if not isinstance(data, StepData):
        raise UsageError(
            "data must give batches by step: a class with `steps` and "
            "`batch(step, rank, world_size)` (see runtime.worker.StepSampler)"
        )
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        raise UsageError("pass the bare model: the run reduces gradients itself (model.module)")
    book = StateBook(model, optimizer, scheduler, scaler, extras or {})
    membership = Membership(identity, book)
    run = Run(membership, scheduler, scaler, data, seed)
    run.enter(warm_up)
    return run


class Run:
    """One rank's part in a run; lives as long as the process."""

    def __init__(
        self,
        membership: Membership,
        scheduler: HasStateDict | None,
        scaler: torch.amp.GradScaler | None,
        data: StepData,
        seed: int,
    ) -> None:
        model = membership.book.model
        self._optimizer = membership.book.optimizer
        self._scheduler = scheduler
        self._scaler = scaler
        self._data = data
        self._seed = seed
        self._membership = membership
        self._reducer = Reducer(
            list(model.named_parameters()), membership.group.all_reduce, shared_buffers(model)
        )
        self._buffers: list[torch.Tensor] = []
        self._open = False
        self._began = 0.0
        self._seconds: list[float] = []

    # -- what a script may read ---------------------------------------------------------------

    @property
    def rank(self) -> int:
        return self._membership.group.rank

    @property
    def world_size(self) -> int:
        return self._membership.group.size

    @property
    def epoch(self) -> int:
        return self._membership.group.epoch

    @property
    def committed_step(self) -> int:
        return self._membership.committed_step

    @property
    def step(self) -> int:
        """The step in flight, counted from 1."""
        return self.committed_step + 1

    def state_digest(self) -> str:
        """BLAKE3 of all state at the committed step (between steps only)."""
        return self._membership.book.capture(self.committed_step).digest()

    # -- joining ------------------------------------------------------------------------------

    def enter(self, warm_up: Callable[[], torch.Tensor] | None) -> None:
        """Warms up on a detached group, says that it is ready, and waits for a rank."""
        membership = self._membership
        points.reach("warming_up")
        membership.remember_initial()
        for _ in range(WARM_UP_STEPS if warm_up is not None else 0):
            assert warm_up is not None  # noqa: S101 - for the type checker
            self._reducer.begin_step()
            warm_up().backward()
            self._reducer.finish(0, 1)
            self._optimizer.step()
            self._optimizer.zero_grad(set_to_none=True)
        membership.restore_initial()
        membership.ready(fingerprint(self._reducer.plan.digest), framework())
        points.reach("ready")
        membership.regroup()

    # -- the loop -----------------------------------------------------------------------------

    def steps(self) -> Iterator[Any]:
        """Yields the batch of each step; the same batch again where its step has to be redone."""
        membership = self._membership
        while True:
            if self._open:
                raise UsageError(
                    "the next batch was asked for without run.commit(loss): call it once a batch"
                )
            if self.committed_step >= self._data.steps:
                if membership.finish():
                    return
                self._regroup()
                continue
            if not membership.may_begin(self.step):
                self._regroup()
                continue
            self._begin()
            points.reach("forward", step=self.step)
            yield self._data.batch(self.step, self.rank, self.world_size)

    def _begin(self) -> None:
        self._buffers = [buffer.clone() for buffer in self._membership.book.buffers()]
        seed_step(self._seed, self.rank, self.step)
        self._reducer.begin_step()
        self._open = True
        self._began = time.monotonic()

    def commit(self, loss: torch.Tensor, clip_norm: float | None = None) -> Committed | None:
        """Ends a step: averages, unscales, clips, steps optimizer and scheduler, zeroes gradients.

        `loss` is what it reports, so the one before `scaler.scale`. None when the step is void: it
        changed nothing, and its batch comes again.
        """
        if not self._open:
            raise UsageError("run.commit was called twice for one batch")
        if not self._reducer.finish(self.rank, self.world_size):
            self._void()
            return None
        self._open = False
        self._buffers = []
        grad_norm = self._update(clip_norm)
        if self._scheduler is not None:
            self._scheduler.step()  # type: ignore[attr-defined]  # every torch scheduler has it
        self._optimizer.zero_grad(set_to_none=True)
        self._seconds.append(time.monotonic() - self._began)
        size = self.world_size
        samples = getattr(self._data, "samples_per_rank", None)
        tokens = getattr(self._data, "tokens_per_rank", None)
        self._membership.committed(
            self._seconds,
            None if samples is None else samples * size,
            None if tokens is None else tokens * size,
        )
        return Committed(self.committed_step, float(loss.detach()), grad_norm)

    def _update(self, clip_norm: float | None) -> float | None:
        """Unscales, clips, steps. A step that the scaler skips is the same on every rank: it sees
        the averaged gradients; it counts, with no change of parameters."""
        points.reach("optimizer")
        scaler, grad_norm = self._scaler, None
        if scaler is not None:
            scaler.unscale_(self._optimizer)
        if clip_norm is not None:
            parameters = [parameter for _, parameter in self._reducer.parameters]
            grad_norm = float(torch.nn.utils.clip_grad_norm_(parameters, clip_norm))
        if scaler is not None:
            scaler.step(self._optimizer)
            scaler.update()
        else:
            self._optimizer.step()
        return grad_norm

    def _void(self) -> None:
        """Says that the step is void; what it changed is put back before the next one begins."""
        self._open = False
        self._membership.say_void()
        return None

    @torch.no_grad()
    def _regroup(self) -> None:
        self._optimizer.zero_grad(set_to_none=True)
        for buffer, before in zip(self._membership.book.buffers(), self._buffers, strict=False):
            buffer.copy_(before)
        self._buffers = []
        self._membership.regroup()
