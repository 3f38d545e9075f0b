"""Degrees and what goes with them: every shape of a strategy on some devices, before stages are cut or branches placed.

    degrees        replicas × rows × shards, on the given number of devices or fewer
    microbatches   of a pipeline: some for each stage; of one stage: gradient accumulation, a smaller local batch
    order          of a pipeline: GPipe, 1F1B, interleaved over several segments a stage, zero-bubble
    placement      branches on rows, in place of stages
    state          sharded over the replicas: the optimizer's, gradients too, parameters too; a classifier alone
    exchange       gradients summed everywhere, or at homes

What the network does not offer (operations to shard, units to gather, branches) makes no shape.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trimaran.planner.pins import NO_PINS, Pins
from trimaran.program import Part, Shard, Strategy
from trimaran.program.types import Execution, Schedule

SCHEDULES: tuple[Schedule, ...] = ("gpipe", "1f1b", "interleaved", "zero-bubble")
# A pipeline with K stages idles for (K - 1) / (M + K - 1) of the time: beyond M = 4 K little is left to gain.
MICROBATCHES_PER_STAGE = (1, 2, 4)
# With one stage, microbatches cost time and save memory: each keeps its activations alone.
MICROBATCHES_OF_A_REPLICA = (1, 2, 4)
# Segments of a stage with the interleaved order: each halving of the bubble doubles the messages.
CHUNKS = (2,)
# A placement splits the branches of one pass: it is tried on few devices, where the branches of networks end.
MOST_PLACED = 4
# Up to so many devices every number of them is tried; of more, those that divide it.
EVERY_NUMBER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """What a network offers beside its chain of operations.

    Attributes:
        tensor: for each degree, how operations are sharded over that many ranks; a degree that is missing is not
            to be had
        classifier: for each number of replicas, how a classifier is sharded over them
        units: modules that are gathered and freed as one; empty: the network as a whole
        branches: the network has operations that can run side by side
        stages: most segments that it can be cut into
    """

    tensor: dict[int, tuple[Shard, ...]]
    classifier: dict[int, tuple[Shard, ...]]
    units: tuple[str, ...]
    branches: bool
    stages: int


def shapes(devices: int, offers: Offers, *, execution: Execution = "eager", pins: Pins = NO_PINS) -> Iterator[Strategy]:
    """Every shape on up to that many devices, fewest devices first.

    Args:
        devices: most ranks that may take part
        offers: what the network offers
        execution: how segments run
        pins: what is decided; gives degrees and microbatches that would not be tried otherwise

    Yields:
        Strategies without boundaries; a placement has parts with no operations in them.
    """
    for used in numbers_of_devices(devices, pins):
        for pp, tp in _splits(used):
            base = Strategy(dp=used // (pp * tp), pp=pp, tp=tp, execution=execution, shards=offers.tensor.get(tp, ()))
            if tp > 1 and (tp not in offers.tensor or execution == "compiled"):
                continue
            # Only whole networks and stages are compiled.
            tried = _replicas(base, offers, pins) if pp == 1 else _pipelines(base, pins)
            yield from (one for one in tried if execution == "eager" or _is_compilable(one))
            if 1 < pp <= MOST_PLACED and tp == 1 and offers.branches and execution == "eager":
                yield unplaced(base)


def numbers_of_devices(devices: int, pins: Pins = NO_PINS) -> Sequence[int]:
    """How many devices are tried.

    Example:
        >>> numbers_of_devices(3), numbers_of_devices(12)
        ([1, 2, 3], [1, 2, 3, 4, 6, 12])
    """
    if devices <= EVERY_NUMBER:
        return list(range(1, devices + 1))
    pinned = (pins.dp or 1) * (pins.pp or 1) * (pins.tp or 1)
    return [number for number in range(1, devices + 1) if devices % number == 0 or number == pinned]


def unplaced(strategy: Strategy) -> Strategy:
    """A placement on the rows of a strategy whose operations have no places yet."""
    return replace(strategy, parts=tuple(Part(ops=(), row=row) for row in range(strategy.pp)), schedule="gpipe")


def is_unplaced(strategy: Strategy) -> bool:
    """Whether a placement has no operations yet."""
    return bool(strategy.parts) and not any(part.ops for part in strategy.parts)


def _splits(used: int) -> Iterator[tuple[int, int]]:
    """Rows and shards whose product divides a number of devices; no sharding first."""
    for tp in range(1, used + 1):
        for pp in range(1, used // tp + 1):
            if used % (pp * tp) == 0:
                yield pp, tp


def _is_compilable(strategy: Strategy) -> bool:
    plain = strategy.zero == 0 and not strategy.shards and strategy.sync == "all-reduce"
    return plain and strategy.schedule in ("gpipe", "1f1b")


def _replicas(base: Strategy, offers: Offers, pins: Pins) -> Iterator[Strategy]:
    counts = MICROBATCHES_OF_A_REPLICA if pins.microbatches is None else (pins.microbatches,)
    for microbatches in counts:
        yield replace(base, microbatches=microbatches)
    if base.dp == 1:
        return
    stages: tuple[Literal[1, 2, 3], ...] = (1, 2, 3)
    for zero in stages:
        units = offers.units if zero > 1 else ()
        for microbatches in counts[:2]:
            yield replace(base, microbatches=microbatches, zero=zero, units=units)
    if base.tp == 1:
        if base.dp <= EVERY_NUMBER:
            # Of many replicas each home would hand its weights to all others in turn.
            yield replace(base, microbatches=counts[0], sync="p2p")
        if base.dp in offers.classifier:
            yield replace(base, microbatches=counts[0], shards=offers.classifier[base.dp])


def _pipelines(base: Strategy, pins: Pins) -> Iterator[Strategy]:
    counts = [base.pp * ratio for ratio in MICROBATCHES_PER_STAGE]
    if pins.microbatches is not None:
        counts = [pins.microbatches]
    for microbatches in counts:
        for schedule in SCHEDULES:
            chunks = CHUNKS if schedule == "interleaved" else (1,)
            for each in chunks:
                yield replace(base, schedule=schedule, microbatches=microbatches, chunks=each)
        if base.dp > 1:
            yield replace(base, schedule="1f1b", microbatches=microbatches, zero=1)
