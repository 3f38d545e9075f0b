"""A flight: one forward with its backward.

Whether a step ended with what it began with, so that the next one will be like it.

The first step makes the optimizer's state. Where gradients are set to zero at the beginning of a step, those of the
step before are still there when it begins, but for the first one.

Flights that begin alike and go on differently, by turns: which one is next is told from the order so far.

A critic is trained some steps and then the generator once; the gradient of an input is taken some times and then that
of the weights. Their flights may begin with the same module and the same look of the batch. Each such use is a **turn**
with a plan of its own; there are two for a key. The next turn is the one that came the last time after the same turns.
"""

import dataclasses
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from trimaran.graph.trace.live_bytes import WEIGHTS
from trimaran.graph.trace.types import StepTrace, Tick
from trimaran.memory.search import MemoryOutcome
from trimaran.memory_budget.recording import WITHOUT_MODULE, Pack, Recorded, Signature, Unpack


class Key(NamedTuple):
    """What a plan is for.

    Attributes:
        signature: look of the batch
        later: whether it is not the first flight of its step, and finds gradients there
        after: number of the optimizer that stepped last; two that take turns, as for a generator and its critic, make
            steps that differ although they may begin alike
        turn: 1 for the second of two uses that begin alike even so
    """

    signature: Signature
    later: bool
    after: int
    turn: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class FlightStats:
    """What happened in a flight under a plan.

    Attributes:
        to_host_bytes: copied to the host [bytes]
        to_device_bytes: copied back [bytes]
        stall_s: the host's waiting for copies [s]; None on a GPU, whose streams wait
        fell_back: whether it did not go as planned
        verified: whether recipes were compared, which takes memory of its own
        ineffective: names of storages that were let go, but that someone else still held
        planned: whether it had a plan
        banned: what is made again no more, in words, because its recipe gave other bits than were there
        unnoticed: whether one of these may have done so in flights before
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


class Flyer(Protocol):
    """Somebody who runs flights as planned.

    Attributes:
        phase: what the next flight is for: "keep", "verify" or "run"
        outcome: the plan; None: nothing moves
    """

    @property
    def phase(self) -> str: ...  # noqa: D102

    @property
    def outcome(self) -> MemoryOutcome | None: ...  # noqa: D102

    def begin(self) -> tuple[Pack, Unpack]:
        """A flight begins; how to pack and to unpack in it."""

    def confirm(self) -> None:
        """See that what was made again had the right bytes."""

    def end(self) -> FlightStats:
        """It has ended."""


@dataclass(slots=True, kw_only=True)
class Flight:
    """A flight that is under way.

    Attributes:
        key: what it is
        planned: who runs it; None: it is recorded
        seen: looks of all batches that went into outermost modules
    """

    key: Key
    planned: Flyer | None
    seen: set[Signature] = field(default_factory=set)

    @property
    def has_module(self) -> bool:
        """Whether it began with a module: then so does the next one, and what comes between belongs to this one."""
        return bool(self.key.signature[0] != WITHOUT_MODULE)


def bytes_at_start(trace: StepTrace) -> int:
    """Parameters, gradients and state that are there before a flight [bytes]."""
    return sum(one.nbytes for one in trace.storages if one.role in WEIGHTS and one.birth < 0)


def bytes_at_end(trace: StepTrace) -> int:
    """Parameters, gradients and state that are there after a flight [bytes]."""
    return sum(one.nbytes for one in trace.storages if one.role in WEIGHTS and one.outside_end >= trace.length)


def is_steady(first: StepTrace, last: StepTrace) -> bool:
    """Whether a step ended with as much as it began with.

    Args:
        first: flight of the step
        last: flight of the step
    """
    return bytes_at_start(first) == bytes_at_end(last)


_LONGEST = 12
_KEPT = 64
_MOST_KEYS = 64


class Turns:
    """The turns of each key, in order."""

    def __init__(self) -> None:
        self._seen: OrderedDict[Key, list[int]] = OrderedDict()

    def next(self, key: Key) -> Key:
        """The key with the turn that is expected."""
        seen = self._seen.get(key._replace(turn=0), [])
        turn = following(seen)
        return key._replace(turn=turn if seen.count(turn) > 1 else 0)  # once is no rule

    def note(self, key: Key, *, other: bool = False) -> None:
        """A flight has ended.

        Args:
            key: what it was taken for
            other: whether it was the other turn
        """
        first = key._replace(turn=0)
        seen = self._seen.setdefault(first, [])
        seen.append(1 - key.turn if other else key.turn)
        del seen[:-_KEPT]
        self._seen.move_to_end(first)
        while len(self._seen) > _MOST_KEYS:
            self._seen.popitem(last=False)


def following(seen: list[int]) -> int:
    """What came the last time after as many of the last turns as possible; 0 where nothing did.

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
    """Whether two flights find the same weights and gradients, and pack and unpack in the same order."""
    return bytes_at_start(one) == bytes_at_start(other) and _ticks(one) == _ticks(other)


def _ticks(trace: StepTrace) -> list[tuple[str, int]]:
    return [(event.kind, event.pack) for event in trace.events if isinstance(event, Tick)]


# ---------------------------------------------------------------------------------------------------------------------
# The step that is under way: its flights so far, and what was recorded of them


UNSEEN = (
    "steps without any forward that virtual_memory saw: the loop's own hooks of saved tensors come before those of "
    "virtual_memory. Put them around `with virtual_memory`, or around single modules"
)
"""Told where a step ends in which nothing was packed."""


class OpenStep:
    """Flights since the last step has ended.

    Attributes:
        flights: how many have begun
    """

    def __init__(self) -> None:
        self.flights = 0
        self._ended = 0
        self._recorded: dict[Key, Recorded] = {}
        self._turns = Turns()
        self._updated: set[int] = set()

    def begin(self, signature: Signature, after: int) -> Key:
        """A flight begins.

        Args:
            signature: look of its batch
            after: number of the optimizer that stepped last

        Returns:
            What it is, as far as can be told.
        """
        key = self._turns.next(Key(signature=signature, later=self.flights > 0, after=after))
        self.flights += 1
        return key

    def ran(self, flight: Flight, stats: FlightStats) -> None:
        """A flight has ended that was known."""
        self._turns.note(flight.key, other=stats.planned and stats.fell_back)

    def add(self, flight: Flight, recorded: Recorded) -> None:
        """A flight has ended that was recorded. One that is unlike another with its key is the other turn."""
        key = flight.key
        before = self._recorded.get(key)
        if before is not None and not are_alike(before.recording.trace, recorded.recording.trace):
            key = key._replace(turn=1)
        self._turns.note(key)
        self._recorded[key] = dataclasses.replace(recorded, seen=frozenset(flight.seen))

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
        """Whether an update without a flight ends a step; otherwise it belongs to the step that has ended before.

        Args:
            after: number of the optimizer that has stepped
        """
        unseen = after in self._updated or not self._ended
        self._updated.add(after)
        return unseen

    def forget(self) -> None:
        """Begin anew."""
        self.flights = 0
        self._recorded = {}
