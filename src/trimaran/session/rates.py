"""The learning rate of the built-in jobs: up in a line, down along half a cosine."""

import math

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

FLOOR = 0.01  # of the largest rate; what is left when training goes on after the last planned update


def warm_up_then_cosine(optimizer: Optimizer, *, warm_up: int, updates: int) -> LambdaLR:
    """The schedule, over an optimizer whose rate is the largest one.

    Args:
        optimizer: made with the largest rate
        warm_up: updates until that rate is reached
        updates: updates until the lowest rate is reached

    Returns:
        A schedule to step once an update.
    """

    def share(update: int) -> float:
        return rate(update, warm_up=warm_up, updates=updates)

    return LambdaLR(optimizer, share)


def rate(update: int, *, warm_up: int, updates: int) -> float:
    """Share of the largest rate at an update, counted from 0.

    Example:
        >>> [rate(update, warm_up=2, updates=4) for update in (0, 1, 2, 3, 9)]
        [0.5, 1.0, 1.0, 0.505, 0.01]
    """
    if update < warm_up:
        return (update + 1) / warm_up
    done = min(1.0, (update - warm_up) / (updates - warm_up))
    return FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * done)) / 2
