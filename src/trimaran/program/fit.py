"""Whether a strategy fits a graph and a batch, and if not, what would."""

from collections.abc import Sequence
from typing import get_args

from trimaran.errors import InputError
from trimaran.graph.types import Graph
from trimaran.program.types import Strategy, Sync


def check_strategy(graph: Graph, strategy: Strategy, *, batch: int) -> None:
    """Refuse a strategy that cannot be lowered.

    Args:
        graph: the graph that it is for
        strategy: the strategy
        batch: global batch size [samples]

    Raises:
        InputError: a degree below 1, a memory budget or homes that the strategy cannot have, boundaries that the graph
            does not offer, or a batch that does not divide
    """
    for name in ("dp", "pp", "microbatches", "bucket_bytes"):
        value = getattr(strategy, name)
        if value < 1:
            raise InputError(f"Strategy.{name} must be at least 1, got {value}", **{name: value})
    if strategy.memory_bytes is not None and (strategy.memory_bytes < 1 or strategy.pp > 1):
        raise InputError(
            f"Strategy.memory_bytes must be positive and is for whole networks (pp=1), got {strategy.memory_bytes} "
            f"with pp={strategy.pp}",
            memory_bytes=strategy.memory_bytes,
            pp=strategy.pp,
        )
    if strategy.sync not in get_args(Sync):
        known = " or ".join(f'"{sync}"' for sync in get_args(Sync))
        raise InputError(f'Strategy.sync must be {known}, got "{strategy.sync}"', sync=strategy.sync)
    if strategy.sync == "p2p" and strategy.pp > 1:
        raise InputError(
            f'Strategy.sync "p2p" is for whole networks (pp=1), got pp={strategy.pp}: a weight of several stages would '
            'have several homes. Take sync "all-reduce"',
            sync=strategy.sync,
            pp=strategy.pp,
        )
    unbuilt = [name for name in ("tp", "chunks", "parts", "zero", "shards") if getattr(strategy, name) != _PLAIN[name]]
    if unbuilt:
        raise InputError(f"a strategy with {', '.join(unbuilt)} cannot be lowered", fields=tuple(unbuilt))
    if len(strategy.boundaries) != strategy.pp - 1:
        raise InputError(
            f"{strategy.pp} pipeline stages need {strategy.pp - 1} boundaries between them, "
            f"got {len(strategy.boundaries)}: {_listed(strategy.boundaries)}",
            pp=strategy.pp,
            boundaries=strategy.boundaries,
        )
    check_boundaries(graph, strategy.boundaries)
    check_batch(batch, dp=strategy.dp, microbatches=strategy.microbatches)


_PLAIN = {"tp": 1, "chunks": 1, "parts": (), "zero": 0, "shards": ()}


def check_boundaries(graph: Graph, boundaries: Sequence[str]) -> None:
    """Refuse boundaries that the graph does not offer, or that are out of order.

    Args:
        graph: the graph
        boundaries: last operation of every segment but the last

    Raises:
        InputError: a boundary that is not in `graph.cuts`, or not after the one before it
    """
    order = {cut: index for index, cut in enumerate(graph.cuts)}
    for boundary in boundaries:
        if boundary not in order:
            raise InputError(
                f"{graph.name!r} cannot be cut after {boundary!r}; it can be cut after {_listed(graph.cuts)}",
                boundary=boundary,
                cuts=graph.cuts,
            )
    positions = [order[boundary] for boundary in boundaries]
    if positions != sorted(set(positions)):
        in_order = [graph.cuts[position] for position in sorted(set(positions))]
        raise InputError(
            f"boundaries must be different and in the order in which the model runs: got {_listed(boundaries)}, "
            f"in order they are {_listed(in_order)}",
            boundaries=tuple(boundaries),
        )


def check_batch(batch: int, *, dp: int, microbatches: int) -> int:
    """Refuse a global batch that does not split evenly.

    Args:
        batch: global batch size [samples]
        dp: data-parallel replicas
        microbatches: microbatches of a replica's share

    Returns:
        Samples of a microbatch.

    Raises:
        InputError: samples are left over; says which numbers would do

    Example:
        >>> check_batch(64, dp=2, microbatches=4)
        8
    """
    for name, value in (("replicas", dp), ("microbatches", microbatches)):
        if value < 1:
            raise InputError(f"the number of {name} must be at least 1, got {value}", **{name: value})
    parts = dp * microbatches
    if batch >= 1 and batch % parts == 0:
        return batch // parts
    above = (max(batch, 1) + parts - 1) // parts * parts
    below = above - parts
    batches = f"{below} or {above}" if below else f"{above}"
    message = (
        f"a global batch of {batch} does not split evenly over {dp} replicas of {microbatches} microbatches: "
        f"it must be a multiple of {parts}, such as {batches}"
    )
    share, left = divmod(batch, dp)
    if batch >= 1 and not left:
        counts = [count for count in range(1, share + 1) if share % count == 0]
        message += f"; with this batch and {dp} replicas, the number of microbatches can be {_listed(counts)}"
    raise InputError(message, batch=batch, dp=dp, microbatches=microbatches, multiple_of=parts)


def _listed(values: Sequence[object], most: int = 12) -> str:
    if not values:
        return "nothing"
    shown = ", ".join(str(value) for value in values[:most])
    return f"{shown}, ... ({len(values)} in all)" if len(values) > most else shown
