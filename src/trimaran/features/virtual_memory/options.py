"""Options of `virtual_memory`."""

from dataclasses import dataclass
from typing import Literal

from trimaran.base.errors import InputError
from trimaran.base.units import parse_bytes
from trimaran.planning.requests import Budget

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
        limit_s: most time for planning [s]
        on_violation: what to do when a GPU held more than the budget: plan again with less, or only note it
        enforce: whether a GPU's allocator is limited to the budget
        account: whether live bytes are counted on a CPU, operation by operation; slow, for tests
        optimizer_state: where it lives; "auto": on the host where otherwise no plan keeps the budget
        recompute: whether storages may be recomputed; otherwise they are moved only
    """

    budget: Budget
    host_bytes: int | None
    smallest_bytes: int
    limit_s: float
    on_violation: OnViolation
    enforce: bool
    account: bool
    optimizer_state: OptimizerState
    recompute: bool = True


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
