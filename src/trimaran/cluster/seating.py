"""The best order of a node's devices for ranks that talk: swaps, then branch and bound on nodes of few devices."""

import itertools
from collections.abc import Callable, Mapping, Sequence

Talk = Mapping[tuple[int, int], float]
"""Bytes between two ranks of a node's worth of them, by `(lower, higher)`."""

EXACT_DEVICES = 8
"""Up to so many devices of a node the search is exact."""


def best_order(slowness: Sequence[Sequence[float]], ranks: int, talk: Talk) -> tuple[int, ...]:
    """The device of each rank with the least talk over slow ways.

    Args:
        slowness: seconds for a byte between every two devices [s/byte]
        ranks: how many there are
        talk: bytes between them

    Returns:
        Of equal orders the one nearest to the natural one.

    Example:
        >>> best_order(((0, 3, 1), (3, 0, 3), (1, 3, 0)), 2, {(0, 1): 1.0})
        (0, 2)
    """

    def cost(order: Sequence[int]) -> float:
        return sum(nbytes * slowness[order[a]][order[b]] for (a, b), nbytes in talk.items())

    found = _by_swaps(len(slowness), ranks, cost)
    if len(slowness) > EXACT_DEVICES:
        return found
    # A little worse, so that of equal orders the one nearest to the natural one is found again.
    return _exact(slowness, ranks, talk, found, cost(found) * (1 + 1e-6))


def _exact(
    slowness: Sequence[Sequence[float]], ranks: int, talk: Talk, found: tuple[int, ...], best: float
) -> tuple[int, ...]:
    """The best order, by branch and bound: what is not placed yet talks at the fastest rate there is."""
    least = min(value for a, row in enumerate(slowness) for b, value in enumerate(row) if a != b)
    before = [[(a, talk.get((a, rank), 0.0)) for a in range(rank) if (a, rank) in talk] for rank in range(ranks)]
    rest = [least * sum(nbytes for (_, b), nbytes in talk.items() if b > rank) for rank in range(ranks)]
    order: list[int] = []

    def place(spent: float) -> None:
        nonlocal found, best
        rank = len(order)
        if rank == ranks:
            found, best = tuple(order), spent
            return
        for device in range(len(slowness)):
            if device in order:
                continue
            now = spent + sum(nbytes * slowness[order[a]][device] for a, nbytes in before[rank])
            if now + rest[rank] < best * (1 - 1e-9):
                order.append(device)
                place(now)
                order.pop()

    place(0.0)
    return found


def _by_swaps(devices: int, ranks: int, cost: Callable[[Sequence[int]], float]) -> tuple[int, ...]:
    """From the natural order, the best swap of two devices, in use or not, as long as one helps."""
    order = list(range(devices))
    best = cost(order)
    while True:
        found = None
        for a, b in itertools.combinations(range(devices), 2):
            if a >= ranks:
                continue
            order[a], order[b] = order[b], order[a]
            now = cost(order)
            order[a], order[b] = order[b], order[a]
            if now < best * (1 - 1e-12):
                best, found = now, (a, b)
        if found is None:
            return tuple(order[:ranks])
        a, b = found
        order[a], order[b] = order[b], order[a]
