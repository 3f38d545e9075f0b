"""Which of several simulated candidates to take, and which ones a person should see with it.

At one batch on the same devices, a target takes what a plan of that batch takes. Between batches and numbers of devices
it takes the smaller or simpler one within the uncertainty.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_args

from trimaran.base.units import format_seconds
from trimaran.planner.analytical.candidates import AnalyticalCandidate
from trimaran.planner.candidates import Candidate, Cases
from trimaran.planner.space import unfaithfulness
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES
from trimaran.program.strategy import IN_LINE, Schedule, Strategy

Item = TypeVar("Item")

# Error of the simulator as a share of a step where every cost is known.
MODEL_ERROR = 0.03


def simplicity(strategy: Strategy) -> tuple[int, ...]:
    """Sort key by which the simpler of two equally good strategies comes first.

    Synchronous strategies come before stale ones, and those with exact gradients before those with compression or a
    codec that rounds. One process is simpler than replicas, replicas are simpler than a pipeline or a placement, these
    than sharded operations, these than sequences or experts that ranks share, and each of them than a hybrid; then
    fewer devices, no memory plan before one, eager before
    compiled, whole sequences before split ones, whole state before sharded, sums everywhere before owners, the default
    buckets before others, fewer microbatches, stages before branches, GPipe before other orders, samples read each time
    before kept, fewer workers before more.
    """
    kinds = strategy.dp, strategy.pp, strategy.tp, strategy.cp, strategy.ep
    shape = sum((count > 1) << place for place, count in enumerate(kinds))
    return (
        strategy.is_stale,
        unfaithfulness(strategy.compression),
        strategy.codec is not None and not strategy.codec.is_exact,
        shape,
        strategy.devices,
        strategy.memory_bytes is not None or strategy.offload,
        strategy.execution != "eager",
        bool(strategy.shards) and strategy.tp == 1,
        bool(strategy.shards) and strategy.splits_sequences,
        strategy.zero,
        strategy.sync != "all-reduce",
        strategy.bucket_bytes != DEFAULT_BUCKET_BYTES,
        strategy.microbatches,
        bool(strategy.parts),
        strategy.chunks,
        get_args(Schedule).index(strategy.schedule),
        strategy.feeding.cached,
        strategy.feeding.workers,
    )


COARSE = 5
"""Entries of `simplicity` up to the number of devices, which come before all that is said of the rest."""

Option = Candidate | AnalyticalCandidate
"""A strategy with its simulated step, or with that of the analytical model."""

_SIMPLER = (
    "gradients of the weights that they update",
    "gradients that lose less",
    "nothing rounded on its way to the host",
    "simpler kinds of parallelism",
    "fewer devices",
    "no offload or recompute",
    "no compilation",
    "whole operations on each device",
    "whole sequences on each rank",
    "less of the state sharded",
    "the usual exchange of gradients",
    "the usual size of buckets",
    "fewer microbatches",
    "stages in place of branches",
    "fewer segments on a stage",
    "a simpler schedule",
    "samples that are not kept",
    "fewer workers",
)
"""The reason why a strategy is simpler, for each entry of `simplicity`."""


def what_is_simpler(strategy: Strategy, other: Strategy) -> str:
    """The reason why a strategy is simpler than another one, in a few words; empty where it is not.

    Example:
        >>> what_is_simpler(Strategy(dp=2), Strategy(dp=4)), what_is_simpler(Strategy(dp=2), Strategy())
        ('fewer devices', '')
    """
    for mine, theirs, words in zip(simplicity(strategy), simplicity(other), _SIMPLER, strict=True):
        if mine != theirs:
            return words if mine < theirs else ""
    return ""


def choose(candidates: Sequence[Candidate]) -> Candidate:
    """The fastest, unless it is believed faster than a simpler one only within the uncertainty.

    Costs measured on one machine err together, so two candidates are compared where all costs are low, where they are
    at their median, and where all are high. A simpler candidate wins if in one of the three it is not slower by more
    than `MODEL_ERROR`.

    Args:
        candidates: at least one
    """
    best = fastest(candidates)
    simplest = sorted(candidates, key=lambda candidate: (simplicity(candidate.strategy), candidate.objective_s))
    return next(one for one in simplest if one is best or may_be_as_fast(one.cases, best.cases))


def compared(other: Option, chosen: Option) -> tuple[str, str]:
    """The times of a plan and of the chosen one, with the training time where the number of samples differs.

    Args:
        other: the plan
        chosen: the plan to compare with

    Returns:
        Such as ("98.0 ms against 98.5 ms", ""), or with " to the target" where one needs more samples.
    """
    what = "" if chosen.epoch_s is None else " an epoch"
    figures = f"{format_seconds(other.time_s)} against {format_seconds(chosen.time_s)}{what}"
    if other.samples_factor == chosen.samples_factor:
        return figures, ""
    return f"{figures}, with {other.samples_factor / chosen.samples_factor:.3g} times the samples", " to the target"


def why_chosen(
    chosen: Option, faster: Option, *, candidates: Sequence[Option] = (), against: str = "", goal: str = ""
) -> str:
    """The rule by which a plan was chosen although another one is predicted to be faster, in one sentence.

    Args:
        chosen: the plan
        faster: predicted to be faster
        candidates: of the search that chose; none: no search did, the plan was given
        against: objection to the faster one, such as a pin; empty: none
        goal: objective over all batches; empty: the step
    """
    figures, where = compared(faster, chosen)
    name, than = faster.name, chosen.name
    share = 1.0 - faster.objective_s / chosen.objective_s
    best = min(candidates, key=lambda one: one.objective_s, default=faster)
    if against:
        reason = f"but it is ruled out by {against}"
    elif may_be_as_fast(chosen.cases, faster.cases):
        reason = "which is within the uncertainty"
        simpler = simpler_option(chosen, faster)
        if simpler or goal:
            reason += f", and {than} is chosen for {simpler or goal}"
    elif not candidates:
        reason = "beyond the uncertainty: plan again"
    elif goal:
        reason = f"and {than} is chosen for {goal}"
    elif all(one.name != faster.name for one in candidates):
        reason = "but the search does not try it: ask for it by its options"
    elif may_be_as_fast(chosen.cases, best.cases):
        reason = (
            f"but {than} may be as fast as the fastest, {best.name}, and is chosen for {simpler_option(chosen, best)}"
        )
    else:
        reason = f"but over all epochs, the first of which reads the samples, {than} may be as fast"
    digits = 0 if share >= 0.0095 else 1
    return f"{name} is predicted {100 * share:.{digits}f} % faster{where} ({figures}), {reason}."


def simpler_option(chosen: Option, other: Option) -> str:
    """`what_is_simpler` of two options; empty where the analytical model has priced one."""
    if isinstance(chosen, Candidate) and isinstance(other, Candidate):
        return what_is_simpler(chosen.strategy, other.strategy)
    return ""


def rule_of_choice(
    chosen: Option,
    candidates: Sequence[Option],
    *,
    references: Sequence[Option] = (),
    against: str = "",
    goal: str = "",
) -> str:
    """The rule that chose a plan over listed faster ones; empty where there are none.

    Args:
        chosen: by a search
        candidates: of the search
        references: baselines without a plan; those that are no candidates violate a pin
        against: objection to all faster ones; empty: none
        goal: objective over all batches; empty: the step
    """
    known = {one.name for one in candidates}
    faster = [one for one in candidates if one.objective_s < chosen.objective_s]
    barred = [one for one in references if one.name not in known and one.objective_s < chosen.objective_s]
    sentences = []
    for best, why in ((_best(faster), against), (_best(barred), against or "your options")):
        if best is not None:
            sentences.append(why_chosen(chosen, best, candidates=candidates, against=why, goal=goal))
    return " ".join(sentences)


def _best(options: Sequence[Option]) -> Option | None:
    return min(options, key=lambda one: one.objective_s, default=None)


GOALS = {
    "time": "the least time to the target",
    "cost": "the least cost to the target",
    "throughput": "the most samples a second over all batches",
}
"""The objective over all batches, where it is not a step."""


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


def largest_peak(candidate: Option) -> int:
    """Most bytes that live at once on any rank [bytes]."""
    return max(candidate.peak_bytes, default=0)


def is_plain(strategy: Strategy) -> bool:
    """Whether a strategy is one network on each device, with the whole of its share at once and default buckets."""
    return strategy.microbatches == 1 and _is_ordinary(strategy) and strategy.zero == 0


def is_reference(strategy: Strategy, *, devices: int) -> bool:
    """Whether a strategy is a baseline.

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
    candidates: Sequence[Option],
    *,
    always: Sequence[Option],
    front: Sequence[Option],
    rows: int = 12,
    each: int = 3,
) -> tuple[Option, ...]:
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
    families: dict[tuple[bool, ...], list[Option]] = {}
    for candidate in candidates:
        families.setdefault(family(candidate.strategy), []).append(candidate)
    best = [members[place] for place in range(each) for members in families.values() if place < len(members)]
    kept: dict[int, Option] = {}
    for candidate in (*always, *front, *best):
        if len(kept) < rows or any(candidate is one for one in always):
            kept[id(candidate)] = candidate
    return tuple(candidate for candidate in candidates if id(candidate) in kept)


def family(strategy: Strategy) -> tuple[bool, ...]:
    """The kind of a strategy for tables: its parallelism, without degrees.

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
