"""Operators of which torch does not say what they make: they are run on the host, with zeros."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from trimaran.rehearsal import tensors
from trimaran.rehearsal.tensors import FAKE, fake
from trimaran.rehearsal.values import set_twin, twin_of


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    """Operators with a kernel for the host and nothing else."""
    found = torch.library.Library("rehearsed_by_trial", "DEF")
    found.define("halves(Tensor x) -> (Tensor, Tensor)")
    found.define("known_(Tensor(a!) x) -> Tensor(a!)")
    found.define("positive(Tensor x) -> Tensor")
    found.define("nowhere(Tensor x) -> Tensor")
    found.impl("halves", lambda x: (x[: len(x) // 2].clone(), x[len(x) // 2 :].double()), "CPU")
    found.impl("known_", lambda x: x, "CPU")
    found.impl("positive", _positive, "CPU")
    yield torch.ops.rehearsed_by_trial
    tensors._tried.clear()
    found._destroy()


def _positive(x: torch.Tensor) -> torch.Tensor:
    if bool((x <= 0).any()):
        raise ValueError("only positive numbers")
    return x.clone()


def without_data(*shape: int) -> FakeTensor:
    with FAKE:
        return torch.empty(shape)


def test_results_have_the_shapes_and_types_that_the_host_makes(library: Any) -> None:
    for _ in range(2):  # the second time it is known that torch does not know
        first, second = fake(library.halves.default, (without_data(5, 3),), {})
        assert isinstance(first, FakeTensor)
        assert isinstance(second, FakeTensor)
        assert (tuple(first.shape), first.dtype) == ((2, 3), torch.float32)
        assert (tuple(second.shape), second.dtype) == ((3, 3), torch.float64)
    assert library.halves.default in tensors._tried


def test_an_argument_that_is_given_back_is_the_argument(library: Any) -> None:
    tensor = without_data(4)
    assert fake(library.known_.default, (tensor,), {}) is tensor


def test_a_value_that_is_known_is_tried_with_in_place_of_zeros_and_is_not_written_to(library: Any) -> None:
    tensor, value = without_data(2), torch.tensor([1.0, 2.0])
    set_twin(tensor, value)
    assert tuple(fake(library.positive.default, (tensor,), {}).shape) == (2,)
    assert twin_of(tensor) is value
    with pytest.raises(NotImplementedError, match="only positive numbers"):
        fake(library.positive.default, (without_data(2),), {})


def test_what_cannot_be_tried_is_refused_with_its_name(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NotImplementedError, match=r"rehearsed_by_trial\.nowhere"):
        fake(library.nowhere.default, (without_data(2),), {})
    monkeypatch.setattr(tensors, "MOST_TRIED_BYTES", 100)
    with pytest.raises(NotImplementedError, match=r"halves.*large"):
        fake(library.halves.default, (without_data(100),), {})
