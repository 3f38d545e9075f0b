"""Functions of the user's that may draw random numbers: what they draw depends on a seed alone.

So a sample is the same in every process, however a global batch is cut, and dropout goes on as if nothing had been
drawn. It holds for what is drawn from the global generators of torch, `random` and numpy; a generator that a data set
makes for itself is not known here.

Seeding three generators for each sample costs some 20 µs, as much as the sample itself where it lies in memory. So it
is found out from which of them a function draws: the first calls are seeded one by one, and looked at. From then on
only those are seeded, and for a function that has not drawn none; afterwards it is seen that the others have not moved.
If they have, the calls are made again.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

from trimaran.runtime.seeds import (
    ALL_GENERATORS,
    find_moved,
    host_states,
    mark_host,
    restore_host,
    seed_host,
    turn_back,
)

_Item = TypeVar("_Item")
_Made = TypeVar("_Made")


class Drawing:
    """One function, as far as it draws.

    Attributes:
        drawn: generators that it has drawn from, numbers in `seeds.HOST_GENERATORS`; None: it has not been called yet
    """

    def __init__(self) -> None:
        self.drawn: frozenset[int] | None = None

    def call(
        self,
        items: Sequence[_Item],
        each: Callable[[_Item], _Made],
        together: Callable[[Sequence[_Item]], list[_Made]],
        seed: Callable[[_Item], int],
    ) -> list[_Made]:
        """Call it for some items.

        Args:
            items: for which
            each: calls it for one item
            together: the same for all of them, perhaps quicker
            seed: of an item
        """
        if self.drawn is not None:
            states, marks = host_states(self.drawn), mark_host(ALL_GENERATORS - self.drawn)
            try:
                made = self._seeded(items, each, seed) if self.drawn else together(items)
            finally:
                moved = find_moved(marks)
                restore_host(states)
                turn_back(marks, moved)
            if not moved:
                return made
        states = host_states()
        try:
            return self._observed(items, each, seed)
        finally:
            restore_host(states)

    def _seeded(
        self, items: Sequence[_Item], each: Callable[[_Item], _Made], seed: Callable[[_Item], int]
    ) -> list[_Made]:
        made = []
        for item in items:
            seed_host(seed(item), self.drawn or ())
            made.append(each(item))
        return made

    def _observed(
        self, items: Sequence[_Item], each: Callable[[_Item], _Made], seed: Callable[[_Item], int]
    ) -> list[_Made]:
        made = []
        drawn = self.drawn or frozenset()
        for item in items:
            seed_host(seed(item))
            marks = mark_host()
            made.append(each(item))
            drawn |= find_moved(marks)
        self.drawn = drawn
        return made
