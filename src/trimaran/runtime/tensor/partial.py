"""Gradients of which each rank has made a part, added up as one."""

from collections.abc import Sequence

import torch
from torch import nn


class PartialGradients:
    """Parameters of one data type whose gradients are summed together; it stands in the place of one parameter.

    Args:
        parameters: whole on every rank, used on its part of every sequence
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)

    @property
    def grad(self) -> torch.Tensor | None:
        """All gradients, flat; zeros for those that have none."""
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in self._parameters]
        return torch.cat([gradient.reshape(-1) for gradient in found])

    @grad.setter
    def grad(self, flat: torch.Tensor | None) -> None:
        """Gradients that are parts of one tensor; what has none keeps none, as on all these ranks."""
        if flat is None:
            return
        parts = flat.split([parameter.numel() for parameter in self._parameters])
        for parameter, part in zip(self._parameters, parts, strict=True):
            if parameter.grad is not None:
                parameter.grad = part.view_as(parameter)
