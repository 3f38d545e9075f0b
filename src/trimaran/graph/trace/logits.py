"""Scores of classes: tensors as large as what a cross-entropy is taken of, whoever noted the operations."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from trimaran.graph.trace.types import Shape

_MOST_MORE = 1.5
"""Rows of scores by those that a loss is taken of, at most: a language model drops the last token of each sequence."""


@dataclass(frozen=True, slots=True)
class Logits:
    """The scores that the largest cross-entropy of a step is taken of.

    Attributes:
        rows: such as tokens
        classes: of each row, such as words of a vocabulary
    """

    rows: int
    classes: int

    def holds(self, shape: Shape) -> bool:
        """Whether a tensor of this shape holds scores, copies of them or their gradient.

        Example:
            >>> scores = Logits(rows=8190, classes=32000)
            >>> [scores.holds(shape) for shape in ((8192, 32000), (2, 4096, 32000), (32000, 4096), (2, 32000, 1, 4095))]
            [True, True, False, True]
        """
        if len(shape) < 2 or not (shape[-1] == self.classes or (len(shape) > 2 and shape[1] == self.classes)):
            return False
        return self._has_rows(shape)

    def concern(self, shapes: Iterable[Shape]) -> bool:
        """Whether an operation on tensors of these shapes is on scores, transposed ones too.

        Example:
            >>> Logits(rows=64, classes=10).concern([(10, 64), (64, 8)])
            True
        """
        return any(self.holds(one) or (one[:1] == (self.classes,) and self._has_rows(one)) for one in shapes)

    def _has_rows(self, shape: Shape) -> bool:
        return self.rows <= math.prod(shape) // self.classes <= _MOST_MORE * self.rows


def find_logits(operations: Iterable[tuple[str, Sequence[Shape]]]) -> Logits | None:
    """The scores of the largest cross-entropy; None: there is none of rows and classes.

    Args:
        operations: name below autograd, and the shapes of its arguments

    Example:
        >>> find_logits([("aten.mm.default", [(64, 8), (8, 10)]), ("aten.nll_loss_forward.default", [(64, 10), (64,)])])
        Logits(rows=64, classes=10)
    """
    found: Logits | None = None
    for name, shapes in operations:
        form = name.split(".")[1:2]
        shape = shapes[0] if shapes else ()
        is_rows = form == ["nll_loss_forward"] and len(shape) == 2
        # Of scores with the classes in the second place torch makes an image of one row.
        is_image = form == ["nll_loss2d_forward"] and len(shape) == 4 and shape[2] == 1
        if is_rows or is_image:
            scores = Logits(math.prod(shape) // shape[1], shape[1])
            if found is None or scores.rows * scores.classes > found.rows * found.classes:
                found = scores
    return found
