"""Data and randomness by step: pure functions, so that a step can be had again anywhere."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from runtime.worker import StepSampler
from runtime.worker.numerics import fingerprint, framework, seed_step

SIZES = st.tuples(st.integers(1, 60), st.integers(1, 7), st.integers(1, 5), st.integers(0, 99))


def taken(sampler: StepSampler, count: int, batch: int, world: int) -> list[int]:
    """The first `count` ids in the order of the run, from steps that cover them."""
    steps = -(-count // (batch * world))
    ids = [
        each
        for step in range(1, steps + 1)
        for rank in range(world)
        for each in sampler.ids(step, rank, world)
    ]
    return ids[:count]


@settings(deadline=None, max_examples=100)
@given(SIZES)
def test_each_epoch_of_the_data_is_a_permutation_and_another_one(sizes):
    samples, batch, world, seed = sizes
    ids = taken(StepSampler(samples, batch, seed), 2 * samples, batch, world)

    assert sorted(ids[:samples]) == sorted(ids[samples:]) == list(range(samples))
    if samples > 20:
        assert ids[:samples] != ids[samples:]


@settings(deadline=None, max_examples=100)
@given(SIZES, st.data())
def test_ids_depend_on_the_arguments_only(sizes, data):
    samples, batch, world, seed = sizes
    calls = data.draw(
        st.lists(st.tuples(st.integers(1, 50), st.integers(0, world - 1)), min_size=1, max_size=8)
    )
    used = StepSampler(samples, batch, seed)

    for step, rank in calls:
        fresh = StepSampler(samples, batch, seed).ids(step, rank, world)
        assert used.ids(step, rank, world) == fresh
        assert len(fresh) == batch


@settings(deadline=None, max_examples=100)
@given(SIZES, st.integers(1, 30))
def test_ranks_share_no_sample_of_an_epoch_of_the_data(sizes, step: int):
    samples, batch, world, seed = sizes
    first, last = (step - 1) * batch * world, step * batch * world - 1
    sampler = StepSampler(samples, batch, seed)
    ids = [each for rank in range(world) for each in sampler.ids(step, rank, world)]

    if first // samples == last // samples:
        assert len(set(ids)) == len(ids)


def test_seeds_shuffle_differently():
    assert StepSampler(50, 50, 1).ids(1, 0, 1) != StepSampler(50, 50, 2).ids(1, 0, 1)


@pytest.mark.parametrize(("samples", "batch"), [(0, 1), (1, 0), (-1, 4)])
def test_a_sampler_of_nothing_is_refused(samples: int, batch: int):
    with pytest.raises(ValueError, match="at least one"):
        StepSampler(samples, batch, 0)


def drawn() -> tuple[float, float, float]:
    return float(torch.rand(())), float(np.random.rand()), random.random()


@pytest.fixture(autouse=True)
def _generators():
    """Leaves the generators of the other tests as they were."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    yield
    torch.set_rng_state(states[0])
    np.random.set_state(states[1])
    random.setstate(states[2])


def test_a_step_has_its_own_randomness_whatever_was_drawn_before():
    seed_step(3, 1, 20)
    first = drawn()
    drawn()
    seed_step(3, 1, 20)

    assert drawn() == first


def test_seed_rank_step_and_micro_step_all_count():
    seen = set()
    for arguments in [(3, 1, 20), (4, 1, 20), (3, 2, 20), (3, 1, 21), (3, 1, 20, 1), (31, 2, 0)]:
        seed_step(*arguments)
        seen.add(drawn())

    assert len(seen) == 6
    assert all(len({each[n] for each in seen}) == 6 for n in range(3))


def test_the_fingerprint_tells_plans_threads_and_flags_apart():
    here = fingerprint("plan")
    threads = torch.get_num_threads()
    precision = torch.get_float32_matmul_precision()
    try:
        assert fingerprint("plan") == here
        assert fingerprint("another") != here
        torch.set_num_threads(threads + 1)
        assert fingerprint("plan") != here
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision("medium" if precision == "highest" else "highest")
        assert fingerprint("plan") != here
    finally:
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(precision)


def test_the_framework_is_named_without_its_build():
    assert framework().startswith("torch-2.")
    assert "+" not in framework()
