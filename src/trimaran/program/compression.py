"""How gradients are made smaller before they go over the wire. Every method here loses something.

"bf16" and "fp16" round each number to 16 bits. "powersgd" sends two thin matrices whose product is close to the
gradient's matrix. What is lost is added to the gradient of the next step (error feedback).

Source:
    T. Vogels, S. P. Karimireddy, M. Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
    Optimization", NeurIPS 2019.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

from trimaran.errors import InputError

Method = Literal["bf16", "fp16", "powersgd"]

SMALLEST_BYTES = 4
"""Size of the smallest numbers that a method makes smaller [bytes]."""

_TEXT = re.compile(r"(bf16|fp16)|powersgd(?:-r|:)?([1-9][0-9]{0,3})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """A lossy form of gradients on the wire.

    Attributes:
        method: which
        rank: of the matrices of "powersgd"; 0 with the others

    Raises:
        InputError: an unknown method, or a rank that it does not have
    """

    method: Method
    rank: int = 0

    def __post_init__(self) -> None:
        if self.method not in get_args(Method):
            raise InputError(f"Compression.method must be one of {', '.join(get_args(Method))}, got {self.method!r}")
        low, high = (1, 9999) if self.method == "powersgd" else (0, 0)
        if not isinstance(self.rank, int) or not low <= self.rank <= high:
            raise InputError(
                f"{self.method} takes a rank of {low} to {high}, got {self.rank!r}", method=self.method, rank=self.rank
            )

    @property
    def name(self) -> str:
        """Short form for names of strategies.

        Example:
            >>> Compression(method="bf16").name, Compression(method="powersgd", rank=2).name
            ('bf16', 'powersgd-r2')
        """
        return f"{self.method}-r{self.rank}" if self.rank else self.method

    @property
    def option(self) -> str:
        """As it is written on the command line.

        Example:
            >>> Compression(method="bf16").option, Compression(method="powersgd", rank=2).option
            ('bf16', 'powersgd:2')
        """
        return f"{self.method}:{self.rank}" if self.rank else self.method

    def wire_numbers(self, shape: Sequence[int]) -> int:
        """Numbers that stand for one parameter's gradient on the wire.

        PowerSGD takes a gradient as a matrix of its first dimension by all others, and sends r numbers a row and r a
        column; a vector, and a matrix that this would not make smaller, go as they are.

        Args:
            shape: of the parameter

        Example:
            >>> Compression(method="powersgd", rank=2).wire_numbers((64, 32, 3, 3))  # 2 (64 + 288)
            704
            >>> Compression(method="powersgd", rank=2).wire_numbers((64,))
            64
        """
        numbers = math.prod(shape)
        if self.method != "powersgd" or not self.factors(shape):
            return numbers
        rows = shape[0]
        return min(self.rank, rows, numbers // rows) * (rows + numbers // rows)

    def second_numbers(self, shape: Sequence[int]) -> int:
        """Those of `wire_numbers` that go in a second sum: r a column.

        Args:
            shape: of the parameter

        Example:
            >>> Compression(method="powersgd", rank=2).second_numbers((64, 32, 3, 3))  # 2 · 288
            576
        """
        if not self.factors(shape):
            return 0
        rows, columns = shape[0], math.prod(shape) // shape[0]
        return min(self.rank, rows, columns) * columns

    def factors(self, shape: Sequence[int]) -> bool:
        """Whether the gradient of a parameter goes as two thin matrices.

        Args:
            shape: of the parameter
        """
        numbers = math.prod(shape)
        if self.method != "powersgd" or len(shape) < 2 or not numbers:
            return False
        rows, columns = shape[0], numbers // shape[0]
        return min(self.rank, rows, columns) * (rows + columns) < numbers

    def wire_bytes(self, shapes: Sequence[Sequence[int]], *, itemsize: int = 4) -> int:
        """Size of a bucket on the wire [bytes]; gradients of 16 bits go as they are, by any method.

        Args:
            shapes: of its parameters
            itemsize: of a number of the gradients [bytes]

        Example:
            >>> Compression(method="bf16").wire_bytes([(64, 32), (64,)])
            4224
            >>> Compression(method="powersgd", rank=2).wire_bytes([(64, 32), (64,)], itemsize=2)
            4224
        """
        if itemsize < SMALLEST_BYTES:
            return itemsize * sum(math.prod(shape) for shape in shapes)
        size = itemsize if self.method == "powersgd" else 2
        return size * sum(self.wire_numbers(shape) for shape in shapes)


def parse_compression(text: str) -> Compression | None:
    """A compression as it is written on the command line.

    Args:
        text: "none", "bf16", "fp16", or "powersgd" with a rank, as in "powersgd:2" (4 where none is given)

    Raises:
        InputError: a text that means nothing

    Example:
        >>> parse_compression("powersgd:2"), parse_compression("none")
        (Compression(method='powersgd', rank=2), None)
    """
    lowered = text.strip().lower()
    if lowered in ("none", ""):
        return None
    found = _TEXT.fullmatch(lowered)
    if found is None:
        raise InputError(
            f'compression must be none, bf16, fp16 or powersgd:RANK, got "{text}"',
            code="compression.unknown",
            value=text,
        )
    if found[1]:
        return Compression(method=cast("Method", found[1]))
    return Compression(method="powersgd", rank=int(found[2] or 4))
