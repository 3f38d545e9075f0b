"""The card that is emulated, and what memory was used of it.

A fraction for the process limits torch's allocator alone: the context and the libraries' own memory are not counted by
it. They are measured before anything else is allocated, and subtracted from what the card has. Who asks the driver for
free memory still sees the whole card; cuDNN does where it tries its algorithms, so it is not asked to try them.

    card           |-- context --|---------------- allocator: what a fraction limits ----------------|
    budget in %                  |---- a share of the oracle's peak, limited in the same way ---------|
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from benchmarks.memory.cases import ORACLE, Arm, Case

from trimaran.memory_hooks.accountant import Accountant

RESERVE = 0.04
"""Part of the budget that plans leave alone, as a user would who says "11.5 GiB" for a card of 12."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much memory an arm has.

    Attributes:
        budget_bytes: for the allocator; None: as much as there is
        context_bytes: that the allocator does not know of [bytes]
    """

    budget_bytes: int | None
    context_bytes: int

    @property
    def asked_bytes(self) -> int:
        """What a plan is asked to keep: some is left to workspaces of libraries and to gaps between blocks [bytes]."""
        return int((1 - RESERVE) * (self.budget_bytes or 0))


def emulate(case: Case, arm: Arm, oracle: dict[str, Any] | None, device: str) -> Limit:
    """Limit the allocator to what the case leaves, unless the arm is the oracle."""
    context_bytes = _context_bytes() if device == "cuda" else 0
    if arm.name == ORACLE or oracle is None:
        return Limit(budget_bytes=None, context_bytes=context_bytes)
    if case.card_bytes is not None:
        budget_bytes = case.card_bytes - context_bytes
    else:
        budget_bytes = int((case.share or 1.0) * oracle["peak_bytes"])
    if device == "cuda":
        total_bytes = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(budget_bytes / total_bytes)
    return Limit(budget_bytes=budget_bytes, context_bytes=context_bytes)


def activation_share(limit: Limit, oracle: dict[str, Any] | None) -> float:
    """Share of what the forward keeps that fits the budget beside what is always there [0..1]."""
    if limit.budget_bytes is None or oracle is None:
        return 1.0
    always = oracle["resident_bytes"] or 0
    return (limit.budget_bytes - always) / max(1, oracle["peak_bytes"] - always)


def restart(device: str) -> int | None:
    """Forget earlier peaks.

    Returns:
        What is there between two steps [bytes]; None on a CPU.
    """
    if device == "cpu":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def retries(device: str) -> int | None:
    """How often the allocator has given its cached blocks back to go on; None on a CPU."""
    return None if device == "cpu" else int(torch.cuda.memory_stats()["num_alloc_retries"])


def memory(device: str, step: Callable[[], object] | None) -> dict[str, int]:
    """Peaks since the restart [bytes].

    Args:
        device: "cuda": its allocator knows; "cpu": the storages of one more step are followed
        step: runs one; None: nothing can be run any more
    """
    if device == "cuda":
        free_bytes, total_bytes = torch.cuda.mem_get_info()
        counts = torch.cuda.memory_stats()
        return {
            "num_alloc_retries": counts["num_alloc_retries"],
            "num_ooms": counts["num_ooms"],
            "peak_bytes": torch.cuda.max_memory_allocated(),
            "reserved_bytes": torch.cuda.max_memory_reserved(),
            "used_bytes": total_bytes - free_bytes,
        }
    if step is None:
        return {}
    with Accountant() as accountant:
        step()
    return {"peak_bytes": accountant.peak_bytes}


def _context_bytes() -> int:
    """What this process uses of the device before it has allocated anything of its own [bytes]."""
    square = torch.ones(64, 64, device="cuda", requires_grad=True)
    maps = torch.ones(1, 3, 32, 32, device="cuda")
    weight = torch.ones(4, 3, 3, 3, device="cuda", requires_grad=True)
    ((square @ square).sum() + torch.nn.functional.conv2d(maps, weight).sum()).backward()
    torch.cuda.synchronize()
    del square, maps, weight
    torch.cuda.empty_cache()
    free_bytes, total_bytes = torch.cuda.mem_get_info()
    # Right only where no other process uses the device.
    return max(0, total_bytes - free_bytes - torch.cuda.memory_reserved())
