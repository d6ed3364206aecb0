"""State comes back with the same bits, and what does not fit is refused before anything changes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.errors import UsageError
from runtime.worker.state import Snapshot, StateBook, tensor_bytes

DTYPES = [
    torch.float64,
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
]


class Extra:
    """An object with a state of its own."""

    def __init__(self, state: Any) -> None:
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


class Model(torch.nn.Module):
    def __init__(self, seed: int, width: int = 3) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = torch.nn.Linear(4, width)
        self.norm = torch.nn.BatchNorm1d(width)
        self.coarse = torch.nn.Parameter(torch.randn(5, dtype=torch.bfloat16))
        self.register_buffer("scalar", torch.tensor(float(seed)))
        self.register_buffer("mask", torch.rand(7) > 0.5)
        self.register_buffer("scratch", torch.randn(2), persistent=False)


def book(seed: int, **more: Any) -> StateBook:
    model = Model(seed, more.pop("width", 3))
    optimizer = more.pop("optimizer", torch.optim.AdamW)(model.parameters(), lr=0.1 * (seed + 1))
    return StateBook(model, optimizer, None, None, more.pop("extras", {}))


def trained(seed: int, **more: Any) -> StateBook:
    made = book(seed, **more)
    for parameter in made.model.parameters():
        parameter.grad = torch.randn_like(parameter)
    made.optimizer.step()
    return made


def carried(snapshot: Snapshot) -> Snapshot:
    """As a receiver builds it: from a header that went through JSON, and bytes."""
    there = Snapshot.empty_like_header(json.loads(json.dumps(snapshot.header())))
    for index, entry in enumerate(snapshot.entries):
        if entry.nbytes:
            there.bytes_of(index)[:] = snapshot.bytes_of(index)
    return there


def bits(value: torch.Tensor) -> tuple[torch.dtype, tuple[int, ...], bytes]:
    return value.dtype, tuple(value.shape), bytes(tensor_bytes(value))


def test_a_training_comes_back_to_the_bit():
    source, target = trained(1), trained(2)

    step = target.apply(carried(source.capture(17)))

    assert step == 17
    assert target.capture(17).digest() == source.capture(17).digest()
    for name, parameter in source.model.named_parameters():
        assert bits(dict(target.model.named_parameters())[name]) == bits(parameter)
    assert bits(target.model.scratch) == bits(source.model.scratch)
    assert target.optimizer.param_groups[0]["lr"] == source.optimizer.param_groups[0]["lr"]
    assert target.optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    first = next(iter(target.model.parameters()))
    assert set(target.optimizer.state[first]) == {"step", "exp_avg", "exp_avg_sq"}


def test_a_state_that_went_back_to_before_the_first_step_has_no_moments_left():
    source = book(1)
    before = source.capture(0).clone()
    for parameter in source.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    source.optimizer.step()

    source.apply(before)

    assert len(source.optimizer.state) == 0
    assert source.capture(0).digest() == before.digest()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 2, 5), (2, 0, 3)], ids=str)
def test_every_dtype_and_shape_travels(dtype: torch.dtype, shape: tuple[int, ...]):
    values = (torch.randn(shape) * 100).to(dtype)
    source = book(1, extras={"e": Extra({"t": values})})
    target = book(1, extras={"e": Extra({})})

    target.apply(carried(source.capture(3)))

    found = target._objects["extra.e"].state["t"]
    assert bits(found) == bits(values)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=8),
)
KEYS = st.one_of(st.text(max_size=4), st.integers(), st.tuples(st.integers(), st.booleans()))
TREES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.tuples(inner, inner),
        st.dictionaries(KEYS, inner, max_size=3),
    ),
    max_leaves=12,
)


@settings(deadline=None, max_examples=150)
@given(TREES)
def test_any_tree_of_scalars_keeps_types_order_and_bits(tree: Any):
    target = book(1, extras={"e": Extra(None)})
    source = book(1, extras={"e": Extra(tree)})

    target.apply(carried(source.capture(0)))

    found = target._objects["extra.e"].state
    assert repr(found) == repr(tree)  # 1, 1.0 and True are equal, their texts are not


@pytest.mark.parametrize("value", [math.inf, -math.inf, -0.0, 5e-324, 0.1])
def test_floats_at_the_edge_keep_their_bits(value: float):
    target = book(1, extras={"e": Extra(None)})
    target.apply(carried(book(1, extras={"e": Extra([value])}).capture(0)))

    assert target._objects["extra.e"].state[0].hex() == value.hex()


def test_nan_arrives_as_nan():
    target = book(1, extras={"e": Extra(None)})
    target.apply(carried(book(1, extras={"e": Extra(math.nan)}).capture(0)))

    assert math.isnan(target._objects["extra.e"].state)


def test_tensors_in_param_groups_travel():
    def optimizer(parameters: Any, lr: float) -> torch.optim.Optimizer:
        return torch.optim.Adam(parameters, lr=torch.tensor(lr), foreach=False, capturable=False)

    source, target = trained(3, optimizer=optimizer), trained(4, optimizer=optimizer)

    target.apply(carried(source.capture(9)))

    assert bits(target.optimizer.param_groups[0]["lr"]) == bits(torch.tensor(0.4))
    assert target.capture(9).digest() == source.capture(9).digest()


def wrong_dtype() -> StateBook:
    made = trained(2)
    made.model.scalar = made.model.scalar.double()
    return made


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (lambda: trained(2, width=5), "another model: buffer.norm.running_mean differs"),
        (wrong_dtype, "another model: buffer.scalar differs in name, dtype or shape"),
        (lambda: trained(2, extras={"e": Extra(1)}), "another script: extra.e is on one side"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_and_nothing_changes(source, words: str):
    target = trained(1)
    before = target.capture(5).clone()

    with pytest.raises(UsageError, match=words):
        target.apply(carried(source().capture(9)))

    assert target.capture(5).digest() == before.digest()


def test_another_optimizer_is_refused_and_nothing_changes():
    target, source = trained(1), trained(2)
    source.optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))]})
    before = target.capture(5).clone()

    with pytest.raises(UsageError, match="another optimizer"):
        target.apply(carried(source.capture(9)))

    assert target.capture(5).digest() == before.digest()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (["t", "float32", [4], 15], "announces 15 bytes"),
        (["t", "float32", [-4], -16], "announces -16 bytes"),
        (["t", "float32", [-2, -2], 16], "announces 16 bytes"),
        (["t", "float32", [1 << 60], 16], "announces 16 bytes"),
        (["t", "complex64", [1], 8], "unknown dtype complex64"),
    ],
)
def test_a_header_that_does_not_add_up_takes_no_memory(entry: list, words: str):
    with pytest.raises(ValueError, match=words):
        Snapshot.empty_like_header({"tree": {}, "entries": [entry]})


def test_what_cannot_be_carried_is_named():
    with pytest.raises(UsageError, match=r"extra\.e\.k is a set"):
        book(1, extras={"e": Extra({"k": {1, 2}})}).capture(0)
    with pytest.raises(UsageError, match=r"extra\.e has dtype complex64"):
        book(1, extras={"e": Extra(torch.zeros(1, dtype=torch.complex64))}).capture(0)


SMALL = trained(7).capture(4)


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_the_digest_changes_with_any_single_bit(data):
    snapshot = carried(SMALL)
    index = data.draw(st.sampled_from([i for i, e in enumerate(snapshot.entries) if e.nbytes]))
    bit = data.draw(st.integers(0, snapshot.entries[index].nbytes * 8 - 1))

    snapshot.bytes_of(index)[bit // 8] ^= 1 << bit % 8

    assert snapshot.digest() != SMALL.digest()


@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_the_digest_changes_when_two_tensors_or_elements_change_places(data):
    values = data.draw(
        st.lists(st.integers(0, 255), min_size=2, max_size=8).filter(lambda v: len(set(v)) > 1)
    )
    other = data.draw(st.permutations(values).filter(lambda v: v != values))

    def digest(order: list[int], *, split: bool) -> str:
        parts = [torch.tensor(order, dtype=torch.uint8)]
        if split:
            parts = [torch.tensor([each], dtype=torch.uint8) for each in order]
        return book(1, extras={"e": Extra(parts)}).capture(0).digest()

    assert digest(values, split=False) != digest(other, split=False)
    assert digest(values, split=True) != digest(other, split=True)
    assert digest(values, split=True) != digest(values, split=False)


def test_the_digest_covers_scalars_names_and_shapes():
    digests = {
        made.capture(step).digest()
        for made, step in (
            (book(1), 0),
            (book(1), 1),
            (book(1, extras={"e": Extra(1)}), 0),
            (book(1, extras={"e": Extra(1.0)}), 0),
            (book(1, extras={"e": Extra(True)}), 0),
            (book(1, extras={"f": Extra(1)}), 0),
            (book(1, extras={"e": Extra((1,))}), 0),
            (book(1, extras={"e": Extra([1])}), 0),
            (book(1, extras={"e": Extra(torch.zeros(2, 3))}), 0),
            (book(1, extras={"e": Extra(torch.zeros(3, 2))}), 0),
            (book(1, extras={"e": Extra(torch.zeros(6, dtype=torch.int32))}), 0),
        )
    }

    assert len(digests) == 11
