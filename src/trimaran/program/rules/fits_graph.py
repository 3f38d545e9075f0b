"""Whether a strategy fits a graph and a batch, and if not, what would.

The parts of a placement must cover the graph, be able to run one after the other, and keep together the operations
between two neighbouring split points of the graph (`Graph.split_points`): one of them may write in place what another
has made, or share its running state.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args

from trimaran.base.errors import InputError
from trimaran.base.units import format_some
from trimaran.graph.types import Graph
from trimaran.program.lowering.partition import segment_ops
from trimaran.program.lowering.tensor_parallel import check_shards
from trimaran.program.strategy import PROGRAM_SCHEDULES, Strategy, Sync, codec_without_memory


def check_parts(graph: Graph, strategy: Strategy) -> None:
    """Refuse parts that cannot be lowered.

    Args:
        graph: the graph
        strategy: with parts

    Raises:
        InputError: an operation that is missing or there twice, a part that reads what a later one makes, a row
            without a part, operations apart that must be together, an order of backwards that cannot run
    """
    if strategy.boundaries or strategy.chunks > 1:
        raise InputError(
            "a placement (Strategy.parts) has no boundaries and no chunks: its parts are its segments",
            code="parts.with-boundaries",
            boundaries=strategy.boundaries,
            chunks=strategy.chunks,
        )
    _check_cover(graph, strategy)
    _check_rows(strategy)
    _check_together(graph, strategy)
    _check_orders(graph, strategy)


def stretches(graph: Graph) -> tuple[tuple[str, ...], ...]:
    """Ids of the operations that must be in one part: those between two neighbouring split points, in order."""
    return tuple(tuple(op.id for op in ops) for ops in graph.parts(graph.split_points))


def _check_cover(graph: Graph, strategy: Strategy) -> None:
    segment_ops(graph, strategy)  # refuses names that the graph does not have
    counts = Counter(name for part in strategy.parts for name in part.ops)
    wrong = [op.id for op in graph.ops if counts[op.id] != 1]
    if wrong:
        raise InputError(
            f"every operation of {graph.name!r} is in exactly one part of the placement, and {format_some(wrong, 12)} "
            "is in none, or in several",
            code="parts.not-once",
            ops=tuple(wrong),
        )
    place = {op.id: number for number, op in enumerate(graph.ops)}
    for number, part in enumerate(strategy.parts):
        if not part.ops or list(part.ops) != sorted(part.ops, key=place.__getitem__):
            raise InputError(
                f"part {number} of the placement has no operations, or not in the order of the graph",
                code="parts.not-in-graph-order",
                part=number,
            )


def _check_rows(strategy: Strategy) -> None:
    empty = sorted(set(range(strategy.pp)) - set(strategy.rows))
    wrong = sorted({row for row in strategy.rows if not 0 <= row < strategy.pp})
    if empty or wrong:
        what = f"row {empty[0]} of the placement has no part" if empty else f"a part is on row {wrong[0]}"
        raise InputError(
            f"{what}; it has rows 0 to {strategy.pp - 1} (Strategy.pp={strategy.pp}), each with at least one part",
            code="parts.empty-row",
            rows=strategy.rows,
            pp=strategy.pp,
        )


def _check_together(graph: Graph, strategy: Strategy) -> None:
    owner = {name: number for number, part in enumerate(strategy.parts) for name in part.ops}
    for stretch in stretches(graph):
        apart = [name for name in stretch if owner[name] != owner[stretch[0]]]
        if apart:
            raise InputError(
                f'"{stretch[0]}" and "{apart[0]}" must be in one part, and are in parts {owner[stretch[0]]} and '
                f"{owner[apart[0]]}: one may write in place what the other makes. {graph.name!r} can be split after "
                f"{format_some(graph.split_points, 12) or 'nothing'}",
                code="parts.in-place-split",
                together=stretch,
            )


def _check_orders(graph: Graph, strategy: Strategy) -> None:
    crossing = graph.exchanged(segment_ops(graph, strategy))
    for (producer, consumer), specs in crossing.items():
        if producer > consumer:
            raise InputError(
                f'part {consumer} reads "{specs[0].name}", which part {producer} makes after it: list the parts in an '
                "order in which their forwards can run, and split parts that need each other",
                code="parts.reads-later-part",
                parts=(producer, consumer),
            )
    order = strategy.backward_order
    if not order:
        return
    if sorted(order) != list(range(strategy.segments)):
        raise InputError(
            f"Strategy.backward_order must name each of the {strategy.segments} parts once, got "
            f"{format_some(order, 12) or 'nothing'}",
            code="parts.bad-backward-order",
            backward_order=order,
        )
    place = {segment: position for position, segment in enumerate(order)}
    for (producer, consumer), specs in crossing.items():
        if place[producer] < place[consumer] and any(spec.requires_grad for spec in specs):
            raise InputError(
                f"Strategy.backward_order runs part {producer} before part {consumer}, which gives it the gradient of "
                f'"{specs[0].name}"',
                code="parts.gradient-not-ready",
                backward_order=order,
                parts=(producer, consumer),
            )


def check_strategy(graph: Graph, strategy: Strategy, *, batch: int) -> None:
    """Refuse a strategy that cannot be lowered.

    Args:
        graph: the graph that it is for
        strategy: the strategy
        batch: global batch size [samples]

    Raises:
        InputError: a degree below 1, a memory budget, owners or a compression that the strategy cannot have, boundaries
            that the graph does not offer, or a batch that does not divide
    """
    for name in ("dp", "pp", "tp", "chunks", "microbatches", "bucket_bytes", "nodes"):
        value = getattr(strategy, name)
        if value < 1:
            raise InputError(
                f"Strategy.{name} must be at least 1, got {value}", code="strategy.degree-too-small", **{name: value}
            )
    for name, known in _CHOICES.items():
        value = getattr(strategy, name)
        if value not in known:
            listed = " or ".join(f'"{choice}"' if isinstance(choice, str) else str(choice) for choice in known)
            raise InputError(
                f"Strategy.{name} must be {listed}, got {value!r}".replace("'", '"'),
                code="strategy.unknown-sync",
                **{name: value},
            )
    if strategy.codec is not None and strategy.memory_bytes is None:
        raise codec_without_memory(strategy.name, strategy.codec)
    for form in _FORMS:
        if why := form.obstacle(strategy):
            raise InputError(form.sentence.format(strategy, why=why), code=form.code, strategy=strategy.name)
    if strategy.parts:
        check_parts(graph, strategy)
    else:
        _check_chain(graph, strategy)
    if strategy.tp > 1 or strategy.shards:
        check_shards(graph, strategy)
    check_batch(batch, dp=strategy.dp, microbatches=strategy.microbatches)


_CHOICES: dict[str, tuple[object, ...]] = {"sync": get_args(Sync), "schedule": PROGRAM_SCHEDULES, "zero": (0, 1, 2, 3)}


Obstacle = tuple[Callable[[Strategy], bool], str]
"""When a strategy cannot have something, and why."""


def _first(obstacles: Sequence[Obstacle], strategy: Strategy) -> str:
    return next((why for holds, why in obstacles if holds(strategy)), "")


MEMORY_SCHEDULES = ("gpipe", "1f1b", "interleaved")
"""Orders of a pipeline whose stages may have a memory plan: each backward is whole, and ends in its step."""

_OF_MEMORY: Sequence[Obstacle] = (
    (lambda one: (one.memory_bytes or 0) < 1, "a budget is at least 1 byte"),
    (lambda one: one.tp > 1, "layers that are sharded keep no memory budget (--tp 1)"),
    (
        lambda one: one.pp > 1 and bool(one.parts),
        "branches that are placed on devices keep no memory budget; a chain of stages does (--pp)",
    ),
    (
        lambda one: one.pp > 1 and one.schedule not in MEMORY_SCHEDULES,
        "its schedule splits backwards or overlaps steps, so a stage has no memory plan; take "
        f"{' or '.join(MEMORY_SCHEDULES)}",
    ),
    (
        lambda one: one.pp > 1 and one.execution != "eager",
        "stages that are compiled keep no memory budget (--execution eager)",
    ),
)

_OF_STALE: Sequence[Obstacle] = (
    (lambda one: one.pp < 2 or bool(one.parts), "it is for a chain of two stages or more (--pp 2)"),
    (
        lambda one: one.microbatches > 1,
        "each global batch is one microbatch, and its update follows it at once (--microbatches 1)",
    ),
    (
        lambda one: one.dp > 1 or one.tp > 1 or bool(one.shards),
        "stages are not replicated or sharded (--dp 1 --tp 1)",
    ),
    (lambda one: one.execution != "eager", "stages that are compiled keep no earlier weights (--execution eager)"),
)

_OF_NODES: Sequence[Obstacle] = (
    (lambda one: one.sync != "hierarchical" and one.nodes != 1, 'Strategy.nodes is for sync "hierarchical"'),
    (
        lambda one: one.sync == "hierarchical" and (one.pp * one.tp > 1 or any((one.parts, one.shards, one.zero))),
        'sync "hierarchical" is for replicas of whole networks that share nothing (pp=1, tp=1, zero=0); take sync '
        '"all-reduce"',
    ),
    (
        lambda one: one.sync == "hierarchical" and (one.nodes < 2 or one.dp % one.nodes > 0 or one.dp // one.nodes < 2),
        'sync "hierarchical" needs two nodes or more with as many replicas on each, two or more; take sync '
        '"all-reduce"',
    ),
)

_OF_ZERO: Sequence[Obstacle] = (
    (lambda one: one.dp == 1, "needs several replicas (dp)"),
    (
        lambda one: one.zero == 1 and (one.chunks > 1 or bool(one.parts)),
        "is for networks whose replicas have one segment a rank",
    ),
    (
        lambda one: one.zero > 1 and (one.pp * one.tp > 1 or bool(one.parts) or one.execution != "eager"),
        "is for whole networks, run eagerly (pp=1, tp=1)",
    ),
)

_OF_COMPRESSION: Sequence[Obstacle] = (
    (lambda one: one.dp == 1, "needs several replicas (dp): one sends no gradients"),
    (
        lambda one: one.sync != "all-reduce" or one.zero > 0,
        'is for gradients that every replica sums whole (sync "all-reduce", zero=0)',
    ),
    (
        lambda one: one.tp > 1 or bool(one.shards),
        "is for replicas that hold whole tensors (tp=1, no shards)",
    ),
)


def memory_obstacle(strategy: Strategy) -> str:
    """Why ranks of a strategy cannot keep a memory budget by offload and recompute; empty: they can, or have none.

    Example:
        >>> memory_obstacle(Strategy(pp=2, memory_bytes=1 << 30)), memory_obstacle(Strategy(tp=2))
        ('', '')
        >>> memory_obstacle(Strategy(tp=2, memory_bytes=1 << 30))
        'layers that are sharded keep no memory budget (--tp 1)'
    """
    return "" if strategy.memory_bytes is None else _first(_OF_MEMORY, strategy)


def stale_obstacle(strategy: Strategy) -> str:
    """Why steps of a pipeline cannot overlap under a strategy; empty: they can, or are not asked to.

    Example:
        >>> stale_obstacle(Strategy(pp=2, schedule="pipedream")), stale_obstacle(Strategy(dp=2))
        ('', '')
        >>> stale_obstacle(Strategy(pp=2, schedule="pipedream", microbatches=4))
        'each global batch is one microbatch, and its update follows it at once (--microbatches 1)'
    """
    return _first(_OF_STALE, strategy) if strategy.schedule == "pipedream" else ""


def _has_bad_order(strategy: Strategy) -> bool:
    order = strategy.device_order
    return bool(order) and (len(set(order)) != strategy.devices or len(order) != strategy.devices or min(order) < 0)


class _Form(NamedTuple):
    """What a strategy may have in some forms only.

    Attributes:
        code: of the refusal
        obstacle: why it cannot have it; empty: it can, or has not
        sentence: around that
    """

    code: str
    obstacle: Callable[[Strategy], str]
    sentence: str


_FORMS = (
    _Form("strategy.memory-form", memory_obstacle, "Strategy.memory_bytes is {0.memory_bytes} in {0.name}: {why}"),
    _Form(
        "strategy.sync-with-stages",
        lambda one: (
            "a weight of several stages would have several owners"
            if one.sync == "p2p" and (one.pp * one.tp > 1 or one.zero)
            else ""
        ),
        'Strategy.sync "p2p" is for whole networks (pp=1), got {0.name}: {why}. Take sync "all-reduce"',
    ),
    _Form(
        "strategy.stale-form",
        stale_obstacle,
        'the schedule "pipedream" keeps earlier weights of each stage: {why}; got {0.name}. Or take another schedule, '
        'such as "1f1b"',
    ),
    _Form(
        "strategy.bad-device-order",
        lambda one: "a different device for each" if _has_bad_order(one) else "",
        "Strategy.device_order must name {why} of the {0.devices} ranks, got {0.device_order}",
    ),
    _Form(
        "strategy.uneven-nodes",
        lambda one: _first(_OF_NODES, one),
        "{why}; got {0.name} on nodes={0.nodes}",
    ),
    _Form(
        "strategy.zero-form",
        lambda one: _first(_OF_ZERO, one) if one.zero else "",
        "Strategy.zero={0.zero} {why}, got {0.name}",
    ),
    _Form(
        "strategy.compression-needs-replicas",
        lambda one: _first(_OF_COMPRESSION, one) if one.compression else "",
        'Strategy.compression "{0.compression.name}" {why}, got {0.name}',
    ),
)
"""In the order in which they are told."""


def _check_chain(graph: Graph, strategy: Strategy) -> None:
    segments = strategy.pp * strategy.chunks
    if strategy.chunks > 1 and (strategy.schedule != "interleaved" or strategy.pp == 1):
        raise InputError(
            f'Strategy.chunks={strategy.chunks} is for the schedule "interleaved" of two stages or more, got '
            f'"{strategy.schedule}" with pp={strategy.pp}',
            chunks=strategy.chunks,
            schedule=strategy.schedule,
        )
    if strategy.schedule == "interleaved" and strategy.pp > 1 and strategy.chunks == 1:
        raise InputError(
            'the schedule "interleaved" needs several segments a stage (Strategy.chunks), got 1: with one it is "1f1b"',
            chunks=strategy.chunks,
        )
    if strategy.backward_order:
        raise InputError(
            "Strategy.backward_order is for placements (Strategy.parts): a pipeline runs its backwards by its schedule"
        )
    if len(strategy.boundaries) != segments - 1:
        stages = f"{strategy.pp} pipeline stages" + (f" of {strategy.chunks} segments" if strategy.chunks > 1 else "")
        raise InputError(
            f"{stages} need {segments - 1} boundaries between them, "
            f"got {len(strategy.boundaries)}: {format_some(strategy.boundaries, 12) or 'nothing'}",
            code="strategy.wrong-boundary-count",
            pp=strategy.pp,
            boundaries=strategy.boundaries,
        )
    check_boundaries(graph, strategy.boundaries)


def check_boundaries(graph: Graph, boundaries: Sequence[str]) -> None:
    """Refuse boundaries that the graph does not offer, or that are out of order.

    Args:
        graph: the graph
        boundaries: last operation of every segment but the last

    Raises:
        InputError: a boundary that is not in `graph.split_points`, or not after the one before it
    """
    order = {name: index for index, name in enumerate(graph.split_points)}
    for boundary in boundaries:
        if boundary not in order:
            raise InputError(
                f"{graph.name!r} cannot be split after {boundary!r}; it can be split after "
                f"{format_some(graph.split_points, 12) or 'nothing'}",
                code="strategy.cannot-split-after",
                boundary=boundary,
                split_points=graph.split_points,
            )
    positions = [order[boundary] for boundary in boundaries]
    if positions != sorted(set(positions)):
        in_order = [graph.split_points[position] for position in sorted(set(positions))]
        raise InputError(
            f"boundaries must be different and in the order in which the model runs: got "
            f"{format_some(boundaries, 12)}, in order they are {format_some(in_order, 12)}",
            code="strategy.boundaries-out-of-order",
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
            figures: dict[str, Any] = {name: value}
            raise InputError(
                f"the number of {name} must be at least 1, got {value}", code="strategy.count-too-small", **figures
            )
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
        message += f"; with this batch and {dp} replicas, the number of microbatches can be {format_some(counts, 12)}"
    raise InputError(
        message, code="strategy.batch-not-divisible", batch=batch, dp=dp, microbatches=microbatches, multiple_of=parts
    )
