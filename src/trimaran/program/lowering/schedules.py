"""Orders of compute: which forward or backward each row of a pipeline does next.

A row is the list of steps of one rank of a replica; it may have several segments. An order has no communication: that
follows from the graph (`lower.py`).

A logical clock over an order says when each step would start if every step took one unit and messages none. It shows
whether an order can run at all, draws it (`draw_order`), and gives both ends of a channel the same order of messages.

A placement is a directed acyclic graph of parts on the rows of a replica. With one microbatch, each row runs its
forwards in the order in which the strategy lists the parts, and its backwards in the strategy's order of backwards.
With several, rows are filled by list scheduling. A free row takes what is ready, backwards first and earlier
microbatches first; it starts no forward of a new microbatch while it has one under way for each row, so that it keeps
the activations of no more.

Times of steps are only estimated here, from operations and bytes, because the order must follow from the graph and the
strategy alone: every rank lowers the same program. Left out: the time of messages.
"""

from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TypeVar

from trimaran.base.errors import InputError
from trimaran.graph.types import Op
from trimaran.program.lowering.partition import Pair, Partition
from trimaran.program.strategy import Schedule, Strategy
from trimaran.program.types import Kind

BACKWARDS = frozenset({Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT})
FORWARDS = frozenset({Kind.FORWARD, Kind.EVALUATE})
COMPUTES = FORWARDS | BACKWARDS

COMPLETING = frozenset({Kind.BACKWARD, Kind.BACKWARD_WEIGHT})
"""Steps that add to gradients; the last one of a segment completes them."""

PASSING_BACK = frozenset({Kind.BACKWARD, Kind.BACKWARD_INPUT})
"""Steps that make the gradients of inputs."""


@dataclass(frozen=True, slots=True)
class Compute:
    """One step of an order: what is computed, of which segment, for which microbatch.

    Example:
        >>> Compute(Kind.FORWARD, segment=0, microbatch=3).token
        '0F3'
    """

    kind: Kind
    segment: int
    microbatch: int

    @property
    def token(self) -> str:
        """Its name in torch's pipelining, which is also the token of the instruction."""
        return f"{self.segment}{self.kind}{self.microbatch}"


Order = tuple[tuple[Compute, ...], ...]


def order_of(strategy: Strategy) -> Order:
    """Order of the segments of each row of a strategy; where steps overlap, of all that are under way at once.

    Args:
        strategy: no placement
    """
    if strategy.is_stale:
        return compute_order("1f1b", stages=strategy.pp, microbatches=strategy.pp)
    return compute_order(
        strategy.schedule, stages=strategy.pp, microbatches=strategy.microbatches, chunks=strategy.chunks
    )


def compute_order(schedule: Schedule, *, stages: int, microbatches: int, chunks: int = 1) -> Order:
    """Order of compute of a chain of which row `s % stages` has segment `s`.

    Args:
        schedule: one that a program can have (`check_strategy`); with one stage each is microbatch by microbatch
        stages: stages of the pipeline
        microbatches: microbatches of a replica
        chunks: segments of each stage; more than one is for "interleaved"

    Returns:
        One row a stage.
    """
    if stages == 1:
        return one_forward_one_backward(1, microbatches)
    if schedule == "interleaved":
        return interleaved(stages, microbatches, chunks)
    return _GENERATORS[schedule](stages, microbatches)


def gpipe(stages: int, microbatches: int) -> Order:
    """All forwards, then all backwards.

    Every stage keeps the activations of all its microbatches. Idle share of a stage: (K-1)/(M+K-1) for K stages and M
    microbatches.

    Source:
        Huang et al., GPipe, NeurIPS 2019.

    Example:
        >>> from trimaran.program.lowering.schedules import draw_order
        >>> print(draw_order(gpipe(3, 4)))
        row 0  0F0 0F1 0F2 0F3  .   .   .   .  0B0 0B1 0B2 0B3
        row 1   .  1F0 1F1 1F2 1F3  .   .  1B0 1B1 1B2 1B3  .
        row 2   .   .  2F0 2F1 2F2 2F3 2B0 2B1 2B2 2B3  .   .
    """
    return tuple(
        tuple(
            Compute(kind, stage, microbatch)
            for kind in (Kind.FORWARD, Kind.BACKWARD)
            for microbatch in range(microbatches)
        )
        for stage in range(stages)
    )


def one_forward_one_backward(stages: int, microbatches: int) -> Order:
    """Backwards as early as possible: stage k of K keeps the activations of at most K-k microbatches.

    A stage runs as many forwards ahead as there are stages after it, then one forward and one backward in turn, then
    what is left. The idle share is that of GPipe.

    Source:
        Narayanan et al., PipeDream-Flush (1F1B), "Memory-Efficient Pipeline-Parallel DNN Training", ICML 2021.

    Example:
        >>> from trimaran.program.lowering.schedules import draw_order
        >>> print(draw_order(one_forward_one_backward(3, 4)))
        row 0  0F0 0F1 0F2  .   .  0B0 0F3 0B1  .  0B2  .  0B3
        row 1   .  1F0 1F1  .  1B0 1F2 1B1 1F3 1B2  .  1B3  .
        row 2   .   .  2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3  .   .
    """
    return _in_turn(stages, microbatches, split=False)


def _in_turn(stages: int, microbatches: int, *, split: bool) -> Order:
    """Forwards ahead, then one forward and one backward in turn; stage k puts off k weight gradients of split ones."""
    rows = []
    for stage in range(stages):
        ahead = min(stages - 1 - stage, microbatches)
        row = [Compute(Kind.FORWARD, stage, microbatch) for microbatch in range(ahead)]
        for microbatch in range(microbatches):
            if microbatch + ahead < microbatches:
                row.append(Compute(Kind.FORWARD, stage, microbatch + ahead))
            row.append(Compute(Kind.BACKWARD_INPUT if split else Kind.BACKWARD, stage, microbatch))
            if split and microbatch >= stage:
                row.append(Compute(Kind.BACKWARD_WEIGHT, stage, microbatch - stage))
        left = range(max(0, microbatches - stage), microbatches) if split else ()
        rows.append((*row, *(Compute(Kind.BACKWARD_WEIGHT, stage, microbatch) for microbatch in left)))
    return tuple(rows)


def interleaved(stages: int, microbatches: int, chunks: int) -> Order:
    """1F1B over several segments a stage, dealt in turn: a microbatch goes `chunks` times around the stages.

    Microbatches are taken in groups of the number of stages where that divides; a stage runs a group through its first
    segment, then through its second. Idle share of a stage where the microbatches are a multiple of the stages:
    (K-1)/(vM+K-1) for K stages, v segments a stage and M microbatches; v times less of a step than with 1F1B.

    Source:
        Narayanan et al., "Efficient Large-Scale Language Model Training on GPU Clusters Using Megatron-LM", SC 2021.

    Example:
        >>> from trimaran.program.lowering.schedules import draw_order
        >>> print(draw_order(interleaved(2, 2, 2)))
        row 0  0F0 0F1 2F0 2F1  .  2B0  .  2B1 0B0 0B1
        row 1   .  1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1  .
    """
    group = -(-microbatches // max(1, microbatches // stages))
    visits = [
        (chunk, microbatch)
        for first in range(0, microbatches, group)
        for chunk in range(chunks)
        for microbatch in range(first, min(first + group, microbatches))
    ]
    rows = []
    for stage in range(stages):
        forwards = [Compute(Kind.FORWARD, chunk * stages + stage, microbatch) for chunk, microbatch in visits]
        backwards = [
            Compute(Kind.BACKWARD, (chunks - 1 - chunk) * stages + stage, microbatch) for chunk, microbatch in visits
        ]
        ahead = min((chunks - 1) * group + 2 * (stages - 1 - stage), len(visits))
        row = forwards[:ahead]
        for forward, backward in zip(forwards[ahead:], backwards, strict=False):
            row += [forward, backward]
        rows.append((*row, *backwards[len(visits) - ahead :]))
    return tuple(rows)


def zero_bubble(stages: int, microbatches: int) -> Order:
    """1F1B whose backwards are split: the gradient of the inputs first, that of the weights where nothing else is.

    Stage k puts off k gradients of weights, so that every stage keeps as many activations as the first one does with
    1F1B. With steps of one unit each, a stage idles (K-1)/(3M+K-1) of a step where there are enough microbatches
    (M >= K): a third of what 1F1B idles.

    Source:
        Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, schedule ZB-H1.

    Example:
        >>> from trimaran.program.lowering.schedules import draw_order
        >>> print(draw_order(zero_bubble(2, 3)))
        row 0  0F0 0F1  .  0I0 0W0 0F2 0I1 0W1 0I2 0W2
        row 1   .  1F0 1I0 1F1 1I1 1W0 1F2 1I2 1W1 1W2
    """
    return _in_turn(stages, microbatches, split=True)


_GENERATORS = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "zero-bubble": zero_bubble,
    # Within a step there is one forward and one backward of each stage, of different global batches (`behind_of`):
    # Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019.
    "pipedream": one_forward_one_backward,
}


def behind_of(stages: int, stage: int) -> tuple[int, int]:
    """How many steps behind the forward and the backward of a stage are, where steps overlap.

    The first stage begins a global batch. The others begin one step later, so that they can receive it while they
    compute. From there to its backward a stage begins as many others as there are stages after it.

    Args:
        stages: of the pipeline
        stage: number of the stage

    Example:
        >>> [behind_of(3, stage) for stage in range(3)]
        [(0, 2), (1, 2), (1, 1)]
    """
    forward = min(stage, 1)
    return forward, forward + stages - 1 - stage


def stashed_versions(stages: int, stage: int) -> int:
    """Earlier versions of its weights that a stage keeps, where steps overlap: one for each pass that is under way.

    Args:
        stages: of the pipeline
        stage: number of the stage

    Example:
        >>> [stashed_versions(4, stage) for stage in range(4)]
        [3, 2, 1, 0]
    """
    return stages - 1 - stage


Item = TypeVar("Item", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """When the steps of an order run.

    Attributes:
        starts: of each step [units]
        lengths: of each step; None: one unit each [units]
    """

    starts: Mapping[Compute, float]
    lengths: Mapping[Compute, float] | None = None


def play(
    queues: Sequence[Sequence[Item]],
    needs: Mapping[Item, Sequence[Item]],
    lengths: Mapping[Item, float] | None = None,
) -> dict[Item, float]:
    """When each item starts, if every queue does its items one after the other, each once what it needs has ended.

    Args:
        queues: what each does, in order, such as the steps of a row or the messages of a channel
        needs: of each item, items of any queue
        lengths: how long each item takes [units]; None: one unit

    Returns:
        Start by item [units]; what waits for itself, and what is behind it, is left out.
    """
    starts: dict[Item, float] = {}
    ends: dict[Item, float] = {}
    reached = [0] * len(queues)
    moved = True
    while moved:
        moved = False
        for number, queue in enumerate(queues):
            while reached[number] < len(queue):
                item = queue[reached[number]]
                awaited = [ends.get(need) for need in needs[item]]
                if reached[number]:
                    awaited.append(ends[queue[reached[number] - 1]])
                if None in awaited:
                    break
                starts[item] = max((end for end in awaited if end is not None), default=0)
                ends[item] = starts[item] + (1 if lengths is None else lengths[item])
                reached[number] += 1
                moved = True
    return starts


def start_times(
    order: Order,
    *,
    forward: Iterable[Pair],
    backward: Iterable[Pair],
    lengths: Mapping[Compute, float] | None = None,
) -> dict[Compute, float]:
    """Start of each step [units].

    Args:
        order: one row of steps a rank
        forward: pairs `(producer, consumer)` of segments between which activations flow
        backward: those of them along which gradients flow back
        lengths: how long each step takes [units]; None: one unit

    Returns:
        Start by step.

    Raises:
        InputError: the order waits for itself; drawn up to where it stops

    Example:
        >>> from trimaran.program.lowering.schedules import gpipe
        >>> times = start_times(gpipe(2, 2), forward=[(0, 1)], backward=[(0, 1)])
        >>> times[Compute(Kind.FORWARD, 1, 0)], times[Compute(Kind.BACKWARD, 0, 0)]
        (1, 4)
    """
    sources, consumers = _neighbours(forward, backward)
    steps_of_all = {step for steps in order for step in steps}
    needs_of = {step: _needs(step, sources, consumers, steps_of_all) for step in steps_of_all}
    starts = play(order, needs_of, lengths)
    if len(starts) < len(steps_of_all):
        raise _stuck(order, starts, needs_of)
    return starts


def draw_order(order: Order, starts: Mapping[Compute, float] | None = None) -> str:
    """The order as a wavefront: one line a row, one column a unit of the logical clock.

    Args:
        order: one row of steps a rank
        starts: start of each step; None: as a chain of its segments; a step that is missing is left out
    """
    if starts is None:
        segments = 1 + max(step.segment for row in order for step in row)
        chain = [(segment, segment + 1) for segment in range(segments - 1)]
        starts = start_times(order, forward=chain, backward=chain)
    length = 1 + int(max(starts.values(), default=-1))
    width = max((len(step.token) for step in starts), default=1)
    lines = []
    for row, steps in enumerate(order):
        cells = ["."] * length
        for step in steps:
            if step in starts:
                cells[int(starts[step])] = step.token
        drawn = " ".join((f" {cell}" if cell == "." else cell).ljust(width) for cell in cells)
        lines.append(f"row {row}  {drawn}".rstrip())
    return "\n".join(lines)


def _neighbours(forward: Iterable[Pair], backward: Iterable[Pair]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """By segment, those whose activations it reads, and those whose gradients come back to it."""
    sources: dict[int, list[int]] = {}
    consumers: dict[int, list[int]] = {}
    for producer, consumer in forward:
        sources.setdefault(consumer, []).append(producer)
    for producer, consumer in backward:
        consumers.setdefault(producer, []).append(consumer)
    return sources, consumers


def _needs(
    step: Compute, sources: Mapping[int, list[int]], consumers: Mapping[int, list[int]], steps: Collection[Compute]
) -> list[Compute]:
    """The steps of any row that give what a step reads."""
    if step.kind not in BACKWARDS:
        return [Compute(step.kind, source, step.microbatch) for source in sources.get(step.segment, ())]
    if step.kind is Kind.BACKWARD_WEIGHT:
        return [Compute(Kind.BACKWARD_INPUT, step.segment, step.microbatch)]
    needs = [Compute(Kind.FORWARD, step.segment, step.microbatch)]
    for consumer in consumers.get(step.segment, ()):
        # A segment may run its whole backward for one microbatch and split it for another.
        whole = Compute(Kind.BACKWARD, consumer, step.microbatch)
        needs.append(whole if whole in steps else Compute(Kind.BACKWARD_INPUT, consumer, step.microbatch))
    return needs


def _stuck(order: Order, starts: Mapping[Compute, float], needs_of: Mapping[Compute, Sequence[Compute]]) -> InputError:
    waits = []
    reached = [sum(step in starts for step in steps) for steps in order]
    for row, steps in enumerate(order):
        if reached[row] < len(steps):
            step = steps[reached[row]]
            missing = [need.token for need in needs_of[step] if need not in starts]
            waits.append(f"  row {row} stops before {step.token}, which waits for {', '.join(missing)}")
    drawn = draw_order(order, starts)
    return InputError(
        "this order of compute can never run to its end:\n" + "\n".join(waits) + f"\nIt runs as far as this:\n{drawn}\n"
        "Reorder the rows so that every step comes after those that it waits for.",
        code="order.stuck",
        reached=tuple(reached),
    )


FLOPS_PER_BYTE = 10.0
"""Operations in the time of a byte: between a processor core's balance and a GPU's. It only decides orders."""


def placement_order(strategy: Strategy, partition: Partition, lengths: Mapping[Compute, float]) -> Order:
    """The order of compute of a training step.

    Args:
        strategy: with parts
        partition: its graph in these parts
        lengths: how long each step takes [units]

    Returns:
        One row a rank of a replica.
    """
    if strategy.microbatches == 1:
        back = backward_order(strategy)
        return tuple(
            tuple(
                Compute(kind, segment, 0)
                for kind, segments in ((Kind.FORWARD, range(len(strategy.rows))), (Kind.BACKWARD, back))
                for segment in segments
                if strategy.rows[segment] == row
            )
            for row in range(strategy.pp)
        )
    return _scheduled(strategy, partition, lengths)


def evaluation_order(strategy: Strategy) -> Order:
    """The order of the forwards of an evaluation: microbatch by microbatch, each in the order of the segments."""
    return tuple(
        tuple(
            Compute(Kind.EVALUATE, segment, microbatch)
            for microbatch in range(strategy.microbatches)
            for segment, owner in enumerate(strategy.rows)
            if owner == row
        )
        for row in range(strategy.pp)
    )


def backward_order(strategy: Strategy) -> tuple[int, ...]:
    """The segments in the order of their backwards."""
    return strategy.backward_order or tuple(reversed(range(strategy.segments)))


def step_lengths(parts: Sequence[Sequence[Op]], *, microbatches: int, samples: int) -> dict[Compute, float]:
    """Rough times of the steps of segments, in proportion to each other [units].

    Args:
        parts: the operations of each segment
        microbatches: of a replica
        samples: of a microbatch
    """
    lengths: dict[Compute, float] = {}
    for segment, ops in enumerate(parts):
        forward = sum(op.flops.at(samples) + FLOPS_PER_BYTE * op.bytes_moved.at(samples) for op in ops)
        backward = sum(
            op.backward_flops.at(samples) + FLOPS_PER_BYTE * op.backward_bytes_moved.at(samples) for op in ops
        )
        for microbatch in range(microbatches):
            for kind, length in (
                (Kind.FORWARD, forward),
                (Kind.EVALUATE, forward),
                (Kind.BACKWARD, backward),
                (Kind.BACKWARD_INPUT, backward / 2),
                (Kind.BACKWARD_WEIGHT, backward / 2),
            ):
                lengths[Compute(kind, segment, microbatch)] = length
    # Where nothing is known of any operation, all steps are alike.
    return lengths if any(lengths.values()) else dict.fromkeys(lengths, 1.0)


def _scheduled(strategy: Strategy, partition: Partition, lengths: Mapping[Compute, float]) -> Order:
    rows = strategy.rows
    waits, followers = _dependencies(strategy, partition)
    rank_of = {segment: place for place, segment in enumerate(backward_order(strategy))}
    under_way = [dict[int, int]() for _ in range(strategy.pp)]
    held: list[int] = [rows.count(row) for row in range(strategy.pp)]
    order: list[list[Compute]] = [[] for _ in range(strategy.pp)]
    ready: list[list[tuple[int, int, int, Compute]]] = [[] for _ in range(strategy.pp)]

    def offer(step: Compute) -> None:
        back = step.kind is Kind.BACKWARD
        place = rank_of[step.segment] if back else step.segment
        heappush(ready[rows[step.segment]], (not back, step.microbatch, place, step))

    def take(row: int) -> Compute | None:
        if not ready[row]:
            return None
        step = ready[row][0][3]
        mine = under_way[row]
        if step.kind is Kind.FORWARD and step.microbatch not in mine and len(mine) >= strategy.pp:
            return None
        return heappop(ready[row])[3]

    for step in (step for step, count in waits.items() if not count):
        offer(step)
    running: list[tuple[float, int, Compute]] = []
    busy = [False] * strategy.pp
    now = 0.0
    while True:
        for row in range(strategy.pp):
            taken = None if busy[row] else take(row)
            if taken is not None:
                busy[row] = True
                order[row].append(taken)
                under_way[row].setdefault(taken.microbatch, 2 * held[row])
                heappush(running, (now + lengths[taken], row, taken))
        if not running:
            return tuple(map(tuple, order))
        now, row, step = heappop(running)
        busy[row] = False
        under_way[row][step.microbatch] -= 1
        if not under_way[row][step.microbatch]:
            del under_way[row][step.microbatch]
        for follower in followers[step]:
            waits[follower] -= 1
            if not waits[follower]:
                offer(follower)


def _dependencies(strategy: Strategy, partition: Partition) -> tuple[dict[Compute, int], dict[Compute, list[Compute]]]:
    """For each step, how many it waits for, and which wait for it."""
    steps = [
        Compute(kind, segment, microbatch)
        for microbatch in range(strategy.microbatches)
        for kind in (Kind.FORWARD, Kind.BACKWARD)
        for segment in range(strategy.segments)
    ]
    sources, consumers = _neighbours(partition.forward, partition.backward)
    followers: dict[Compute, list[Compute]] = {step: [] for step in steps}
    needs_of = {step: _needs(step, sources, consumers, followers) for step in steps}
    for step, needs in needs_of.items():
        for need in needs:
            followers[need].append(step)
    return {step: len(needs) for step, needs in needs_of.items()}, followers
