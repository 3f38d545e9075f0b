"""The strategies that are worth pricing, and why others are not.

Shapes are listed in `shapes.py`; here each gets what depends on the job's batch and gradients: buckets, where replicas
hold the whole network. What goes against a pin is left out, what the network or the batch does not bear is rejected
with the reason. Stages are cut (`cutting.py`) and branches placed (`placed.py`) elsewhere: here a strategy has no
boundaries yet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trimaran.graph import Graph
from trimaran.planner.offers import offers_of
from trimaran.planner.pins import NO_PINS, Pins
from trimaran.planner.shapes import SCHEDULES, shapes
from trimaran.program import Strategy
from trimaran.program.buckets import DEFAULT_BUCKET_BYTES, FIRST_BUCKET_BYTES, gradient_buckets
from trimaran.program.types import Execution

# Smaller buckets leave earlier, and pay the latency more often. The small one is for networks of a few 100 KiB.
SMALLER_BUCKETS_BYTES = (2**20, 2**17)

Cause = Literal["cut", "batch", "memory", "bound", "compiling", "form", "unmeasured", "pin", "time"]
"""What stands against a strategy: too few cuts, a batch that does not divide, memory, its lower bound, compile time, a
combination that no program has, costs that were not measured, a pin, the time of the search."""


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
    graph: Graph, *, devices: int, batch: int, executions: Sequence[Execution] = ("eager",), pins: Pins = NO_PINS
) -> tuple[list[Strategy], list[Rejection]]:
    """Every strategy on up to that many devices, simplest first.

    Args:
        graph: the job's; says whether it can be cut, and which sizes of buckets make a difference
        devices: most ranks that may take part
        batch: samples of one update, over all ranks
        executions: how segments may run
        pins: what is decided; a strategy against it is in neither list

    Returns:
        The strategies, and those rejected with the reason.
    """
    offers = offers_of(graph, devices=devices, pins=pins)
    kept: list[Strategy] = []
    rejected: list[Rejection] = []
    for execution in executions:
        sizes = bucket_sizes(graph, execution=execution) if devices > 1 else ()
        for strategy in shapes(devices, offers, execution=execution, pins=pins):
            if pins.objection(strategy):
                continue
            objection = _objection(strategy, graph, batch)
            if objection is not None:
                rejected.append(objection)
            elif strategy.dp > 1 and strategy.pp == 1 and not (strategy.zero or strategy.sync == "p2p"):
                kept.extend(_with_buckets(strategy, sizes))
            else:
                kept.append(strategy)
    return kept, rejected


def bucket_sizes(graph: Graph, *, execution: Execution = "eager") -> tuple[int, ...]:
    """Sizes at which a bucket of gradients is sent that give different buckets; the default first [bytes].

    Tried are the default, smaller ones, and one that no bucket reaches. A compiled network is cut at its buckets, and
    torch refuses to cut it below the size of its first one.

    Args:
        graph: the job's
        execution: how the network runs
    """
    total = sum(parameter.nbytes for parameter in graph.parameters if parameter.trainable)
    smallest = FIRST_BUCKET_BYTES if execution == "compiled" else 1
    sizes = [DEFAULT_BUCKET_BYTES, *(size for size in SMALLER_BUCKETS_BYTES if size >= smallest)]
    # A power of two, which any torch can be told in MiB.
    sizes.append(max(FIRST_BUCKET_BYTES, 1 << total.bit_length()))
    different: dict[tuple[tuple[str, ...], ...], int] = {}
    for size in sizes:
        made = tuple(bucket.parameters for bucket in gradient_buckets(graph, graph.ops, size))
        different.setdefault(made, size)
    return tuple(different.values())


def _objection(strategy: Strategy, graph: Graph, batch: int) -> Rejection | None:
    shares = strategy.dp * strategy.microbatches
    if strategy.pp > 1 and not strategy.parts and not graph.cuts:
        return Rejection(strategy=strategy, cause="cut", reason="the network cannot be cut into stages")
    if batch % shares:
        why = f"a global batch of {batch} does not divide into {strategy.dp} × {strategy.microbatches} shares"
        return Rejection(strategy=strategy, cause="batch", reason=why)
    return None


def _with_buckets(strategy: Strategy, sizes: Sequence[int]) -> Iterator[Strategy]:
    for size in sizes:
        yield replace(strategy, bucket_bytes=size)


__all__ = ["SCHEDULES", "Cause", "Rejection", "bucket_sizes", "enumerate_strategies"]
