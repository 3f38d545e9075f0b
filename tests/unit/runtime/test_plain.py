"""Values that are no tensors come back from JSON as they were, or are refused."""

import json
import math
from collections import Counter, OrderedDict, deque
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.raising import raises
from torch import nn

from trimaran.base.errors import CorruptDataError, InputError
from trimaran.checkpoint_files.plain import MOST_ELEMENTS, decode, encode
from trimaran.graph.optimizers import same

ATOMS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.complex_numbers(allow_nan=False)
)
VALUES = st.recursive(
    ATOMS,
    lambda inside: st.one_of(
        st.lists(inside, max_size=4),
        st.lists(inside, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=8), inside, max_size=4),
        st.dictionaries(st.sampled_from(["tuple", "float", "tensor", "dict"]), inside, max_size=2),
        st.dictionaries(st.integers(), inside, max_size=3),
    ),
    max_leaves=12,
)


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, "a value"), allow_nan=False)), "here")


def assert_alike(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, float):
        assert one.hex() == other.hex()
    elif isinstance(one, dict):
        assert [*one] == [*other]
        for key, value in one.items():
            assert_alike(value, other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for pair in zip(one, other, strict=True):
            assert_alike(*pair)
    else:
        assert one == other


@given(VALUES)
def test_plain_values_come_back_bit_for_bit(value: Any) -> None:
    assert_alike(through_json(value), value)


@pytest.mark.parametrize(
    "value",
    [
        Counter({30: 2, 80: 1}),
        OrderedDict([("b", 1), ("a", 2)]),
        deque([1, 2]),
        {1, 2},
        frozenset([7, 3]),
        numpy.float32(0.1),
        numpy.arange(6, dtype=numpy.int16).reshape(2, 3),
        torch.tensor(0.1),
        torch.tensor([[1, 2]], dtype=torch.int8),
        torch.zeros(0, 3, dtype=torch.bfloat16),
        torch.tensor([1.5, math.inf], dtype=torch.bfloat16),
        torch.float16,
        torch.Size([2, 3]),
        bytearray(b"ab"),
        torch.Generator().get_state(),
        2**70,
    ],
    ids=lambda value: repr(value)[:40],
)
def test_objects_that_schedules_and_generators_keep_come_back(value: Any) -> None:
    found = through_json(value)
    assert type(found) is type(value)
    if isinstance(value, torch.Tensor):
        assert found.dtype == value.dtype
        assert same(found, value)
    else:
        assert numpy.array_equal(found, value) if isinstance(value, numpy.ndarray) else found == value


@pytest.mark.parametrize(
    "value",
    [
        object(),
        lambda: 0,
        nn.Linear(1, 1),
        torch.zeros(MOST_ELEMENTS + 1),
        [{"deep": (object(),)}],
        numpy.array([None]),
    ],
    ids=["object", "function", "module", "large tensor", "inside", "array of objects"],
)
def test_what_is_not_plain_is_refused(value: Any) -> None:
    with raises("checkpoint.not-plain", InputError, match="the state of a schedule"):
        encode(value, "the state of a schedule")


def test_what_holds_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with raises("checkpoint.not-plain", InputError):
        encode(endless, "a list")


@pytest.mark.parametrize(
    "plain",
    [
        {"float": "x"},
        {"tuple": 3},
        {"tensor": ["float32", [2], "AAAA"]},
        {"tensor": ["nothing", [1], "AAAA"]},
        {"bytes": "§"},
        {"number": ["O", [], ""]},
        {"counter": [[1]]},
        {"dict": [[[1], 2]]},
    ],
    ids=str,
)
def test_damaged_values_are_named(plain: Any) -> None:
    with pytest.raises(CorruptDataError, match=r"state\.json"):
        decode(plain, "state.json")
