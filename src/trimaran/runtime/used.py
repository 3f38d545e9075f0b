"""Which trained parameters got a gradient in a step, on any replica.

A parameter that no sample of the global batch used has no gradient in a plain loop, and an optimizer leaves it alone.
In a sum over replicas it has zeros, by which an optimizer would decay it, or go on with its momentum. So each replica
counts what it has used, the counts are added up with the losses, and gradients that nobody has made are dropped before
anything is done with them:

    rank 0    backward  a  b  -  ─▶  1 1 0 ┐
    rank 1    backward  a  -  -  ─▶  1 0 0 ┴▶  2 1 0  ─▶  the third has no gradient
"""

from collections.abc import Sequence

import torch
from torch import nn


class Used:
    """The parameters that got a gradient in this step, on this replica and on all.

    Args:
        parameters: all that are trained, in an order that is the same on every replica
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._numbers = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        self._own = [0.0] * len(self._parameters)

    def note(self, parameter: torch.Tensor) -> None:
        """A parameter has a gradient here.

        Args:
            parameter: one of those that are trained
        """
        self._own[self._numbers[id(parameter)]] = 1.0

    def take(self, device: str) -> torch.Tensor:
        """What this replica has used since the last call: 1 or 0 a parameter, fp64.

        Args:
            device: where it is wanted
        """
        own, self._own = self._own, [0.0] * len(self._own)
        return torch.tensor(own, dtype=torch.float64, device=device)

    def unused(self, counts: torch.Tensor) -> list[nn.Parameter]:
        """The parameters that no replica has used.

        Args:
            counts: the sum over the replicas of what `take` gave
        """
        return [one for one, count in zip(self._parameters, counts.tolist(), strict=True) if not count]
