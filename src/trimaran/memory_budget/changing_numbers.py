"""Numbers among the arguments of operations, which a recipe repeats as they were.

A pass is recorded twice as a rule. A number that was another one the second time, such as a temperature that falls
from step to step, will be another one again: the operation that takes it is never repeated.
"""

import dataclasses
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from trimaran.graph.trace.calls import Call, Recording
from trimaran.graph.trace.types import TraceOp
from trimaran.graph.types import Phase
from trimaran.memory_budget.passes import Key
from trimaran.memory_budget.recording import Recorded

_MOST_KEYS = 64

Number = bool | int | float | complex


class ForwardArguments(NamedTuple):
    """Arguments of an operation of a forward.

    Attributes:
        name: of the operator
        numbers: in order; empty where it cannot be repeated
    """

    name: str
    numbers: tuple[Number, ...]


class KnownNumbers:
    """Of each pass, what its operations took when it was recorded last, and which of them were seen to change."""

    def __init__(self) -> None:
        self._taken: OrderedDict[Key, list[ForwardArguments]] = OrderedDict()
        self._changing: dict[Key, set[int]] = {}

    def settle(self, key: Key, recorded: Recorded) -> Recorded:
        """A pass without calls whose numbers change.

        Args:
            key: what it is
            recorded: the pass
        """
        operations = [one for one in recorded.recording.trace.ops if one.phase is Phase.FORWARD]
        taken = [
            ForwardArguments(one.name, _numbers_of(recorded.recording.calls.get(one.moment))) for one in operations
        ]
        before = self._taken.pop(key, None)
        self._taken[key] = taken
        changing = self._changing.setdefault(key, set())
        if before is not None:
            changing |= changed(before, taken)
        while len(self._taken) > _MOST_KEYS:
            self._changing.pop(self._taken.popitem(last=False)[0])
        moments = {operations[place].moment for place in changing if place < len(operations)}
        return dataclasses.replace(recorded, recording=without(recorded.recording, moments)) if moments else recorded


def changed(before: Sequence[ForwardArguments], now: Sequence[ForwardArguments]) -> set[int]:
    """Places of operations that took other numbers than before.

    Both are compared from their beginnings as far as they run the same operations, and from their ends likewise.

    Example:
        >>> exp, mul = ForwardArguments("exp", ()), ForwardArguments("mul", (3,))
        >>> changed([exp, ForwardArguments("mul", (0.5,)), mul], [exp, ForwardArguments("mul", (0.4,)), mul])
        {1}
    """
    return {place for one, other, place in _pairs(before, now) if one.numbers != other.numbers}


def without(recording: Recording, moments: set[int]) -> Recording:
    """A recording in which some operations cannot be repeated.

    Args:
        recording: with them
        moments: of the operations
    """
    events = tuple(
        dataclasses.replace(event, repeatable=False)
        if event.moment in moments and isinstance(event, TraceOp)
        else event
        for event in recording.trace.events
    )
    calls = {moment: call for moment, call in recording.calls.items() if moment not in moments}
    return dataclasses.replace(recording, trace=dataclasses.replace(recording.trace, events=events), calls=calls)


def _pairs(
    before: Sequence[ForwardArguments], now: Sequence[ForwardArguments]
) -> Iterator[tuple[ForwardArguments, ForwardArguments, int]]:
    least = min(len(before), len(now))
    same = next((place for place in range(least) if before[place].name != now[place].name), least)
    for place in range(same):
        yield before[place], now[place], place
    for back in range(1, least - same + 1):
        if before[-back].name != now[-back].name:
            return
        yield before[-back], now[-back], len(now) - back


def _numbers_of(call: Call | None) -> tuple[Number, ...]:
    return () if call is None else tuple(_numbers_in((call.args, dict(call.kwargs))))


def _numbers_in(value: Any) -> Iterator[Number]:
    if isinstance(value, bool | int | float | complex):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from _numbers_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from _numbers_in(part)
