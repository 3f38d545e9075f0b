"""The strategies that are worth pricing, and why others are not.

    shape          data-parallel replicas × pipeline stages, on the given number of devices or fewer
    microbatches   of a pipeline: some for each stage; of one stage: gradient accumulation, a smaller local batch
    schedule       of a pipeline
    buckets        of gradients, where replicas hold the whole network
    execution      eager, compiled

Stages are cut elsewhere (`planner/partition.py`); here a strategy has no boundaries yet.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from trimaran.graph import Graph
from trimaran.program import Strategy
from trimaran.program.buckets import DEFAULT_BUCKET_BYTES, FIRST_BUCKET_BYTES, gradient_buckets
from trimaran.program.types import Execution, Schedule

SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b")
# A pipeline with K stages idles for (K - 1) / (M + K - 1) of the time: beyond M = 4 K little is left to gain.
MICROBATCHES_PER_STAGE = (1, 2, 4)
# With one stage, microbatches cost time and save memory: each keeps its activations alone.
MICROBATCHES_OF_A_REPLICA = (1, 2, 4)
# Smaller buckets leave earlier, and pay the latency more often. The small one is for networks of a few 100 KiB.
SMALLER_BUCKETS_BYTES = (2**20, 2**17)

Cause = Literal["cut", "batch", "memory", "bound", "compiling"]
"""What stands against a strategy: too few cuts, a batch that does not divide, memory, its lower bound, compile time."""


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
    graph: Graph, *, devices: int, batch: int, executions: Sequence[Execution] = ("eager",)
) -> tuple[list[Strategy], list[Rejection]]:
    """Every strategy on up to that many devices, simplest first.

    Args:
        graph: the job's; says whether it can be cut, and which sizes of buckets make a difference
        devices: most ranks that may take part
        batch: samples of one update, over all ranks
        executions: how segments may run

    Returns:
        The strategies, and those rejected with the reason.
    """
    kept: list[Strategy] = []
    rejected: list[Rejection] = []
    for execution in executions:
        for strategy in _shapes(devices, execution):
            shares = strategy.dp * strategy.microbatches
            if strategy.pp > 1 and not graph.cuts:
                why = "the network cannot be cut into stages"
                rejected.append(Rejection(strategy=strategy, cause="cut", reason=why))
            elif batch % shares:
                why = f"a global batch of {batch} does not divide into {strategy.dp} × {strategy.microbatches} shares"
                rejected.append(Rejection(strategy=strategy, cause="batch", reason=why))
            elif strategy.dp > 1 and strategy.pp == 1:
                kept.extend(_with_buckets(strategy, bucket_sizes(graph, execution=execution)))
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


def _shapes(devices: int, execution: Execution) -> Iterator[Strategy]:
    for used in range(1, devices + 1):
        for stages in (stages for stages in range(1, used + 1) if used % stages == 0):
            if stages == 1:
                for microbatches in MICROBATCHES_OF_A_REPLICA:
                    yield Strategy(dp=used, microbatches=microbatches, execution=execution)
                continue
            for microbatches in (stages * ratio for ratio in MICROBATCHES_PER_STAGE):
                for schedule in SCHEDULES:
                    yield Strategy(
                        dp=used // stages,
                        pp=stages,
                        schedule=schedule,
                        microbatches=microbatches,
                        execution=execution,
                    )


def _with_buckets(strategy: Strategy, sizes: Sequence[int]) -> Iterator[Strategy]:
    for size in sizes:
        yield Strategy(
            dp=strategy.dp, microbatches=strategy.microbatches, bucket_bytes=size, execution=strategy.execution
        )
