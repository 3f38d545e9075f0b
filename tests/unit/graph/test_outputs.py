"""Outputs of models, taken apart and put together again."""

from collections import namedtuple
from dataclasses import dataclass

import torch
from torch import Tensor

from trimaran.graph.capture.export import take_apart

A, B = torch.zeros(2), torch.ones(3)


@dataclass
class Result:
    loss: Tensor
    hidden: tuple[Tensor, ...] | None
    cache: object = None


def test_tensor_is_itself() -> None:
    tensors, structure = take_apart(A)
    assert tensors == (A,)
    assert structure.rebuild([B]) is B


def test_nested_structure_comes_back() -> None:
    pair = namedtuple("pair", "left right")
    tensors, structure = take_apart({"a": pair(A, [B, None]), "n": 3})
    assert len(tensors) == 2
    rebuilt = structure.rebuild(["x", "y"])
    assert rebuilt == {"a": pair("x", ["y", None]), "n": 3}


def test_dataclass_comes_back() -> None:
    tensors, structure = take_apart(Result(loss=A, hidden=(B,)))
    assert [tensor.shape for tensor in tensors] == [A.shape, B.shape]
    assert structure.rebuild([A, B]).hidden[0] is B


def test_what_holds_no_tensors_is_dropped_and_named() -> None:
    structure = take_apart(Result(loss=A, hidden=None, cache=object()))[1]
    assert structure.dropped == ("cache",)
    assert structure.rebuild([A]).cache is None


def test_decoding_caches_are_dropped() -> None:
    tensors, structure = take_apart({"logits": A, "past_key_values": (B, B)})
    assert len(tensors) == 1
    assert structure.dropped == ("past_key_values",)
    assert "past_key_values" not in structure.rebuild([A])
