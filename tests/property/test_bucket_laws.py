"""Buckets are those that DDP makes of the same parameters in the same order of arrival."""

import dataclasses

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.graphs import chain, parameter
from torch.distributed import _compute_bucket_assignment_by_size

from trimaran.graph.types import Graph, Op
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES, FIRST_BUCKET_BYTES, gradient_buckets

FLOAT_BYTES = 4


def owners(elements: list[int]) -> Graph:
    """One operation a parameter, in forward order."""
    names = [f"p{number}" for number in range(len(elements))]
    return dataclasses.replace(
        chain(1),
        ops=tuple(Op(id=name, target="op", parameters=(name,)) for name in names),
        parameters=tuple(parameter(name, FLOAT_BYTES * count) for name, count in zip(names, elements, strict=True)),
    )


def ddp_buckets(elements: list[int], limits: list[int]) -> list[list[str]]:
    arrived = [torch.empty(count, device="meta") for count in reversed(elements)]
    groups, _ = _compute_bucket_assignment_by_size(arrived, limits, [False] * len(arrived))
    return [[f"p{len(elements) - 1 - index}" for index in group] for group in groups]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.integers(1, 800))
def test_buckets_under_a_limit_of_the_user_are_those_of_ddp(elements: list[int], limit: int) -> None:
    graph = owners(elements)
    ours = gradient_buckets(graph, graph.ops, limit)
    assert [list(bucket.parameters) for bucket in ours] == ddp_buckets(elements, [limit])


@given(st.lists(st.integers(1, 3 * 2**20), min_size=1, max_size=20))
def test_buckets_under_the_default_limit_are_those_of_ddp(elements: list[int]) -> None:
    graph = owners(elements)
    ours = gradient_buckets(graph, graph.ops, DEFAULT_BUCKET_BYTES)
    limits = [FIRST_BUCKET_BYTES, DEFAULT_BUCKET_BYTES]
    assert [list(bucket.parameters) for bucket in ours] == ddp_buckets(elements, limits)


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.integers(1, 800))
def test_every_parameter_is_in_one_bucket(elements: list[int], limit: int) -> None:
    graph = owners(elements)
    ours = gradient_buckets(graph, graph.ops, limit)
    names = [name for bucket in ours for name in bucket.parameters]
    assert sorted(names) == sorted(parameter.name for parameter in graph.parameters)
    assert sum(bucket.nbytes for bucket in ours) == FLOAT_BYTES * sum(elements)


def test_the_defaults_are_those_of_torch() -> None:
    from torch.nn.parallel.distributed import _DEFAULT_BUCKET_CAP_MB

    assert torch.distributed._DEFAULT_FIRST_BUCKET_BYTES == FIRST_BUCKET_BYTES
    assert _DEFAULT_BUCKET_CAP_MB * 2**20 == DEFAULT_BUCKET_BYTES
