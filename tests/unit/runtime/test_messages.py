"""Tensors as one flat buffer."""

import pytest
import torch
from tests.raising import raises

from trimaran.base.errors import ExecutionError
from trimaran.graph.types import Affine, TensorSpec
from trimaran.runtime.communication.point_to_point import MessageLayout, size_at


def spec(name: str, *shape: int | str, dtype: str = "float32") -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype, nbytes=Affine())


def test_several_tensors_start_at_multiples_of_64_bytes() -> None:
    """3 x 5 fp32 = 60 bytes, padded to 64; 3 int64 = 24; padded to 128; 3 x 2 bf16 = 12: 140 in all."""
    layout = MessageLayout([spec("a", "B", 5), spec("b", "B", dtype="int64"), spec("c", "B", 2, dtype="bfloat16")], 3)
    assert layout.nbytes == 140


def test_what_is_packed_comes_out() -> None:
    tensors = {"a": torch.randn(4, 3).t().contiguous().t(), "b": torch.tensor([True, False, True, True])}
    layout = MessageLayout([spec("a", "B", 3), spec("b", "B", dtype="bool")], 4)
    found = layout.unpack(layout.pack(tensors, "cpu").clone())
    assert torch.equal(found["a"], tensors["a"])
    assert torch.equal(found["b"], tensors["b"])


def test_a_single_tensor_is_sent_where_it_lies() -> None:
    tensor = torch.randn(4, 3)
    assert MessageLayout([spec("a", "B", 3)], 4).pack({"a": tensor}, "cpu").data_ptr() == tensor.data_ptr()


def test_a_missing_gradient_is_zeros() -> None:
    layout = MessageLayout([spec("a", "B"), spec("b", "B")], 2)
    found = layout.unpack(layout.pack({"a": None, "b": torch.ones(2)}, "cpu"))
    assert found["a"].tolist() == [0.0, 0.0]
    assert found["b"].tolist() == [1.0, 1.0]


def test_another_shape_than_the_captured_one_is_named() -> None:
    with raises("message.other-shape", ExecutionError, match="4, 2.*4, 3", tensor="a"):
        MessageLayout([spec("a", "B", 3)], 4).pack({"a": torch.zeros(4, 2)}, "cpu")


@pytest.mark.parametrize(("text", "value"), [("B", 6), ("2*B", 12), ("B*12 + 1", 73), ("(B + 1)//2", 3), ("B - 1", 5)])
def test_sizes_are_expressions_in_the_batch(text: str, value: int) -> None:
    assert size_at(text, 6) == value


@pytest.mark.parametrize("text", ["C", "B**2", "B.x", "print(B)", "B +"])
def test_other_expressions_are_refused(text: str) -> None:
    with raises("message.bad-size"):
        size_at(text, 6)
