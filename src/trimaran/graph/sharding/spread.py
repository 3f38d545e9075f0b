"""How a tensor lies on the ranks that share it, and what views do with that.

A share is always an equal and contiguous part of one dimension, or of each of several sections of it. So a view keeps
a share a share only where the split dimension stays the slowest one of what it is taken apart into or joined from.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


class NotSharedError(Exception):
    """An operation cannot work on shares; the message is the reason, in one line."""


@dataclass(frozen=True, slots=True)
class Spread:
    """A tensor of which every rank has a share.

    Attributes:
        dim: the dimension that is split
        sections: sizes of its parts that are split each by itself; together the size of the dimension
    """

    dim: int
    sections: tuple[int, ...]

    @property
    def size(self) -> int:
        """Size of the whole dimension."""
        return sum(self.sections)

    @property
    def units(self) -> int:
        """The number of ranks must divide it."""
        return math.gcd(*self.sections)

    def moved(self, dim: int) -> "Spread":
        """The same on another dimension."""
        return Spread(dim, self.sections)


def reshaped(spread: Spread, before: Sequence[int], after: Sequence[int]) -> Spread:
    """How a tensor is spread after a view.

    Args:
        spread: before the view
        before: shape before it
        after: shape after it

    Raises:
        NotSharedError: shares before are not shares after

    Example:
        >>> reshaped(Spread(2, (96,)), (4, 8, 96), (4, 8, 12, 8))
        Spread(dim=2, sections=(12,))
        >>> reshaped(Spread(2, (32, 32, 32)), (4, 8, 96), (4, 8, 3, 4, 8))
        Spread(dim=3, sections=(4,))
        >>> reshaped(Spread(2, (4,)), (4, 8, 4, 8), (4, 8, 32))
        Spread(dim=2, sections=(32,))
    """
    outside = math.prod(before[: spread.dim])
    found = [place for place in range(len(after)) if math.prod(after[:place]) == outside]
    # Of several, those before the last have size 1.
    if not found:
        raise NotSharedError("a view joins the split dimension to the one before it")
    place = found[-1]
    size, new = before[spread.dim], after[place]
    if new == size:
        return spread.moved(place)
    if new > size and new % size == 0:
        return Spread(place, tuple(part * (new // size) for part in spread.sections))
    if new < size and size % new == 0:
        if len(spread.sections) == 1:
            return Spread(place, (new,))
        each = spread.sections[0]
        follows = after[place + 1] if place + 1 < len(after) else 0
        if spread.sections == (each,) * new and follows and each % follows == 0:
            return Spread(place + 1, (follows,))
    raise NotSharedError("a view takes the split dimension apart in another way than its shares")
