"""A pass: one forward with its backward.

Whether a step ended with what it began with, so that the next one will be like it.

The first step makes the optimizer's state. Where gradients are set to zero at the beginning of a step, those of the
step before are still there when it begins, but for the first one.

Passes that begin alike and go on differently: the order so far tells which one is next.

A critic is trained some steps and then the generator once; the gradient of an input is taken some times and then that
of the weights. Their passes may begin with the same module and the same look of the batch. Each such **use** has a
plan; there are two for a key. The next use is the one that came the last time after the same uses.
"""

import dataclasses
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from trimaran.graph.trace.live_bytes import WEIGHTS
from trimaran.graph.trace.types import StepTrace, Tick
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
        use: 1 for the second of two uses that begin alike even so
    """

    signature: Signature
    later: bool
    after: int
    use: int = 0


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


_LONGEST = 12
_KEPT = 64
_MOST_KEYS = 64


class KeyUses:
    """The uses of each key, in order."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Key, list[int]] = OrderedDict()

    def next(self, key: Key) -> Key:
        """The key with the use that is expected."""
        seen = self._seen.get(key._replace(use=0), [])
        use = following(seen)
        return key._replace(use=use if seen.count(use) > 1 else 0)  # once is no rule

    def note(self, key: Key, *, other: bool = False) -> None:
        """A pass has ended.

        Args:
            key: what it was taken for
            other: whether it was the other use
        """
        first = key._replace(use=0)
        seen = self._seen.setdefault(first, [])
        seen.append(1 - key.use if other else key.use)
        del seen[:-_KEPT]
        self._seen.move_to_end(first)
        while len(self._seen) > _MOST_KEYS:
            self._seen.popitem(last=False)


def following(seen: list[int]) -> int:
    """The use that came the last time after the longest run of the last uses; 0 where nothing did.

    Example:
        >>> following([0, 0, 1, 0, 0, 1, 0]), following([0, 0, 1, 0, 0, 1, 0, 0])
        (0, 1)
    """
    if 1 not in seen:
        return 0
    for length in range(min(_LONGEST, len(seen) - 1), 0, -1):
        for end in range(len(seen) - 1, length - 1, -1):
            if seen[end - length : end] == seen[-length:]:
                return seen[end]
    return seen[-1]


def are_alike(one: StepTrace, other: StepTrace) -> bool:
    """Whether two passes find the same weights and gradients, and pack and unpack in the same order."""
    return bytes_at_start(one) == bytes_at_start(other) and _ticks(one) == _ticks(other)


def _ticks(trace: StepTrace) -> list[tuple[str, int]]:
    return [(event.kind, event.pack) for event in trace.events if isinstance(event, Tick)]


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
        self._uses = KeyUses()
        self._updated: set[int] = set()

    def begin(self, signature: Signature, after: int) -> Key:
        """A pass begins.

        Args:
            signature: look of its batch
            after: number of the optimizer that stepped last

        Returns:
            What it is, as far as can be told.
        """
        key = self._uses.next(Key(signature=signature, later=self.passes > 0, after=after))
        self.passes += 1
        return key

    def ran(self, pass_: ActivePass, stats: PassStats) -> None:
        """A pass has ended that was known."""
        self._uses.note(pass_.key, other=stats.planned and stats.fell_back)

    def add(self, pass_: ActivePass, recorded: Recorded) -> None:
        """A pass has ended that was recorded. One that is unlike another with its key is the other use."""
        key = pass_.key
        before = self._recorded.get(key)
        if before is not None and not are_alike(before.recording.trace, recorded.recording.trace):
            key = key._replace(use=1)
        self._uses.note(key)
        self._recorded[key] = dataclasses.replace(recorded, seen=frozenset(pass_.seen))

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
