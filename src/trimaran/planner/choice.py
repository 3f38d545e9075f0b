"""Which of several simulated candidates to take, and which ones a person should see beside it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

from trimaran.planner.candidates import Candidate, Cases
from trimaran.planner.space import SCHEDULES, unfaithfulness
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES
from trimaran.program.strategy import IN_LINE, Strategy

Item = TypeVar("Item")

# What the simulator leaves out is worth about this much of a step, also where every cost is known.
MODEL_ERROR = 0.03


def simplicity(strategy: Strategy) -> tuple[int, ...]:
    """Sort key by which the simpler of two equally good strategies comes first.

    What sends whole gradients comes before what loses some of them, whatever else they do. One process is simpler than
    replicas, replicas are simpler than a pipeline or a placement, these than sharded
    operations, and each of them than a hybrid; then fewer devices, what autograd saves kept before moved, eager before
    compiled, whole state before sharded, sums everywhere before homes, the default buckets before others, fewer
    microbatches, stages before branches, GPipe before other orders, samples
    read each time before kept, fewer workers before more.
    """
    shape = 4 * (strategy.tp > 1) + 2 * (strategy.pp > 1) + (strategy.dp > 1)
    return (
        unfaithfulness(strategy.compression),
        shape,
        strategy.devices,
        strategy.memory_bytes is not None,
        strategy.execution != "eager",
        bool(strategy.shards) and strategy.tp == 1,
        strategy.zero,
        strategy.sync != "all-reduce",
        strategy.bucket_bytes != DEFAULT_BUCKET_BYTES,
        strategy.microbatches,
        bool(strategy.parts),
        strategy.chunks,
        SCHEDULES.index(strategy.schedule),
        strategy.feeding.cached,
        strategy.feeding.workers,
    )


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The fastest, unless it is believed faster than a simpler one only within the uncertainty.

    Costs measured on one machine err together, so two candidates are compared where all costs are low, where they are
    at their median, and where all are high. A simpler candidate wins if in one of the three it is not slower by more
    than `MODEL_ERROR`.

    Args:
        candidates: at least one
    """
    best = fastest(candidates)
    close = [candidate for candidate in candidates if may_be_as_fast(candidate.cases, best.cases)]
    return min(close, key=lambda candidate: (simplicity(candidate.strategy), candidate.objective_s))


def fastest(candidates: Sequence[Candidate]) -> Candidate:
    """The one whose objective is smallest; of equal ones the simplest.

    Args:
        candidates: at least one
    """
    return min(candidates, key=lambda candidate: (candidate.objective_s, simplicity(candidate.strategy)))


def may_be_as_fast(ours: Cases, theirs: Cases) -> bool:
    """Whether the uncertainty leaves room for the first to be as fast as the second.

    Args:
        ours: objective, or a lower bound of it, with all costs low, at their median, and high [s]
        theirs: likewise of the fastest [s]

    Example:
        >>> may_be_as_fast((9.0, 11.0, 20.0), (9.0, 10.0, 11.0)), may_be_as_fast((9.5, 11.0, 20.0), (9.0, 10.0, 11.0))
        (True, False)
    """
    return any(mine <= other * (1 + MODEL_ERROR) for mine, other in zip(ours, theirs, strict=True))


def pareto_front(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Those that no other one beats in the time of a step, the largest peak of memory and the number of devices.

    The time is `Candidate.worth_s`: a step that must be done more often is as much longer.
    Of candidates that are equal in all three, the simplest is on the front.

    Args:
        candidates: in any order

    Returns:
        Ascending in time.
    """
    return front_of(
        candidates,
        order=lambda one: (one.worth_s, largest_peak(one), simplicity(one.strategy)),
        costs=lambda one: (largest_peak(one), one.strategy.devices),
    )


def front_of(
    items: Iterable[Item], *, order: Callable[[Item], Any], costs: Callable[[Item], Sequence[float]]
) -> tuple[Item, ...]:
    """Those that no other one beats in several costs at once; of equal ones the first.

    Args:
        items: in any order
        order: sort key that starts with the first of the costs
        costs: the other costs of an item

    Returns:
        Ascending by `order`.

    Example:
        >>> front_of([(3, 1), (1, 2), (2, 2)], order=lambda one: one, costs=lambda one: one[1:])
        ((1, 2), (3, 1))
    """
    front: list[Item] = []
    kept: list[Sequence[float]] = []
    for item in sorted(items, key=order):
        mine = costs(item)
        if not any(all(theirs <= own for theirs, own in zip(other, mine, strict=True)) for other in kept):
            front.append(item)
            kept.append(mine)
    return tuple(front)


def largest_peak(candidate: Candidate) -> int:
    """Most bytes that live at once on any rank [bytes]."""
    return max(candidate.peak_bytes, default=0)


def is_plain(strategy: Strategy) -> bool:
    """Whether a strategy is one network on each device, with the whole of its share at once and default buckets."""
    return strategy.microbatches == 1 and _is_ordinary(strategy) and strategy.zero == 0


def is_reference(strategy: Strategy, *, devices: int) -> bool:
    """Whether a strategy is what people do without a plan.

    That is plain data parallelism on all devices, the same with everything sharded (FSDP2), one device, and data
    parallelism with a smaller local batch.

    Args:
        strategy: with or without boundaries
        devices: that there are

    Example:
        >>> [is_reference(Strategy(dp=2, microbatches=count), devices=2) for count in (1, 2, 4)]
        [True, True, False]
    """
    if not _is_ordinary(strategy) or strategy.zero not in (0, 3):
        return False
    if strategy.zero == 3 or strategy.microbatches == 2:
        return strategy.dp == devices > 1 and (strategy.microbatches == 1 or strategy.zero == 0)
    return strategy.microbatches == 1 and strategy.dp in (1, devices)


def _is_ordinary(strategy: Strategy) -> bool:
    """Whether whole networks run on whole devices, joined as libraries do it."""
    default = strategy.bucket_bytes == DEFAULT_BUCKET_BYTES and strategy.memory_bytes is None
    default = default and strategy.feeding == IN_LINE and strategy.compression is None
    return strategy.pp == 1 and strategy.tp == 1 and strategy.sync == "all-reduce" and not strategy.shards and default


def shown(
    candidates: Sequence[Candidate],
    *,
    always: Sequence[Candidate],
    front: Sequence[Candidate],
    rows: int = 12,
    each: int = 3,
) -> tuple[Candidate, ...]:
    """The candidates that a person should see.

    Those that must be there, then the front of time, memory and devices, then the best few of each family: one device,
    replicas, pipelines, placements, sharded operations or state, hybrids, compressed gradients.

    Args:
        candidates: all, best first
        always: the chosen one and the baselines
        front: not beaten in time, memory and devices
        rows: that there is room for
        each: most of a family

    Returns:
        In the order of `candidates`.
    """
    families: dict[tuple[bool, ...], list[Candidate]] = {}
    for candidate in candidates:
        families.setdefault(family(candidate.strategy), []).append(candidate)
    best = [members[place] for place in range(each) for members in families.values() if place < len(members)]
    kept: dict[int, Candidate] = {}
    for candidate in (*always, *front, *best):
        if len(kept) < rows or any(candidate is one for one in always):
            kept[id(candidate)] = candidate
    return tuple(candidate for candidate in candidates if id(candidate) in kept)


def family(strategy: Strategy) -> tuple[bool, ...]:
    """What strategies of one kind have in common, for tables: how they are spread, whatever their numbers.

    Example:
        >>> family(Strategy(dp=2)) == family(Strategy(dp=4, microbatches=2))
        True
    """
    return (
        strategy.dp > 1,
        strategy.pp > 1,
        strategy.tp > 1,
        bool(strategy.parts),
        strategy.zero > 0,
        bool(strategy.shards) and strategy.tp == 1,
        strategy.compression is not None,
    )
