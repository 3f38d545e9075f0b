"""The strategies that are worth pricing, and why others are not.

`shapes` lists shapes; `enumerate_strategies` adds the settings that depend on the job's batch and gradients: buckets,
where replicas hold the whole network, and after opt-in a compression of gradients. A strategy that violates a pin is
left out; one that the network or the batch does not allow is rejected with the reason. Stages are split
(`pipeline_stages.py`) and branches placed (`placement/network.py`) elsewhere: here a strategy has no boundaries yet.

Shapes: every strategy on some devices by degrees, schedule and placement, before stages are split or branches placed.

    degrees        replicas × rows × shards, on the given number of devices or fewer
    sequences      whole on each rank of shards, or in parts between the sharded operations
    microbatches   of a pipeline: some for each stage; of one stage: gradient accumulation, a smaller local batch
    order          of a pipeline: GPipe, 1F1B, interleaved over several segments a stage, zero-bubble; PipeDream's only
                   after opt-in
    placement      branches on rows, in place of stages
    state          sharded over the replicas: the optimizer's, gradients too, parameters too; a classifier alone
    exchange       gradients summed everywhere, or at owners

A network without operations to shard, units to gather or branches has no such shapes.

Which compressions of gradients a search tries.

Every method loses something, so none is tried without opt-in, and lossless plans that are as fast within the
uncertainty are taken before any of them (`choice.simplicity`). Two methods of 16 bits cost the same: "bf16" is tried,
because no gradient is too large for it, and "fp16" by its name only.

A step is not all that a method changes: a target may take more samples. With 16 bits nothing of that is to be seen.
PowerSGD may need more, and a search makes its step times that factor small (`ASSUMED_FACTORS`). Bounds are of the step
alone, which is no more than that. Below rank 4 the samples grow by more than the step can shrink, so lower ranks are
tried by their names only.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from trimaran.graph.sharding.fsdp_units import sharding_units
from trimaran.graph.types import Graph
from trimaran.planner.pins import NO_PINS, ORDERS, Pins
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES, FIRST_BUCKET_BYTES, Compression, gradient_buckets
from trimaran.program.layout import even_nodes
from trimaran.program.lowering.tensor_parallel import find_classifier_shards, find_shards
from trimaran.program.refusals import objection, scaling_obstacle
from trimaran.program.strategy import Execution, Part, Shard, Strategy

# A pipeline with K stages idles for (K - 1) / (M + K - 1) of the time: beyond M = 4 K little is left to gain.
MICROBATCHES_PER_STAGE = (1, 2, 4)
# With one stage, microbatches cost time and save memory: each keeps its activations alone.
MICROBATCHES_OF_A_REPLICA = (1, 2, 4)
# Gradients of no more microbatches are added up.
MOST_MICROBATCHES = 4096
# Segments of a stage with the interleaved order: each halving of the bubble doubles the messages.
CHUNKS = (2,)
# More of them only for those who ask for that order, where each still has a layer, up to this number.
MOST_CHUNKS = 4
# A placement splits the branches of one pass: it is tried on few devices, where the branches of networks end.
MOST_PLACED = 4
# Up to this number of devices every number of them is tried; of more, those that divide it.
EVERY_NUMBER = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Offers:
    """Ways to split a network in addition to its chain of operations.

    Attributes:
        tensor: for each degree, how operations are sharded over that many ranks; a degree that is missing is not
            to be had
        split: for some of these degrees, the same with what lies between them in parts of sequences
        classifier: for each number of replicas, how a classifier is sharded over them
        units: modules that are gathered and freed as one; empty: the network as a whole
        branches: the network has operations that can run side by side
        stages: most segments that it can be split into
    """

    tensor: dict[int, tuple[Shard, ...]]
    split: dict[int, tuple[Shard, ...]]
    classifier: dict[int, tuple[Shard, ...]]
    units: tuple[str, ...]
    branches: bool
    stages: int


def shapes(
    devices: int, offers: Offers, *, batch: int = 0, execution: Execution = "eager", pins: Pins = NO_PINS
) -> Iterator[Strategy]:
    """Every shape on up to that many devices, fewest devices first.

    Args:
        devices: most ranks that may take part
        offers: of the network
        batch: samples of one update, which say how many replicas have equal shares; 0: not known
        execution: how segments run
        pins: decisions of the user; they add degrees and microbatches that would not be tried otherwise

    Yields:
        Strategies without boundaries; a placement has parts with no operations in them.
    """
    for used in numbers_of_devices(devices, pins, batch=batch):
        for pp, tp in _splits(used):
            base = Strategy(dp=used // (pp * tp), pp=pp, tp=tp, execution=execution, shards=offers.tensor.get(tp, ()))
            if tp > 1 and (tp not in offers.tensor or execution == "compiled"):
                continue
            split = offers.split.get(tp) if pp == 1 else None
            apart = base if split is None else replace(base, sequence_parallel=False)
            # Only whole networks and stages are compiled.
            tried = _replicas(apart, offers, pins) if pp == 1 else _pipelines(apart, offers, pins)
            if split is not None:
                shared = _replicas(replace(base, shards=split), offers, pins)
                # A whole strategy that does not say it has sequences split.
                whole = bool(pins.strategy) and pins.sequence_parallel is None
                tried = shared if whole else itertools.chain(tried, shared)
            yield from (one for one in tried if execution == "eager" or _is_compilable(one))
            if 1 < pp <= MOST_PLACED and tp == 1 and offers.branches and execution == "eager":
                yield unplaced(base)


def numbers_of_devices(devices: int, pins: Pins = NO_PINS, *, batch: int = 0) -> Sequence[int]:
    """How many devices are tried; of many also the most by which the batch divides.

    Example:
        >>> numbers_of_devices(3), numbers_of_devices(12), numbers_of_devices(12, batch=100)
        ([1, 2, 3], [1, 2, 3, 4, 6, 12], [1, 2, 3, 4, 6, 10, 12])
    """
    if devices <= EVERY_NUMBER:
        return list(range(1, devices + 1))
    pinned = (pins.dp or 1) * (pins.pp or 1) * (pins.tp or 1)
    equal = max((number for number in range(1, devices + 1) if batch % number == 0), default=1) if batch else 1
    return [number for number in range(1, devices + 1) if devices % number == 0 or number in (pinned, equal)]


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
            # With many replicas each owner would hand its weights to all others in turn.
            yield replace(base, microbatches=counts[0], sync="p2p")
        if base.dp in offers.classifier:
            yield replace(base, microbatches=counts[0], shards=offers.classifier[base.dp])


def accumulations(local: int) -> tuple[int, ...]:
    """Numbers of equal microbatches of a replica's share that are tried: divisors, each at least twice the one before.

    Args:
        local: samples of a replica in one update

    Example:
        >>> accumulations(16), accumulations(375)
        ((1, 2, 4, 8, 16), (1, 3, 15, 75, 375))
    """
    found = [1]
    for number in range(2, min(local, MOST_MICROBATCHES) + 1):
        if local % number == 0 and number >= 2 * found[-1]:
            found.append(number)
    return tuple(found)


def chunk_numbers(stages: int, layers: int, pins: Pins = NO_PINS) -> tuple[int, ...]:
    """How many segments a stage may have with the interleaved order.

    Args:
        stages: of the pipeline
        layers: units of the network that repeat
        pins: may say a number

    Example:
        >>> asked = Pins(schedule="interleaved")
        >>> chunk_numbers(4, 12, asked), chunk_numbers(4, 48, asked), chunk_numbers(8, 12, asked), chunk_numbers(4, 48)
        ((2, 3), (2, 4), (2,), (2,))
    """
    if pins.chunks is not None:
        return (pins.chunks,) if pins.chunks > 1 else ()
    if pins.schedule != "interleaved" and "interleaved" not in pins.allow:
        return CHUNKS
    most = min(MOST_CHUNKS, layers // stages)
    return (*CHUNKS, most) if most > max(CHUNKS) else CHUNKS


def _pipelines(base: Strategy, offers: Offers, pins: Pins) -> Iterator[Strategy]:
    if pins.allows_stale and base.dp == 1 and base.tp == 1 and base.execution == "eager":
        yield replace(base, schedule="pipedream")
    if pins.schedule == "pipedream":
        return
    counts = [base.pp * ratio for ratio in MICROBATCHES_PER_STAGE]
    if pins.microbatches is not None:
        counts = [pins.microbatches]
    for microbatches in counts:
        for schedule in ORDERS:
            chunks = chunk_numbers(base.pp, len(offers.units), pins) if schedule == "interleaved" else (1,)
            for each in chunks:
                yield replace(base, schedule=schedule, microbatches=microbatches, chunks=each)
        if base.dp > 1:
            yield replace(base, schedule="1f1b", microbatches=microbatches, zero=1)


# ---------------------------------------------------------------------------------------------------------------------
# Options of a network for a plan: operations to shard, units to gather, branches to place


def offers_of(graph: Graph, *, devices: int, pins: Pins = NO_PINS) -> Offers:
    """Options of a network on up to that number of devices.

    Args:
        graph: the job's
        devices: most ranks that may take part
        pins: options that they rule out are not looked for
    """
    tensor: dict[int, tuple[Shard, ...]] = {}
    split: dict[int, tuple[Shard, ...]] = {}
    classifier: dict[int, tuple[Shard, ...]] = {}
    for ranks in range(2, devices + 1):
        if "tp" not in pins.forbid and (shards := find_shards(graph, ranks, layers=pins.tp is not None)):
            tensor[ranks] = shards
            both = find_shards(graph, ranks, sequence=True, layers=pins.tp is not None)
            if both != shards:
                split[ranks] = both
        if "sharded" not in pins.forbid and (shards := find_classifier_shards(graph, ranks)):
            classifier[ranks] = shards
    return Offers(
        tensor=tensor,
        split=split,
        classifier=classifier,
        units=sharding_units(graph),
        branches="placement" not in pins.forbid and has_branches(graph),
        stages=len(graph.split_points) + 1,
    )


def has_branches(graph: Graph) -> bool:
    """Whether two operations can run side by side.

    Example:
        >>> from trimaran.graph.types import Affine, Op, TensorSpec
        >>> def op(name, *inputs):
        ...     spec = TensorSpec(name=name, shape=("B",), dtype="float32", nbytes=Affine(0, 4))
        ...     return Op(id=name, target="Linear", inputs=inputs, outputs=(spec,))
        >>> chain = Graph(name="chain", inputs=(), ops=(op("a", "x"), op("b", "a")), buffers={}, storages={})
        >>> fork = Graph(name="fork", inputs=(), ops=(op("a", "x"), op("b", "x")), buffers={}, storages={})
        >>> has_branches(chain), has_branches(fork)
        (False, True)
    """
    makers = {spec.name: op.id for op in graph.ops for spec in op.outputs}
    before: dict[str, set[str]] = {}
    for number, op in enumerate(graph.ops):
        reached: set[str] = set()
        for name in op.inputs:
            if name in makers:
                reached |= before[makers[name]] | {makers[name]}
        before[op.id] = reached
        # Each operation of a chain follows all that are listed before it.
        if len(reached) < number:
            return True
    return False


METHODS: tuple[Compression, ...] = (Compression(method="bf16"), Compression(method="powersgd", rank=4))
"""Methods that are tried after opt-in, the most exact first."""

ASSUMED_FACTORS: Mapping[int, float] = {4: 1.5, 2: 2.9, 1: 3.9}
"""Samples to a target with PowerSGD of a rank, over those with whole gradients.

Source: benchmarks/wire_accuracy, medians of the slower of its two jobs: a factor that is too large costs a part of a
gain, one that is too small the target. A higher rank is taken for rank 4.
"""


def samples_factor(compression: Compression | None, pins: Pins) -> float:
    """How many times the samples training needs until its target, against whole gradients.

    Args:
        compression: how gradients are sent
        pins: perhaps with the user's own figure

    Example:
        >>> rank_8 = Compression(method="powersgd", rank=8)
        >>> samples_factor(rank_8, Pins()), samples_factor(rank_8, Pins(powersgd_samples=1.1))
        (1.5, 1.1)
    """
    if compression is None or compression.method != "powersgd":
        return 1.0
    if pins.powersgd_samples is not None:
        return pins.powersgd_samples
    return next(factor for rank, factor in ASSUMED_FACTORS.items() if compression.rank >= rank)


STALE_FACTORS: Mapping[int, float] = {2: 1.15, 4: 1.05}
"""Samples to a target by a stale pipeline of this number of stages, over those by any synchronous plan.

Source: benchmarks/stale, the larger median of its jobs, at least 1. Of other numbers of stages that of the next lower
one is taken, for 3 that of 2; more than 4 were not measured.
"""


def stale_factor(strategy: Strategy) -> float:
    """How many times the samples training needs until its target, against gradients of the weights that they update.

    Args:
        strategy: stale or not

    Example:
        >>> stale_factor(Strategy(pp=2, schedule="1f1b"))
        1.0
        >>> stale_factor(Strategy(pp=8, schedule="pipedream")) == STALE_FACTORS[4]
        True
    """
    if not strategy.is_stale:
        return 1.0
    return STALE_FACTORS[max(stages for stages in STALE_FACTORS if stages <= strategy.pp)]


def offered(pins: Pins) -> tuple[Compression, ...]:
    """The methods that a search may use.

    Args:
        pins: with opt-in or without

    Example:
        >>> offered(Pins()), [method.name for method in offered(Pins(compression="powersgd:8"))]
        ((), ['powersgd-r8'])
    """
    if pins.compression is not None:
        return () if pins.method is None else (pins.method,)
    return METHODS if pins.compress and "compress" not in pins.forbid else ()


def may_be_compressed(strategy: Strategy) -> bool:
    """Whether a strategy sends whole gradients that a method could make smaller.

    Example:
        >>> may_be_compressed(Strategy(dp=2)), may_be_compressed(Strategy(dp=2, zero=1))
        (True, False)
    """
    summed = strategy.dp > 1 and strategy.sync == "all-reduce" and not strategy.zero
    return summed and strategy.tp == 1 and not strategy.shards and strategy.compression is None


def unfaithfulness(compression: Compression | None) -> int:
    """How little of a gradient a method keeps: 0 for all of it, more for less.

    Example:
        >>> ranks = (Compression(method="powersgd", rank=rank) for rank in (4, 1))
        >>> [unfaithfulness(one) for one in (None, *METHODS[:1], *ranks)]
        [0, 1, 9998, 10001]
    """
    if compression is None:
        return 0
    return {"bf16": 1, "fp16": 2}.get(compression.method, _LEAST_FAITHFUL - compression.rank)


_LEAST_FAITHFUL = 10_002

# Smaller buckets leave earlier, and pay the latency more often. The small one is for networks of a few 100 KiB.
SMALLER_BUCKETS_BYTES = (2**20, 2**17)

LEAST_BUCKET_BYTES = 2**15
"""Below this a bucket is little more than its latency on any link."""

Cause = Literal[
    "inexact", "split", "batch", "memory", "bound", "compiling", "form", "unmeasured", "pin", "time", "failed"
]
"""Why a strategy is rejected: it would train something else, too few splits, a batch that does not divide,
memory, its lower bound, compile time, a combination that no program has, costs that were not measured, a pin, the time
of the search, a trial run that failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejection:
    """A strategy that was not simulated, or does not fit.

    Attributes:
        strategy: the considered one
        cause: in one word
        reason: the same with the figures
        peak_bytes: peak memory of each rank, where memory is the cause [bytes]
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
    """Every strategy on up to that number of devices, simplest first.

    Args:
        graph: the job's; says whether it can be split, and which sizes of buckets make a difference
        devices: most ranks that may take part
        batch: samples of one update, over all ranks
        executions: how segments may run
        pins: decisions of the user; a strategy that violates one is in neither list
        hosts: for each device, the number of its host; replicas on several may use a hierarchical all-reduce

    Returns:
        The strategies, and those rejected with the reason.
    """
    offers = offers_of(graph, devices=devices, pins=pins)
    kept: list[Strategy] = []
    rejected: list[Rejection] = []
    for execution in executions:
        pinned = pins.bucket_bytes
        sizes = (pinned,) if pinned else bucket_sizes(graph, execution=execution) if devices > 1 else ()
        for strategy in shapes(devices, offers, batch=batch, execution=execution, pins=pins):
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
    strategies alone (`search.py`). A compiled network is split at its buckets, and torch refuses to split it below the
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
    if strategy.pp > 1 and not strategy.parts and not graph.split_points:
        return Rejection(strategy=strategy, cause="split", reason="the network cannot be split into stages")
    if graph.precision == "fp16" and (unscaled := scaling_obstacle(strategy)):
        return Rejection(strategy=strategy, cause="form", reason=unscaled)
    if batch % shares:
        why = f"a global batch of {batch} does not divide into {strategy.dp} × {strategy.microbatches} shares"
        return Rejection(strategy=strategy, cause="batch", reason=why)
    return None


def is_considered(strategy: Strategy, graph: Graph, *, batch: int, pins: Pins) -> bool:
    """Whether a strategy beyond those that are enumerated may be considered: it trains the same job, and keeps pins.

    Args:
        strategy: with or without boundaries
        graph: the job's
        batch: samples of one update, over all ranks
        pins: decisions of the user
    """
    return not pins.objection(strategy) and _objection(strategy, graph, batch) is None


def _variants(strategy: Strategy, sizes: Sequence[int], pins: Pins, hosts: Sequence[int]) -> Iterator[Strategy]:
    """A shape with each size of its buckets, where whole networks have some, and with each compression of them.

    On several hosts with as many devices each, hierarchical sums are variants too.

    A compression comes with the default size only: others are tried with the best of them (`search.py`).
    """
    if strategy.sync == "p2p" and pins.bucket_bytes:
        yield replace(strategy, bucket_bytes=pins.bucket_bytes)
        return
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
