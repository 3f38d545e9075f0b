"""A pass: one forward with its backward.

Whether a step ended with what it began with, so that the next one will be like it.

The first step makes the optimizer's state. Where gradients are set to zero at the beginning of a step, those of the
step before are still there when it begins, but for the first one.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import NamedTuple

from trimaran.graph.trace.live_bytes import WEIGHTS
from trimaran.graph.trace.types import StepTrace
from trimaran.memory.search import MemoryOutcome
from trimaran.memory_budget.recording import (
    WITHOUT_MODULE,
    Pack,
    Recorded,
    Signature,
    Unpack,
    keep_pack,
    keep_unpack,
)


class Key(NamedTuple):
    """The passes that a plan is for.

    Attributes:
        signature: look of the batch
        later: whether it is not the first pass of its step, and finds gradients there
        after: number of the optimizer that stepped last; two that alternate, as for a generator and its critic, make
            steps that differ although they may begin alike
    """

    signature: Signature
    later: bool
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PassStats:
    """Statistics of a pass under a plan.

    Attributes:
        to_host_bytes: copied to the host [bytes]
        to_device_bytes: copied back [bytes]
        stall_s: the host's waiting for copies [s]; None on a GPU, whose streams wait
        fell_back: whether it did not go as planned
        verified: whether recipes were compared, which takes additional memory
        ineffective: names of storages that were let go, but that someone else still held
        planned: whether it had a plan
        banned: what is recomputed no more, in words, because its recipe gave other bits than were there
        unnoticed: whether one of these may have done so in passes before
        infeasible: why there is no plan any more
    """

    to_host_bytes: int = 0
    to_device_bytes: int = 0
    stall_s: float | None = 0.0
    fell_back: bool = False
    verified: bool = False
    ineffective: tuple[str, ...] = ()
    planned: bool = False
    banned: tuple[str, ...] = ()
    unnoticed: bool = False
    infeasible: str = ""


class Runner:
    """Runs passes as autograd does; under a plan, `PlannedRunner`.

    Attributes:
        phase: what the next pass is for: "keep", "verify" or "run"
        outcome: the plan; None: nothing moves
    """

    phase: str = "keep"
    outcome: MemoryOutcome | None = None

    def begin(self) -> tuple[Pack, Unpack]:
        """A pass begins; how to pack and to unpack in it."""
        return keep_pack, keep_unpack

    def confirm(self) -> None:
        """See that recomputed storages had the right bytes."""

    def end(self) -> PassStats:
        """The pass has ended."""
        return PassStats()


@dataclass(slots=True, kw_only=True)
class ActivePass:
    """A pass that is under way.

    Attributes:
        key: what it is
        planned: who runs it; None: it is recorded
        seen: looks of all batches that went into outermost modules
    """

    key: Key
    planned: Runner | None
    seen: set[Signature] = field(default_factory=set)

    @property
    def has_module(self) -> bool:
        """Whether it began with a module: then so does the next one, and what comes between belongs to this one."""
        return bool(self.key.signature[0] != WITHOUT_MODULE)


def bytes_at_start(trace: StepTrace) -> int:
    """Parameters, gradients and state that are there before a pass [bytes]."""
    return sum(one.nbytes for one in trace.storages if one.role in WEIGHTS and one.birth < 0)


def bytes_at_end(trace: StepTrace) -> int:
    """Parameters, gradients and state that are there after a pass [bytes]."""
    return sum(one.nbytes for one in trace.storages if one.role in WEIGHTS and one.outside_end >= trace.length)


def is_steady(first: StepTrace, last: StepTrace) -> bool:
    """Whether a step ended with as much as it began with.

    Args:
        first: pass of the step
        last: pass of the step
    """
    return bytes_at_start(first) == bytes_at_end(last)


# ---------------------------------------------------------------------------------------------------------------------
# The step that is under way: its passes so far, and what was recorded of them


UNSEEN = (
    "steps without any forward that virtual_memory saw: the loop's own hooks of saved tensors come before those of "
    "virtual_memory (put them around `with virtual_memory`, or around single modules), or torch.func computes all "
    "gradients (use loss.backward())"
)
"""Told where a step ends in which nothing was packed."""


class OpenStep:
    """Passes since the last step has ended.

    Attributes:
        passes: how many have begun
    """

    def __init__(self) -> None:
        self.passes = 0
        self._ended = 0
        self._recorded: dict[Key, Recorded] = {}
        self._updated: set[int] = set()

    def begin(self, signature: Signature, after: int) -> Key:
        """A pass begins.

        Args:
            signature: look of its batch
            after: number of the optimizer that stepped last

        Returns:
            What it is, as far as can be told.
        """
        key = Key(signature=signature, later=self.passes > 0, after=after)
        self.passes += 1
        return key

    def add(self, pass_: ActivePass, recorded: Recorded) -> None:
        """A pass has ended that was recorded."""
        self._recorded[pass_.key] = dataclasses.replace(recorded, seen=frozenset(pass_.seen))

    def end(self, after: int) -> dict[Key, Recorded]:
        """The step has ended.

        Args:
            after: number of the optimizer that has stepped

        Returns:
            What was recorded of it.
        """
        recorded = self._recorded
        self.forget()
        self._ended += 1
        self._updated = {after}
        return recorded

    def is_unseen(self, after: int) -> bool:
        """Whether an update without a pass ends a step; otherwise it belongs to the step that has ended before.

        Args:
            after: number of the optimizer that has stepped
        """
        unseen = after in self._updated or not self._ended
        self._updated.add(after)
        return unseen

    def forget(self) -> None:
        """Begin anew."""
        self.passes = 0
        self._recorded = {}
