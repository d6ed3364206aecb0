"""The reduction plan is the same wherever the parameters are, and its averages are the mean."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import UsageError
from runtime.worker.gradients import Reducer, plan_buckets
from runtime.worker.state import tensor_bytes
from tests.runtime.worker.reduce_process import RANKS, SMALL, Model, gradients


class Instant:
    """A sum over one rank."""

    def __init__(self, works: bool = True) -> None:
        self.works = works

    def wait(self) -> bool:
        return self.works


def reducer(model: torch.nn.Module, launch=lambda _: Instant(), size: int = SMALL) -> Reducer:
    return Reducer(list(model.named_parameters()), launch, [], bucket_bytes=size)


def parameters(*shapes: tuple[str, tuple[int, ...], torch.dtype]):
    return [(name, torch.nn.Parameter(torch.zeros(s, dtype=d))) for name, s, d in shapes]


F32, F64 = torch.float32, torch.float64


def test_the_plan_is_a_function_of_the_parameters_only():
    assert reducer(Model()).plan == reducer(Model()).plan


def test_the_digest_of_the_plan_is_frozen():
    """Spares of another build compare it; a change of it is a change of protocol."""
    plan = plan_buckets(parameters(("a", (2, 3), F32), ("b", (4,), F32), ("c", (1,), F64)), 32)

    assert [bucket.indices for bucket in plan.buckets] == [(2,), (1,), (0,)]
    assert plan.digest == "7ea78105ab55e48bcdeedf3dc82de8ffbf12e60ae92418a4bd936fbe268a31f2"


@pytest.mark.parametrize(
    "other",
    [
        parameters(("b", (4,), F32), ("a", (4,), F32)),
        parameters(("a", (4,), F32), ("c", (4,), F32)),
        parameters(("a", (2, 2), F32), ("b", (4,), F32)),
        parameters(("a", (4,), F64), ("b", (4,), F32)),
        parameters(("a", (4,), F32)),
    ],
    ids=["order", "name", "shape", "dtype", "count"],
)
def test_the_digest_tells_plans_apart(other):
    mine = parameters(("a", (4,), F32), ("b", (4,), F32))

    assert plan_buckets(mine, 1024).digest != plan_buckets(other, 1024).digest


def test_the_digest_tells_bucket_sizes_apart():
    mine = parameters(("a", (4,), F32), ("b", (4,), F32))

    assert plan_buckets(mine, 16).digest != plan_buckets(mine, 32).digest


@settings(deadline=None, max_examples=150)
@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from([F32, F64])), max_size=12),
    st.integers(1, 200),
)
def test_every_parameter_travels_once_in_reverse_order_with_its_own_kind(shapes, size: int):
    items = parameters(*((f"p{n}", (numel,), dtype) for n, (numel, dtype) in enumerate(shapes)))

    buckets = plan_buckets(items, size).buckets

    order = [index for bucket in buckets for index in bucket.indices]
    assert order == list(reversed(range(len(items))))
    for bucket in buckets:
        members = [items[index][1] for index in bucket.indices]
        assert {each.dtype for each in members} == {bucket.dtype}
        assert bucket.numel == sum(each.numel() for each in members)
        assert len(members) == 1 or bucket.numel * members[0].element_size() <= size


def test_a_step_with_a_failed_sum_leaves_the_gradients_alone():
    model = Model()
    made = reducer(model, launch=lambda _: Instant(works=False))
    made.begin_step()
    model.a.sum().backward()

    assert made.finish(0, 4) is False
    assert torch.equal(model.a.grad, torch.ones_like(model.a))
    assert model.unused.grad is None


def test_a_parameter_without_a_gradient_gets_zeros():
    model = Model()
    made = reducer(model)
    made.begin_step()
    model.a.sum().backward()

    assert made.finish(0, 1) is True
    assert torch.equal(model.unused.grad, torch.zeros(4))


def test_a_frozen_parameter_takes_no_part():
    model = Model()
    model.c.requires_grad_(False)

    assert "c" not in [name for name, _ in reducer(model).parameters]


def test_a_second_backward_in_a_step_is_refused_and_not_left_out():
    model = Model()
    made = reducer(model)
    made.begin_step()
    (model.a.sum() + model.c.sum()).backward()

    with pytest.raises(UsageError, match="c got a second gradient in one step"):
        model.c.sum().backward()

    made.begin_step()
    model.c.sum().backward()  # a new step is a new step


@pytest.fixture(scope="module")
def reduced(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("reduce")
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.worker.reduce_process", str(folder)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads((folder / f"rank{rank}").read_text()) for rank in range(RANKS)]


def test_four_processes_get_the_exact_mean_of_whole_numbers(reduced: list[dict]):
    model = Model()
    made = [gradients(model, rank, whole=True) for rank in range(RANKS)]
    for name, parameter in model.named_parameters():
        total = sum(each.get(name, torch.zeros_like(parameter)).double() for each in made)
        mean = bytes(tensor_bytes((total / RANKS).to(parameter.dtype))).hex()

        assert [rank["whole"][name] for rank in reduced] == [mean] * RANKS, name


def test_four_processes_get_the_bits_of_a_plain_all_reduce(reduced: list[dict]):
    for name, _ in Model().named_parameters():
        plain = [rank["plain"][name] for rank in reduced]

        assert [rank["real"][name] for rank in reduced] == plain, name
        assert len(set(plain)) == 1


def test_rank_0s_persistent_buffers_become_everybodys(reduced: list[dict]):
    def of(tensor: torch.Tensor) -> str:
        return bytes(tensor_bytes(tensor)).hex()

    for rank, seen in enumerate(reduced):
        assert seen["whole"]["count"] == of(torch.tensor([5, 5]))
        assert seen["whole"]["flag"] == of(torch.tensor([True, False, False]))
        assert seen["whole"]["mean"] == of(torch.zeros(3) + 0.1)
        assert seen["whole"]["scratch"] == of(torch.full((2,), float(rank)))
