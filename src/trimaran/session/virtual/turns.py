"""Flights that begin alike and go on differently, by turns: which one is next is told from the order so far.

A critic is trained some steps and then the generator once; the gradient of an input is taken some times and then that
of the weights. Their flights may begin with the same module and the same look of the batch. Each such use is a **turn**
with a plan of its own; there are two for a key. The next turn is the one that came the last time after the same turns.
"""

from collections import OrderedDict

from trimaran.graph.trace.types import StepTrace, Tick
from trimaran.session.virtual.flights import Key
from trimaran.session.virtual.stability import bytes_at_start

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
