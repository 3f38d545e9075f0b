"""Sizes at two batch sizes, as one expression in the batch size `B`."""

from collections.abc import Sequence
from fractions import Fraction

from trimaran.graph.types import Affine

Batches = tuple[int, int]


def fit(first: float, second: float, batches: Batches) -> Affine:
    """The line through a quantity at two batch sizes.

    Example:
        >>> fit(14.0, 22.0, (4, 8))
        Affine(fixed=6.0, per_sample=2.0)
    """
    per_sample = (second - first) / (batches[1] - batches[0])
    return Affine(float(first - per_sample * batches[0]), float(per_sample))


def describe_shape(first: Sequence[int], second: Sequence[int], batches: Batches) -> tuple[int | str, ...]:
    """A shape whose sizes are numbers, or expressions in `B`.

    Example:
        >>> describe_shape((4, 3, 9), (8, 3, 17), (4, 8))
        ('B', 3, '2*B + 1')
    """
    return tuple(_describe(one, other, batches) for one, other in zip(first, second, strict=True))


def describe_number(first: object, second: object, batches: Batches) -> str:
    """A number or another plain value at two batch sizes, as text."""
    if isinstance(first, int) and isinstance(second, int) and not isinstance(first, bool):
        return str(_describe(first, second, batches))
    return str(first)


def _describe(first: int, second: int, batches: Batches) -> int | str:
    factor = Fraction(second - first, batches[1] - batches[0])
    rest = first - factor * batches[0]
    if factor == 0:
        return first
    product = "B" if factor == 1 else f"{factor}*B"
    return product if rest == 0 else f"{product} {'+' if rest > 0 else '-'} {abs(rest)}"
