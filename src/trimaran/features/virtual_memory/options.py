"""What a user may choose, checked once."""

from dataclasses import dataclass
from typing import Literal

from trimaran.base.errors import InputError
from trimaran.base.units import parse_bytes
from trimaran.planning.requests import Budget, parse_budget

OnViolation = Literal["replan", "note"]
OptimizerState = Literal["device", "host", "auto"]

_PLACES: dict[str, OptimizerState] = {"device": "device", "host": "host", "auto": "auto"}

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


def make_options(
    *,
    budget: str | int,
    host: str | int | None,
    smallest: str | int,
    limit_s: float,
    on_violation: str,
    enforce: bool,
    account: bool,
    optimizer_state: str,
    recompute: bool,
) -> Options:
    """Check what a user chose.

    Raises:
        InputError: a value that is none of those that are described
    """
    if on_violation not in ("replan", "note"):
        raise InputError(
            f'on_violation: expected "replan" or "note", got {on_violation!r}',
            code="virtual-memory.bad-on-violation",
            on_violation=on_violation,
        )
    if optimizer_state not in _PLACES:
        raise InputError(
            f'optimizer_state: expected "device", "host" or "auto", got {optimizer_state!r}',
            code="virtual-memory.bad-optimizer-state",
            optimizer_state=optimizer_state,
        )
    if not limit_s > 0:
        raise InputError(
            f"limit_s: expected more than 0 seconds for planning, got {limit_s}",
            code="virtual-memory.bad-limit",
            limit_s=limit_s,
        )
    return Options(
        budget=parse_budget(budget),
        host_bytes=None if host is None else _size(host, "host"),
        smallest_bytes=_size(smallest, "smallest"),
        limit_s=limit_s,
        on_violation="replan" if on_violation == "replan" else "note",
        enforce=enforce,
        account=account,
        optimizer_state=_PLACES[optimizer_state],
        recompute=recompute,
    )


def _size(size: str | int, name: str) -> int:
    nbytes = parse_bytes(size) if isinstance(size, str) else size
    if isinstance(nbytes, bool) or not isinstance(nbytes, int) or nbytes < 0:
        raise InputError(
            f'{name}: expected a size such as "1MiB" or a number of bytes, got {size!r}',
            code="virtual-memory.bad-size",
            size=size,
        )
    return nbytes
