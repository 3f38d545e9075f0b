"""Best-first search: the node with the lowest bound is expanded next, until no bound is worth looking at.

A node stands for strategies that share a lower bound of their time. Expanding it gives nodes with better bounds in its
place, or scores its strategies and gives none. Simulated plans (`search.py`) and plans of the analytical model
(`analytical/search.py`) use this search; each keeps its scored items.

Work of a search, counted in seconds of the reference: an idle core of this kind of machine.

A limit of time is kept in work, so that the same question has the same answer on a busy machine, on a slow one, and the
next time. Every kind of work has its time on the reference, which is measured once (`benchmarks/answers`) and kept as a
constant where that work is done; the clock is never asked. On a machine half as fast a search of ten seconds takes
twenty.
"""

import heapq
import itertools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar


@dataclass(slots=True, kw_only=True)
class Work:
    """Work of one search, or of several that share a limit.

    Attributes:
        limit_s: on the reference; infinite: none [s]
        done_s: so far [s]

    Example:
        >>> work = Work(limit_s=1.0)
        >>> work.spend(0.75)
        >>> work.is_over, work.left_s
        (False, 0.25)
        >>> work.spend(0.75)
        >>> work.is_over, work.left_s
        (True, 0.0)
    """

    limit_s: float = math.inf
    done_s: float = 0.0

    def spend(self, seconds: float) -> None:
        """Count work that was done.

        Args:
            seconds: that it takes on the reference [s]
        """
        self.done_s += seconds

    @property
    def is_over(self) -> bool:
        """Whether as much was done as may be."""
        return self.done_s >= self.limit_s

    @property
    def left_s(self) -> float:
        """What may still be done [s]."""
        return max(0.0, self.limit_s - self.done_s)


def work_within(limit_s: float | None) -> Work:
    """Work with a limit that a user gave.

    Args:
        limit_s: on the reference; None: there is none [s]
    """
    return Work(limit_s=math.inf if limit_s is None else limit_s)


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
