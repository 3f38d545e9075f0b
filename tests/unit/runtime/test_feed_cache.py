"""Samples that are kept after their first read."""

import itertools
import os
import random
import re
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, default_collate

from trimaran.runtime.communication.shared_memory import aligned
from trimaran.runtime.data.cache import (
    SampleCache,
    Uncachable,
    cache_bytes,
    look_at,
    make_memory,
    offer_cache,
    packed,
    share_cache,
    slot_of,
)
from trimaran.runtime.data.reading import Reading, Request


class Pair(NamedTuple):
    left: Any
    right: Any


class Counted(Dataset[Any]):
    """Counts its reads; what it gives is made by its function."""

    def __init__(self, make: Any, samples: int = 10) -> None:
        self.make, self.samples = make, samples
        self.reads = 0

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return self.make(index)


NUMBERS = itertools.count()


def row(index: int) -> tuple[torch.Tensor, int]:
    return torch.full((2,), float(index)), index


def open_cache(sample: Any, samples: int = 10) -> SampleCache:
    slot_bytes = slot_of([packed(sample)])
    descriptor, path = make_memory(cache_bytes(slot_bytes, samples))
    cache = SampleCache(slot_bytes, samples, path)
    os.close(descriptor)
    return cache


LEAVES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(),
    st.booleans(),
    st.sampled_from([torch.int8, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.complex64]).flatmap(
        lambda dtype: st.lists(st.integers(0, 3), max_size=3).map(
            lambda shape: torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)
        )
    ),
    st.sampled_from(["u1", "i4", "f4", "f8"]).flatmap(
        lambda kind: st.lists(st.integers(0, 3), min_size=1, max_size=2).map(lambda shape: numpy.ones(shape, kind))
    ),
    st.sampled_from([numpy.float32(0.1), numpy.int16(-3), numpy.bool_(True)]),
)
SAMPLES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3),
        st.tuples(inner, inner),
        st.builds(Pair, inner, inner),
        st.dictionaries(st.text("abc", min_size=1, max_size=2), inner, min_size=1, max_size=3),
        inner.map(lambda one: OrderedDict(key=one)),
    ),
    max_leaves=5,
)


def alike(one: Any, other: Any) -> bool:
    """The same types, and the same bits."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(alike(*pair) for pair in zip(one, other, strict=True))
    mine, theirs = torch.as_tensor(one), torch.as_tensor(other)
    if mine.dtype != theirs.dtype or mine.shape != theirs.shape:
        return False
    return not mine.numel() or torch.equal(*(tensor.reshape(-1).view(torch.uint8) for tensor in (mine, theirs)))


@given(sample=SAMPLES, number=st.integers(0, 9), copy=st.booleans())
def test_a_sample_comes_back_as_it_was(sample: Any, number: int, copy: bool) -> None:
    cache = open_cache(sample)
    assert cache.get(number, copy=copy) is None
    cache.put(number, sample)
    assert alike(cache.get(number, copy=copy), sample)
    assert (cache.kept, cache.misfits) == (1, 0)


def test_a_cache_has_a_mark_and_a_slot_for_every_sample() -> None:
    """10 marks in 64 bytes; the sizes of two parts, what is pickled, 8 bytes of floats, and 64 to spare."""
    found = packed(row(0))
    assert found.sizes[1:] == [8]
    assert cache_bytes(slot_of([found]), 10) == 64 + 10 * (64 + aligned(found.sizes[0]) + 64 + 64)


@pytest.mark.parametrize(
    ("sample", "said"),
    [
        (torch.zeros(1, requires_grad=True), "has a gradient"),
        ((torch.nn.Parameter(torch.zeros(1)), 1), "has a gradient"),
        (torch.zeros(2, device="meta"), "it cannot be pickled|on a device"),
        (lambda: 1, "it cannot be pickled"),
        (list(numpy.zeros((255, 1))), "it has 256 parts"),
    ],
)
def test_what_cannot_be_kept_is_said(sample: Any, said: str) -> None:
    with pytest.raises(Uncachable, match=said):
        packed(sample)


def test_a_larger_sample_is_not_kept_but_counted() -> None:
    cache = open_cache(row(0))
    cache.put(3, (torch.zeros(99), 3))
    cache.put(4, (torch.zeros(2), "text" * 99))
    cache.put(5, (torch.zeros(2), "text"))
    assert (cache.get(3, copy=False), cache.get(4, copy=False)) == (None, None)
    assert cache.get(5, copy=False)[1] == "text"
    assert (cache.kept, cache.misfits) == (1, 2)


def test_who_writes_a_sample_first_writes_it() -> None:
    """Another process may pickle the same sample otherwise, and some may read it already."""
    cache = open_cache(row(0))
    cache.put(3, row(3))
    cache.put(3, row(4))
    assert alike(cache.get(3, copy=True), row(3))


def test_each_sample_is_read_once_and_batches_stay_the_same() -> None:
    data = Counted(row)
    reading = Reading(data, None, cache=open_cache(row(0)))
    plain = Reading(Counted(row), None)
    for samples in ([1, 2, 3], [3, 4], [1, 2, 3]):
        one = Request((0, 0, 0), 7, samples)
        assert alike(reading[one].batch, plain[one].batch)
    assert data.reads == 4


def test_a_batch_of_the_jobs_own_making_may_be_changed() -> None:
    """Its collate function passes the tensor of its only sample on."""
    reading = Reading(Counted(row), lambda samples: samples[0][0], cache=open_cache(row(0)))
    one = Request((0, 0, 0), 7, [5])
    for _ in range(3):
        batch = reading[one].batch
        assert batch.tolist() == [5.0, 5.0]
        batch.zero_()


def test_a_sample_that_begins_to_draw_is_not_kept() -> None:
    def make(index: int) -> Any:
        return torch.full((1,), random.random() if index > 5 else 1.0)

    cache = open_cache(make(0))
    reading = Reading(Counted(make), default_collate, cache=cache)
    for samples in ([0, 1], [2, 3], [4, 6], [5, 7]):
        assert reading[Request((0, 0, 0), 7, samples)].fault is None
    assert cache.kept == 4


def test_a_fault_keeps_nothing() -> None:
    cache = open_cache(row(0))
    reading = Reading(Counted(lambda index: row(index) if index else 1 // 0), None, cache=cache)
    assert reading[Request((0, 0, 0), 7, [1, 0])].fault is not None
    assert cache.kept == 0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda index: torch.rand(2), "sample 0 draws random numbers"),
        (lambda index: torch.tensor(random.random()), "sample 0 draws random numbers"),
        (lambda index: torch.tensor(float(numpy.random.rand())), "sample 0 draws random numbers"),  # noqa: NPY002
        (lambda index: next(NUMBERS), "sample 0 is not the same when it is read again"),
        (lambda index: torch.zeros(index + 1), "samples are not alike: sample 1"),
        (lambda index: (index, lambda: 1), "it cannot be pickled"),
        (lambda index: 1 // 0, "sample 0 could not be read: ZeroDivisionError"),
        # A mebibyte each that is not written: 100 TiB in all.
        (lambda index: torch.zeros(2**18), r"take 100.0 TiB, and .* of memory are free"),
    ],
)
def test_samples_that_must_not_be_cached_say_so(make: Any, said: str) -> None:
    shared = share_cache(Counted(make, 100 * 2**20), 100 * 2**20, rank=0, exchange=lambda value: [value])
    assert shared.cache is None
    assert shared.note.startswith("samples are not cached, they are read each time: ")
    assert re.search(said, shared.note)


def test_numbers_that_are_not_numbers_are_the_same_when_they_are_read_again() -> None:
    data = Counted(lambda index: (float("nan"), torch.full((2,), float("nan"))), 1)
    assert look_at(data, 1) > 0
    assert data.reads == 2


def read_only(array: Any) -> Any:
    array.flags.writeable = False
    return array


@pytest.mark.parametrize(
    "make",
    [
        lambda index: numpy.arange(6.0).reshape(2, 3)[:, ::-1],
        lambda index: read_only(numpy.arange(3)),
        lambda index: torch.zeros(3, 2).T,
        lambda index: numpy.float32(index),
    ],
    ids=["mirrored", "read only", "transposed", "number"],
)
def test_samples_that_lie_otherwise_in_memory_are_kept_too(make: Any) -> None:
    shared = share_cache(Counted(make), 10, rank=0, exchange=lambda value: [value])
    shared.close()
    assert shared.note == ""
    assert shared.cache is not None
    shared.cache.put(7, make(7))
    assert numpy.array_equal(shared.cache.get(7, copy=True), make(7).tolist())


def test_the_memory_has_no_name_and_ends_with_its_last_user() -> None:
    offer, descriptor = offer_cache(Counted(row), 10)
    assert str(Path(offer.path).readlink()).startswith("/memfd:trimaran-samples")
    os.close(descriptor)
    assert not Path(offer.path).exists()


def test_two_openings_are_one_cache() -> None:
    offer, descriptor = offer_cache(Counted(row), 10)
    first, second = (SampleCache(offer.slot_bytes, 10, offer.path) for _ in range(2))
    os.close(descriptor)
    first.put(6, row(6))
    assert alike(second.get(6, copy=False), row(6))
