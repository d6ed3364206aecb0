"""The loop as a script sees it: what a void step puts back, what commit does, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from runtime.errors import UsageError
from runtime.worker import join
from runtime.worker.loop import Run
from runtime.worker.state import StateBook


class Alone:
    """A membership of one rank whose sums fail when the test says so."""

    rank, size, epoch = 0, 1, 1

    def __init__(self, book: StateBook) -> None:
        self.book, self.group = book, self
        self.committed_step = 0
        self.fail_next = self.broken = False

    def all_reduce(self, tensor: torch.Tensor) -> Alone:
        if self.fail_next:
            self.broken = True
            tensor.zero_()
        return self

    def wait(self) -> bool:
        return not self.broken

    def may_begin(self, _step: int) -> bool:
        return not self.broken

    def say_void(self) -> None:
        assert self.broken

    def regroup(self) -> None:
        self.fail_next = self.broken = False

    def committed(self, _seconds: list[float], _samples: object, _tokens: object) -> None:
        self.committed_step += 1

    def finish(self) -> bool:
        return True


class Data:
    steps = 3

    def batch(self, step: int, _rank: int, _world_size: int) -> torch.Tensor:
        return torch.full((4, 2), float(step))


class Script:
    """A small training: dropout, running statistics, a schedule."""

    def __init__(self, scaler: torch.amp.GradScaler | None = None) -> None:
        torch.manual_seed(5)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout(0.5)
        )
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 1, gamma=0.5)
        self.book = StateBook(self.model, self.optimizer, self.scheduler, scaler, {})
        self.membership = Alone(self.book)
        self.run = Run(self.membership, self.scheduler, scaler, Data(), seed=9)  # type: ignore[arg-type]

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return self.model(batch + torch.rand_like(batch)).square().mean()

    def digest(self) -> str:
        return self.book.capture(self.membership.committed_step).digest()


def played(void_at: list[int]) -> tuple[Script, list[Any]]:
    script, seen = Script(), []
    voids = list(void_at)
    for batch in script.run.steps():
        if voids and script.run.step == voids[0]:
            voids.pop(0)
            script.membership.fail_next = True
        loss = script.loss(batch)
        loss.backward()
        done = script.run.commit(loss, clip_norm=1.0)
        seen.append((float(batch[0, 0]), done and done.step, done and done.loss))
    return script, seen


def test_void_steps_come_again_and_leave_no_trace():
    plain, undisturbed = played([])
    script, seen = played([1, 2, 2, 3])

    assert [entry for entry in seen if entry[1]] == undisturbed
    assert [entry[0] for entry in seen] == [1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 3.0]
    assert [entry[1] for entry in undisturbed] == [1, 2, 3]
    assert script.digest() == plain.digest()


def test_commit_reports_the_norm_before_clipping():
    script = Script()
    batch = next(iter(script.run.steps()))
    loss = script.loss(batch)
    loss.backward()
    norm = torch.nn.utils.get_total_norm([p.grad for p in script.model.parameters()])

    done = script.run.commit(loss, clip_norm=1e-3)

    assert done.grad_norm == pytest.approx(float(norm))
    assert all(parameter.grad is None for parameter in script.model.parameters())


def test_a_second_commit_and_a_missing_one_are_refused():
    script = Script()
    steps = script.run.steps()
    loss = script.loss(next(steps))
    with pytest.raises(UsageError, match=r"without run\.commit"):
        next(steps)

    script = Script()
    loss = script.loss(next(script.run.steps()))
    loss.backward()
    script.run.commit(loss)
    with pytest.raises(UsageError, match="called twice for one batch"):
        script.run.commit(loss)


def scaled(scale: float) -> tuple[Script, torch.amp.GradScaler]:
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2)
    return Script(scaler), scaler


def test_a_grad_scaler_is_unscaled_stepped_and_updated():
    script, scaler = scaled(1024.0)
    for batch in script.run.steps():
        loss = script.loss(batch)
        scaler.scale(loss).backward()
        script.run.commit(loss, clip_norm=1.0)

    plain, _ = played([])
    for mine, theirs in zip(script.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(mine, theirs)
    assert scaler.get_scale() == 2048.0


def test_a_step_that_the_scaler_skips_counts_and_changes_no_parameter():
    script, scaler = scaled(1024.0)
    batch = next(iter(script.run.steps()))
    before = [parameter.clone() for parameter in script.model.parameters()]
    loss = script.loss(batch)
    (scaler.scale(loss) * float("inf")).backward()

    done = script.run.commit(loss)

    assert done.step == 1
    assert all(map(torch.equal, before, script.model.parameters()))
    assert scaler.get_scale() == 512.0


def test_join_outside_a_run_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("UNBROKEN_COORDINATOR", raising=False)
    script = Script()

    with pytest.raises(UsageError, match="python -m runtime launch"):
        join(model=script.model, optimizer=script.optimizer, data=Data())


def test_data_that_cannot_be_had_by_step_is_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("UNBROKEN_COORDINATOR", "127.0.0.1:1")
    script = Script()

    with pytest.raises(UsageError, match="data must give batches by step"):
        join(model=script.model, optimizer=script.optimizer, data=[1, 2, 3])  # type: ignore[arg-type]
