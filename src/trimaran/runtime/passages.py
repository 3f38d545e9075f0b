"""Where the backward of a passage through a segment starts, and where its gradients go.

A segment works on leaves of its own, cut off from the history of what it reads; the gradient of a leaf goes where the
tensor came from. So a segment of this rank and one of another rank are served alike, and gradients are those of one
graph.
"""

import torch

from trimaran.runtime.state import Passage, State


def backward_roots(
    passage: Passage, microbatch: int, state: State
) -> tuple[list[torch.Tensor], list[torch.Tensor | None]]:
    """Where a backward starts: the loss, and what was made for others, with the gradients that came back for it."""
    roots: list[torch.Tensor] = []
    gradients: list[torch.Tensor | None] = []
    if passage.root is not None and passage.root.requires_grad:
        roots.append(passage.root)
        gradients.append(None)
    for name, made in passage.made.items():
        gradient = state.take_gradient(microbatch, name)
        if gradient is not None and made.requires_grad:
            roots.append(made)
            gradients.append(gradient.to(made.dtype))
    return roots, gradients


def return_gradients(passage: Passage, microbatch: int, state: State) -> None:
    """Put the gradients of what a segment has read where their tensors came from."""
    for name, leaf in passage.read.items():
        if leaf.grad is not None:
            state.add_gradient(microbatch, name, leaf.grad)
            leaf.grad = None
