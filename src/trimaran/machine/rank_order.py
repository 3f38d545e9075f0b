"""Which device of a machine each rank has.

Ranks that exchange most bytes are placed closest. Ranks form groups that nest: shards within rows, rows within
replicas. A shard's group sums activations in every layer, neighbouring rows send activations, replicas exchange
gradients once a step. So:

    minimise    bytes of each pair of ranks that talk / rate between their devices, summed
    over        orders of the devices

Devices are taken node by node, so inner groups stay in a node where they fit. Within a node swaps from the natural
order are taken as long as one helps, and nodes of few devices are searched to the end by branch and bound; all nodes
are alike, so one order serves all of them. Left out: links that several pairs share, which the simulation sees.
"""

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

from trimaran.base.errors import InputError
from trimaran.base.units import format_count
from trimaran.machine.topology import pair
from trimaran.machine.types import Machine, Node, NodeKey

# ---------------------------------------------------------------------------------------------------------------------
# The best order of a node's devices for ranks that talk: swaps, then branch and bound on nodes of few devices


Talk = Mapping[tuple[int, int], float]
"""Bytes between two ranks of a node's worth of them, by `(lower, higher)`."""

EXACT_DEVICES = 8
"""Largest number of devices of a node up to which the search is exact."""


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


def node_talk(
    *,
    pp: int,
    tp: int,
    dp: int,
    row_bytes: float,
    shard_bytes: float,
    replica_bytes: float,
    chained: bool = True,
) -> Talk:
    """Bytes between the ranks of whole replicas on one node, if ranks are assigned node by node.

    Args:
        pp: rows of a replica
        tp: shards of a row
        dp: replicas, or parts of them, on the node
        row_bytes: between a rank and its neighbour of the next row, in a step [bytes]
        shard_bytes: between two shards that follow each other in the ring of their group [bytes]
        replica_bytes: between two replicas of a rank that follow each other [bytes]
        chained: a row talks to the next one; else to every other one, as in a placement
    """
    talk: dict[tuple[int, int], float] = {}

    def add(a: int, b: int, nbytes: float) -> None:
        if a != b and nbytes > 0.0:
            talk[min(a, b), max(a, b)] = talk.get((min(a, b), max(a, b)), 0.0) + nbytes

    for replica, row, shard in itertools.product(range(dp), range(pp), range(tp)):
        rank = (replica * pp + row) * tp + shard
        add(rank, (replica * pp + row) * tp + (shard + 1) % tp, shard_bytes)
        for other in range(row + 1, min(row + 2, pp) if chained else pp):
            add(rank, rank + (other - row) * tp, row_bytes)
        add(rank, ((replica + 1) % dp * pp + row) * tp + shard, replica_bytes)
    return talk


def lay_out(node: Node, ranks: int, talk: Talk) -> tuple[int, ...]:
    """The device of each rank of a node.

    Args:
        node: that has them
        ranks: how many are on it
        talk: bytes between them

    Returns:
        Numbers of devices, in the order of ranks. Of equal orders the one nearest to the natural one.

    Raises:
        InputError: more ranks than devices
    """
    if ranks > node.devices:
        raise InputError(
            f"{node.name} has {format_count(node.devices, 'device')}, {ranks} ranks cannot run on it", ranks=ranks
        )
    if not talk or _all_alike(_slowness_of(NodeKey(node))):
        return tuple(range(ranks))
    return _laid_out(NodeKey(node), ranks, tuple(sorted(talk.items())))


@functools.lru_cache(maxsize=1024)
def _laid_out(key: NodeKey, ranks: int, talk: tuple[tuple[tuple[int, int], float], ...]) -> tuple[int, ...]:
    return best_order(_slowness_of(key), ranks, dict(talk))


def spread_over(machine: Machine, order: Sequence[int], devices: int) -> tuple[int, ...]:
    """One node's order, repeated on every node.

    Args:
        machine: of equal nodes
        order: devices of one node, in the order of ranks
        devices: in all
    """
    each = len(order)
    return tuple(
        (rank // each) * machine.node.devices + order[rank % each] if each else rank for rank in range(devices)
    )


def _all_alike(slowness: Sequence[Sequence[float]]) -> bool:
    different = {value for a, row in enumerate(slowness) for b, value in enumerate(row) if a != b}
    return len(different) <= 1


@functools.lru_cache(maxsize=64)
def _slowness_of(key: NodeKey) -> tuple[tuple[float, ...], ...]:
    """Seconds for a byte between every two devices [s/byte]."""
    count = key.node.devices
    return tuple(
        tuple(0.0 if a == b else 1.0 / pair(key.node, a, b).bytes_per_s for b in range(count)) for a in range(count)
    )
