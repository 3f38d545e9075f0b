"""Best-first search: the node with the lowest bound is expanded next, until no bound is worth looking at.

A node stands for strategies that share a lower bound of their time. Expanding it gives nodes with better bounds in its
place, or scores its strategies and gives none. Simulated plans (`search.py`) and plans of the analytical model
(`analytical/search.py`) use this search; each keeps its scored items.
"""

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeVar

Node = TypeVar("Node")


class Space(Protocol[Node]):
    """The search space."""

    def order(self, node: Node, /) -> tuple[Any, ...]:
        """Sort key of a node: its lower bound first; of equal keys the node that was found first comes first."""

    def expand(self, node: Node, /) -> Iterable[Node]:
        """Nodes with better bounds in place of a node; none where its strategies were scored or rejected."""

    def is_done(self, bound_s: float, /) -> bool:
        """Whether nothing with this bound or a larger one is worth looking at, or the time of the search is over."""


def best_first(
    space: Space[Node], nodes: Iterable[Node], settled: Callable[[Node], Node | None] | None = None
) -> list[Node]:
    """Expand nodes in the order of their bounds.

    Args:
        space: bounds and scores them
        nodes: to start from
        settled: of the node that would be expanded next, the same one with a better bound, which is computed for few;
            it is then put in its order again; None: it has no better one

    Returns:
        The items that were not expanded, in their order.

    Example:
        >>> class Halves:
        ...     seen: list[int] = []
        ...     def order(self, node): return (node,)
        ...     def expand(self, node):
        ...         self.seen.append(node)
        ...         return [node + 2] if node % 2 else []
        ...     def is_done(self, bound_s): return bound_s > 4
        >>> space = Halves()
        >>> best_first(space, [6, 2, 1]), space.seen
        ([5, 6], [1, 2, 3])

        Of bounds with tenths those that come next are made whole.

        >>> space = Halves()
        >>> space.seen = []
        >>> best_first(space, [3.9, 2, 6], lambda node: None if node == int(node) else 5), space.seen
        ([5, 6], [2])
    """
    numbers = itertools.count()
    waiting = [(space.order(node), next(numbers), node) for node in nodes]
    heapq.heapify(waiting)
    while waiting:
        order, number, node = waiting[0]
        better = None if settled is None else settled(node)
        if better is not None:
            heapq.heapreplace(waiting, (space.order(better), number, better))
            continue
        if space.is_done(order[0]):
            break
        heapq.heappop(waiting)
        for further in space.expand(node):
            heapq.heappush(waiting, (space.order(further), next(numbers), further))
    return [node for *_, node in sorted(waiting, key=lambda entry: entry[:2])]
