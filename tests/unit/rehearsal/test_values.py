"""What is known of tensors without data: small values through views and writes, and conditions."""

from typing import Any

import pytest
import torch

from trimaran.rehearsal.tensors import fake
from trimaran.rehearsal.values import Values, forget, set_twin, twin_of

aten = torch.ops.aten


class Listing:
    """Takes what is invented."""

    def __init__(self) -> None:
        self.invented: list[tuple[str, str, object]] = []

    def invent(self, what: str, asked: str, value: object) -> None:
        self.invented.append((what, asked, value))


@pytest.fixture
def values() -> Values:
    return Values(Listing(), {"norm": 0.5})  # type: ignore[arg-type]


def run(values: Values, func: Any, *args: Any, **kwargs: Any) -> Any:
    made = fake(func, args, kwargs)
    values.follow(func, args, kwargs, [made])
    return made


def tensor(*sizes: int, value: float | None = None, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    made: torch.Tensor = fake(aten.empty.memory_format, (list(sizes),), {"dtype": dtype})
    set_twin(made, None if value is None else torch.full(sizes, value, dtype=dtype))
    return made


def test_writing_a_known_value_into_a_view_writes_into_what_it_is_a_view_of(values: Values) -> None:
    whole = tensor(4, 2, value=0.0)
    row = run(values, aten.select.int, whole, 0, 1)
    run(values, aten.fill_.Scalar, row, 3.0)
    assert values.of(whole, "tolist").tolist() == [[0, 0], [3, 3], [0, 0], [0, 0]]


def test_writing_what_is_not_known_into_a_view_makes_all_of_it_unknown(values: Values) -> None:
    whole = tensor(4, 2, value=0.0)
    other = run(values, aten.select.int, whole, 0, 2)
    row = run(values, aten.select.int, whole, 0, 1)
    run(values, aten.copy_.default, row, tensor(2))
    assert twin_of(whole) is None
    assert twin_of(other) is None
    run(values, aten.zero_.default, whole)
    assert twin_of(whole) is not None


def test_what_takes_only_a_shape_is_known_of_an_unknown_tensor(values: Values) -> None:
    ones = run(values, aten.ones_like.default, tensor(3))
    assert values.of(ones, "tolist").tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("func", "arguments", "expected"),
    [
        (aten.isnan.default, (), False),
        (aten.isinf.default, (), False),
        (aten.ne.Scalar, (float("inf"),), True),
        (aten.gt.Scalar, (1.0,), None),
    ],
)
def test_numbers_are_finite_and_else_nothing_is_known_of_them(
    values: Values, func: Any, arguments: tuple[Any, ...], expected: bool | None
) -> None:
    condition = run(values, func, tensor(8), *arguments)
    assert condition._trimaran_truth is expected
    if expected is not None:
        every = run(values, aten.all.default, condition)
        not_any = run(values, aten.logical_not.default, run(values, aten.any.default, condition))
        assert values.of(every, "bool").item() is expected
        assert values.of(not_any, "bool").item() is not expected
        count = run(values, aten.sum.default, condition)
        assert values.of(count, "item").item() == (8 if expected else 0)


def test_a_tensor_equals_itself(values: Values) -> None:
    one = tensor(5)
    assert run(values, aten.eq.Tensor, one, one)._trimaran_truth is True
    assert run(values, aten.ne.Tensor, one, one)._trimaran_truth is False


def test_a_norm_compares_as_its_hint_does(values: Values) -> None:
    norm = run(values, aten.linalg_vector_norm.default, tensor(5))
    assert values.of(norm, "item").item() == 0.5
    assert run(values, aten.gt.Scalar, norm, 0.4)._trimaran_truth is True
    assert run(values, aten.gt.Scalar, norm, 0.6)._trimaran_truth is False


def test_forgetting_a_tensor_without_a_value_does_nothing() -> None:
    one = tensor(3)
    forget(one)
    assert twin_of(one) is None
