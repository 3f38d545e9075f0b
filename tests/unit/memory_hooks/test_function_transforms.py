"""Seen in the wild: transforms of torch.func refuse hooks of saved tensors, with a message that does not help."""

import pytest
import torch
from tests.raising import raises
from tests.unit.memory_hooks.executing import executing


def test_a_transform_inside_the_block_says_what_to_do() -> None:
    with executing(None) as executor:
        with pytest.raises(RuntimeError) as caught, executor.hooks():
            torch.func.grad(lambda x: x.sin().sum())(torch.randn(3))
        assert any("torch.autograd.grad" in note for note in caught.value.__notes__)
        del caught


def test_a_block_inside_a_transform_is_refused() -> None:
    with executing(None) as executor:

        def inside(x: torch.Tensor) -> torch.Tensor:
            with executor.hooks():
                return x.sin().sum()

        with raises("virtual-memory.torch-func", match=r"torch\.func"):
            torch.func.grad(inside)(torch.randn(3))


def test_another_error_is_left_as_it_is() -> None:
    with executing(None) as executor:
        with pytest.raises(RuntimeError) as caught, executor.hooks():
            raise RuntimeError("of the user")
        assert not hasattr(caught.value, "__notes__")
