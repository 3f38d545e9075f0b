"""A memory budget as people give it: a size, or a share of what the job needs without help.

A share is for experiments: it is known only once a step was recorded. A size counts everything that a step holds on the
device: parameters, gradients, optimizer state, activations.
"""

import re
from dataclasses import dataclass

from trimaran.errors import InputError
from trimaran.units import parse_bytes

_SHARE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*%\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A size or a share; one of them is None.

    Attributes:
        nbytes: size [bytes]
        share: part of the peak without help, from 0 to 1
    """

    nbytes: int | None = None
    share: float | None = None

    def resolve(self, keep_peak_bytes: int) -> int:
        """The budget in bytes.

        Args:
            keep_peak_bytes: peak of the step without help [bytes]

        Example:
            >>> parse_budget("50%").resolve(1000), parse_budget(300).resolve(1000)
            (500, 300)
        """
        if self.nbytes is not None:
            return self.nbytes
        return int(keep_peak_bytes * (1.0 if self.share is None else self.share))


def parse_budget(budget: str | int) -> Budget:
    """A budget as a person gives it.

    Args:
        budget: a number of bytes, a size such as "12GiB", or a share such as "50%" of the peak without help

    Raises:
        InputError: none of these, not positive, or more than 100 %

    Example:
        >>> parse_budget("1GiB").nbytes, parse_budget("70%").share
        (1073741824, 0.7)
    """
    if isinstance(budget, bool) or not isinstance(budget, str | int):
        raise InputError(
            f'budget: expected a size such as "12GiB", a number of bytes or a share such as "50%", got {budget!r}',
            code="budget.malformed",
            budget=budget,
        )
    if isinstance(budget, int):
        return _positive(Budget(nbytes=budget), budget)
    share = _SHARE.fullmatch(budget)
    if share is None:
        return _positive(Budget(nbytes=parse_bytes(budget)), budget)
    value = float(share[1]) / 100
    if not 0 < value <= 1:
        raise InputError(
            f'budget: a share is more than 0 % and at most 100 %, got "{budget}"',
            code="budget.bad-share",
            budget=budget,
        )
    return Budget(share=value)


def _positive(budget: Budget, given: str | int) -> Budget:
    if budget.nbytes is not None and budget.nbytes <= 0:
        raise InputError(f'budget: expected more than 0 bytes, got "{given}"', code="budget.too-small", budget=given)
    return budget
