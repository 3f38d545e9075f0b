"""Options of `virtual_memory`."""

import re
from dataclasses import dataclass
from typing import Literal

from trimaran.base.errors import InputError
from trimaran.base.units import parse_bytes, parse_memory
from trimaran.program.memory import CodecChoice

_SHARE = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*%\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """A size or a share; one of them is None.

    Attributes:
        nbytes: size [bytes]
        share: part of the peak without a plan, from 0 to 1
    """

    nbytes: int | None = None
    share: float | None = None

    def resolve(self, keep_peak_bytes: int) -> int:
        """The budget in bytes.

        Args:
            keep_peak_bytes: peak of the step without a plan [bytes]

        Example:
            >>> parse_budget("50%").resolve(1000), parse_budget("300B").resolve(1000)
            (500, 300)
        """
        if self.nbytes is not None:
            return self.nbytes
        return int(keep_peak_bytes * (1.0 if self.share is None else self.share))


def parse_budget(budget: str | int) -> Budget:
    """A budget as a person gives it.

    Args:
        budget: a size such as "12GiB", a million bytes or more, or a share such as "50%" of the peak without a plan

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
    share = _SHARE.fullmatch(str(budget))
    if share is None:
        return Budget(nbytes=parse_memory(budget))
    value = float(share[1]) / 100
    if not 0 < value <= 1:
        raise InputError(
            f'budget: a share is more than 0 % and at most 100 %, got "{budget}"',
            code="budget.bad-share",
            budget=budget,
        )
    return Budget(share=value)


OnViolation = Literal["replan", "note"]
OptimizerState = Literal["device", "host", "auto"]

MOST_PLANS = 8
MOST_TIGHTENED = 4
SETTLING_STEPS = 3
VERIFY_EVERY = 64
"""Passes of a plan after which its recipes are compared with the real bytes again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Choices of `virtual_memory`.

    Attributes:
        budget: of the device
        host_bytes: most that storages may take on the host [bytes]; None: what the host has to spare
        smallest_bytes: smaller storages are kept [bytes]
        limit_s: most time for planning [s]; None: as long as it takes
        on_violation: what to do when a GPU held more than the budget: plan again with less, or only note it
        enforce: whether a GPU's allocator is limited to the budget
        account: whether live bytes are counted on a CPU, operation by operation; slow, for tests
        optimizer_state: where it lives; "auto": on the host where otherwise no plan keeps the budget
        recompute: whether storages may be recomputed; otherwise they are moved only
        codec: may code what is offloaded, where that is faster; None: bytes go as they are
        whole_steps: one plan for all forwards and backwards of a step, in the order in which they alternate, as for a
            stage of a pipeline; otherwise one for each forward with its backward
    """

    budget: Budget
    host_bytes: int | None
    smallest_bytes: int
    limit_s: float | None
    on_violation: OnViolation
    enforce: bool
    account: bool
    optimizer_state: OptimizerState
    recompute: bool = True
    codec: CodecChoice | None = None
    whole_steps: bool = False


def parse_size(size: str | int, name: str) -> int:
    """A size as a user writes it [bytes].

    Args:
        size: such as "1MiB", or a number of bytes
        name: of the option

    Raises:
        InputError: it is none
    """
    nbytes = parse_bytes(size) if isinstance(size, str) else size
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise InputError(
            f'{name}: expected a size such as "1MiB" or a number of bytes, got {size!r}',
            code="virtual-memory.bad-size",
            size=size,
        )
    return nbytes
