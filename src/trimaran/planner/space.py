"""The strategies that are worth pricing, and why others are not.

Shapes are listed in `shapes.py`; here each gets what depends on the job's batch and gradients: buckets, where replicas
hold the whole network, and with consent a compression of what they exchange. What goes against a pin is left out, what
the network or the batch does not bear is rejected with the reason. Stages are cut (`cutting.py`) and branches placed
(`placed.py`) elsewhere: here a strategy has no boundaries yet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trimaran.graph import Graph
from trimaran.planner.compressing import may_be_compressed, offered
from trimaran.planner.offers import offers_of
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.planner.shapes import SCHEDULES, shapes
from trimaran.program import Strategy
from trimaran.program.buckets import DEFAULT_BUCKET_BYTES, FIRST_BUCKET_BYTES, gradient_buckets
from trimaran.program.exactness import objection
from trimaran.program.nodes import even_nodes
from trimaran.program.types import Execution
from trimaran.program.updating import scaling_obstacle

# Smaller buckets leave earlier, and pay the latency more often. The small one is for networks of a few 100 KiB.
SMALLER_BUCKETS_BYTES = (2**20, 2**17)

LEAST_BUCKET_BYTES = 2**15
"""Below this a bucket is little more than its latency on any link."""

Cause = Literal[
    "inexact", "cut", "batch", "memory", "bound", "compiling", "form", "unmeasured", "pin", "time", "failed"
]
"""What stands against a strategy: that it would train something else, too few cuts, a batch that does not divide,
memory, its lower bound, compile time, a combination that no program has, costs that were not measured, a pin, the time
of the search, a trial run that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A strategy that was not simulated, or does not fit.

    Attributes:
        strategy: what was considered
        cause: what stands against it, in a word
        reason: the same with the figures
        peak_bytes: what each rank needs, where that is what stands against it [bytes]
    """

    strategy: Strategy
    cause: Cause
    reason: str
    peak_bytes: tuple[int, ...] = ()


def enumerate_strategies(
    graph: Graph,
    *,
    devices: int,
    batch: int,
    executions: Sequence[Execution] = ("eager",),
    pins: Pins = NO_PINS,
    hosts: Sequence[int] = (),
) -> tuple[list[Strategy], list[Rejection]]:
    """Every strategy on up to that many devices, simplest first.

    Args:
        graph: the job's; says whether it can be cut, and which sizes of buckets make a difference
        devices: most ranks that may take part
        batch: samples of one update, over all ranks
        executions: how segments may run
        pins: what is decided; a strategy against it is in neither list
        hosts: for each device, the number of its host; replicas on several may sum their gradients in levels

    Returns:
        The strategies, and those rejected with the reason.
    """
    offers = offers_of(graph, devices=devices, pins=pins)
    kept: list[Strategy] = []
    rejected: list[Rejection] = []
    for execution in executions:
        sizes = bucket_sizes(graph, execution=execution) if devices > 1 else ()
        for strategy in shapes(devices, offers, execution=execution, pins=pins):
            tried = [one for one in _variants(strategy, sizes, pins, hosts) if not pins.objection(one)]
            if graph.precision == "fp16" and not scaling_obstacle(strategy):
                tried = [one for one in tried if not scaling_obstacle(one)]
            objection = _objection(tried[0], graph, batch) if tried else None
            if objection is not None:
                rejected.append(objection)
            else:
                kept.extend(tried)
    return kept, rejected


def bucket_sizes(graph: Graph, *, execution: Execution = "eager") -> tuple[int, ...]:
    """Sizes at which a bucket of gradients is sent that give different buckets; the default first [bytes].

    Tried are the default, smaller ones, and one that no bucket reaches; sizes between them are tried of the best
    strategies alone (`bucketing.py`). A compiled network is cut at its buckets, and torch refuses to cut it below the
    size of its first one.

    Args:
        graph: the job's
        execution: how the network runs
    """
    sizes = [DEFAULT_BUCKET_BYTES, *SMALLER_BUCKETS_BYTES, _whole(graph)]
    return _different(graph, sizes, execution)


def bucket_ladder(graph: Graph, *, execution: Execution = "eager") -> tuple[int, ...]:
    """All sizes of buckets by powers of two that give different buckets, the default among them, ascending [bytes].

    Args:
        graph: the job's
        execution: how the network runs
    """
    whole = _whole(graph)
    sizes = [1 << power for power in range(LEAST_BUCKET_BYTES.bit_length() - 1, whole.bit_length())]
    return tuple(sorted(_different(graph, [DEFAULT_BUCKET_BYTES, *sizes], execution)))


def _whole(graph: Graph) -> int:
    """A size that no bucket reaches: a power of two, which any torch can be told in MiB [bytes]."""
    total = sum(parameter.nbytes for parameter in graph.parameters if parameter.trainable)
    return max(FIRST_BUCKET_BYTES, 1 << total.bit_length())


def _different(graph: Graph, sizes: Sequence[int], execution: Execution) -> tuple[int, ...]:
    """Those of some sizes that give different buckets; of equal ones the first."""
    smallest = FIRST_BUCKET_BYTES if execution == "compiled" else 1
    different: dict[tuple[tuple[str, ...], ...], int] = {}
    for size in sizes:
        if size >= smallest:
            made = tuple(bucket.parameters for bucket in gradient_buckets(graph, graph.ops, size))
            different.setdefault(made, size)
    return tuple(different.values())


def _objection(strategy: Strategy, graph: Graph, batch: int) -> Rejection | None:
    shares = strategy.dp * strategy.microbatches
    inexact = objection(graph.behaviour, strategy)
    if inexact is not None:
        return Rejection(strategy=strategy, cause="inexact", reason=inexact)
    if strategy.pp > 1 and not strategy.parts and not graph.cuts:
        return Rejection(strategy=strategy, cause="cut", reason="the network cannot be cut into stages")
    if graph.precision == "fp16" and (unscaled := scaling_obstacle(strategy)):
        return Rejection(strategy=strategy, cause="form", reason=unscaled)
    if batch % shares:
        why = f"a global batch of {batch} does not divide into {strategy.dp} × {strategy.microbatches} shares"
        return Rejection(strategy=strategy, cause="batch", reason=why)
    return None


def _variants(strategy: Strategy, sizes: Sequence[int], pins: Pins, hosts: Sequence[int]) -> Iterator[Strategy]:
    """A shape with each size of its buckets, where whole networks have some, and with each compression of them.

    On several hosts with as many devices each, sums in levels are variants too.

    A compression comes with the default size only: others are tried with the best of them (`bucketing.py`).
    """
    if strategy.dp == 1 or strategy.pp > 1 or strategy.zero or strategy.sync == "p2p":
        yield strategy
        return
    for size in sizes:
        yield replace(strategy, bucket_bytes=size)
    if may_be_compressed(strategy):
        for method in offered(pins):
            yield replace(strategy, compression=method)
        nodes = pins.nodes or even_nodes(hosts[: strategy.devices])
        even = strategy.dp % nodes == 0 and strategy.dp // nodes > 1
        if nodes > 1 and even and strategy.execution == "eager":
            for size in sizes:
                yield replace(strategy, bucket_bytes=size, sync="hierarchical", nodes=nodes)


__all__ = ["SCHEDULES", "Cause", "Rejection", "bucket_sizes", "enumerate_strategies"]
