"""Hooks on gradients wait for the whole gradient, and may be removed meanwhile."""

import torch
from torch import nn

from trimaran.user_code.model import call_waiting, count_gradient_hooks, hooks_wait


def backward(weight: nn.Parameter) -> None:
    """Two parts of a batch."""
    weight.grad = None
    for _ in range(2):
        (weight * 0.75).sum().backward()


def test_hooks_wait_until_they_are_called_and_go_again() -> None:
    weight, met = nn.Parameter(torch.zeros(2)), list[list[float]]()
    handle = weight.register_hook(lambda gradient: gradient.clamp(max=1.0))
    weight.register_post_accumulate_grad_hook(lambda one: met.append(one.grad.tolist()))
    hooks_wait([weight])
    hooks_wait([weight])
    backward(weight)
    assert met == []
    call_waiting([weight])
    assert weight.grad is not None
    assert (weight.grad.tolist(), met) == ([1.0, 1.0], [[1.0, 1.0]])
    handle.remove()
    backward(weight)
    call_waiting([weight])
    assert (met[1:], count_gradient_hooks(weight)) == ([[1.5, 1.5]], 1)
    hooks_wait([weight], wait=False)
    backward(weight)
    call_waiting([weight])
    assert met[2:] == [[0.75, 0.75], [1.5, 1.5]]
