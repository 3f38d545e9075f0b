"""What autograd gets back while a step is recorded, and when it must be refused."""

import re
import weakref
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from trimaran.graph.trace.record import Recorder
from trimaran.graph.trace.types import Role


def gradient_of(make_loss: Any) -> torch.Tensor:
    """Gradient of a leaf in plain autograd."""
    leaf = torch.linspace(-1.0, 2.0, 12).reshape(3, 4).requires_grad_()
    make_loss(leaf).backward()
    assert leaf.grad is not None
    return leaf.grad


def recorded_gradient_of(make_loss: Any) -> torch.Tensor:
    with Recorder():
        return gradient_of(make_loss)


def changed_in_place(leaf: torch.Tensor) -> torch.Tensor:
    result = leaf.exp()
    result.add_(1)
    return result.sum()


def changed_view(leaf: torch.Tensor) -> torch.Tensor:
    result = leaf.exp()
    squares = result * result
    result[1:].zero_()
    return squares.sum()


def refusals(make_loss: Any) -> tuple[list[str], list[str]]:
    """The messages of plain autograd, and of a recorded step."""
    with pytest.raises(RuntimeError) as plain:
        gradient_of(make_loss)
    with pytest.raises(RuntimeError) as recorded:
        recorded_gradient_of(make_loss)
    return _versions(plain.value), _versions(recorded.value)


def test_a_change_in_place_is_refused_as_by_autograd() -> None:
    plain, recorded = refusals(changed_in_place)
    assert recorded == plain


def test_a_change_of_a_view_is_refused_as_by_autograd() -> None:
    plain, recorded = refusals(changed_view)
    assert recorded == plain


def _versions(error: BaseException) -> list[str]:
    """The version of the tensor, and that which was saved."""
    found = re.findall(r"version (\d+)", str(error))
    assert len(found) == 2, error
    return found


def changed_behind_autograd(leaf: torch.Tensor) -> torch.Tensor:
    result = leaf.exp()
    squares = result * result
    result.data.mul_(2)
    return squares.sum()


def of_a_custom_function(leaf: torch.Tensor) -> torch.Tensor:
    class Cube(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, value: torch.Tensor) -> torch.Tensor:
            context.save_for_backward(value)
            return value**3

        @staticmethod
        def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
            (value,) = context.saved_tensors
            return 3 * value**2 * gradient

    return Cube.apply(leaf.sin()).sum()


def of_parts(leaf: torch.Tensor) -> torch.Tensor:
    """Views with offsets, strides, and a dimension of stride 0."""
    left, right = leaf.exp().t().split(2)
    return (left * right.expand(2, 2, 3)).sum()


def checkpointed(leaf: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda value: value.exp().sin().exp(), leaf, use_reentrant=False).sum()


def checkpointed_reentrant(leaf: torch.Tensor) -> torch.Tensor:
    return checkpoint(lambda value: value.exp().sin().exp(), leaf, use_reentrant=True).sum()


def twice(leaf: torch.Tensor) -> torch.Tensor:
    loss = leaf.exp().sin().sum()
    loss.backward(retain_graph=True)
    return loss


def of_a_gradient(leaf: torch.Tensor) -> torch.Tensor:
    """A loss that holds a gradient: the backward packs too, and what it packs was unpacked before."""
    (gradient,) = torch.autograd.grad(leaf.exp().sin().sum(), leaf, create_graph=True)
    return (gradient * gradient).sum()


def in_complex_numbers(leaf: torch.Tensor) -> torch.Tensor:
    value = torch.complex(leaf, leaf * 2)
    return (value.conj() * value.exp()).abs().sum()


@pytest.mark.parametrize(
    "make_loss",
    [
        changed_behind_autograd,
        of_a_custom_function,
        of_parts,
        checkpointed,
        checkpointed_reentrant,
        twice,
        of_a_gradient,
        in_complex_numbers,
    ],
)
def test_gradients_are_those_of_autograd(make_loss: Any) -> None:
    assert torch.equal(recorded_gradient_of(make_loss), gradient_of(make_loss))


def test_what_changes_behind_autograd_must_be_kept() -> None:
    with Recorder() as recorder:
        gradient_of(changed_behind_autograd)
    trace = recorder.recording.trace
    (result,) = [s for s in trace.storages if s.packs and s.role is Role.ACTIVATION]
    assert result.version is None
    assert not result.movable


def test_a_graph_that_outlives_the_recording_still_works() -> None:
    leaf = torch.ones(3, requires_grad=True)
    with Recorder() as recorder:
        loss = leaf.exp().sum()
    loss.backward()
    assert torch.equal(leaf.grad, torch.ones(3).exp())  # type: ignore[arg-type]
    assert recorder.recording.trace.packs[0].end == recorder.recording.trace.length


def test_nothing_is_held_after_the_recording() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))
    storages: list[weakref.ref[Any]] = []
    model[1].register_forward_hook(lambda _, __, out: storages.append(weakref.ref(out.untyped_storage())))
    batch = torch.ones(2, 4)
    with Recorder(model) as recorder:
        model(batch).sum().backward()
    storages += [weakref.ref(value.untyped_storage()) for value in (batch, *model.parameters())]
    del batch, model
    assert [reference() for reference in storages] == [None] * len(storages)
    assert recorder.recording.trace.packs


def test_a_graph_that_is_dropped_lets_go_of_what_was_put_aside() -> None:
    class Counting:
        alive = 0

        def put(self, storage: torch.UntypedStorage) -> "Counting.Bytes":
            return Counting.Bytes(storage)

        class Bytes:
            def __init__(self, storage: torch.UntypedStorage) -> None:
                self.bytes = storage.clone()
                Counting.alive += 1

            def __del__(self) -> None:
                Counting.alive -= 1

            def restore(self) -> torch.UntypedStorage:
                return self.bytes.clone()

    leaf = torch.ones(3, requires_grad=True)
    with Recorder(store=Counting()):
        loss = leaf.exp().sin().sum()
        assert Counting.alive == 1  # exp packs its result and sin its argument: the same storage
        del loss
        assert Counting.alive == 0
