"""Good schedules of one problem in a given amount of work: annealing on coarse nodes, then on finer ones.

Work is counted in steps of the search, so that the answer does not depend on how fast the machine is; a deadline that
the user gives ends it all the same. Several searches with different seeds run at the same time.
"""

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from trimaran.base.system import allowed_cores
from trimaran.placement.annealing import Order, anneal, order_of, written_out
from trimaran.placement.bounds import least_s
from trimaran.placement.coarsening import Coarse, chains, neighbours
from trimaran.placement.list_scheduling import list_schedule
from trimaran.placement.problem import Flat
from trimaran.placement.schedule import NodeSchedule, lay, memory_of_all

SHARES = (1.0, 0.5, 0.25, 0.0)
"""Shares of edges that lists take to cross; HEFT's first."""

SMALL = 45
"""Nodes up to which a problem is annealed without coarsening it."""


LARGE = 1000
"""Nodes times pairs of devices beyond which a constraint program takes longer to set up than it is worth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchLimits:
    """How much may be spent.

    Attributes:
        deadline: moment at which all ends, by the monotonic clock; infinite: none is given [s]
        steps: steps that searches may take
        work: deterministic time that constraint programs may take together
        seed: of everything random
        searches: that run at the same time on a large problem
        compiled: whether the search is compiled, or there is the time for it
        fill: whether large problems take more steps where the deadline leaves the time for them
        notes: for the reader, added to
    """

    deadline: float
    steps: float
    work: float
    seed: int
    searches: int = 1
    compiled: bool = True
    fill: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        """Wall time that is left [s]."""
        return self.deadline - time.monotonic()

    def part_s(self, share: float) -> float:
        """Wall time for a part of the problem with such a share of the work, one part on each core [s]."""
        left_s = self.left_s
        return left_s if math.isinf(left_s) else max(0.1, min(left_s, allowed_cores() * share * left_s))

    def until(self, share: float) -> "SearchLimits":
        """The same, to be done in a share of the time that is left."""
        left_s = self.left_s
        return self if math.isinf(left_s) else replace(self, deadline=time.monotonic() + share * max(left_s, 0.0))

    def over(self) -> bool:
        """Whether the wall time is over."""
        return self.left_s <= 0.0


def lists(flat: Flat, limits: SearchLimits) -> list[NodeSchedule]:
    """Schedules by lists, that of HEFT first, and everything on one device.

    Args:
        flat: the problem
        limits: when their time is over, there is no list but HEFT's
    """
    found = [list_schedule(flat, share) for share in SHARES if share == SHARES[0] or not limits.over()]
    pinned = set(flat.pins.values()) or set(range(flat.devices))
    if len(pinned) == 1 or not flat.pins:
        order = [*range(flat.n), *reversed(range(flat.n, 2 * flat.n))]
        found.append(lay(flat, [min(pinned)] * flat.n, order))
    return found


def better(one: NodeSchedule, other: NodeSchedule | None) -> NodeSchedule:
    """The shorter of two schedules; the first where they are as long."""
    return other if other is not None and other.makespan_s < one.makespan_s else one


_SETTLED = 500_000
"""Steps for each node beyond which annealing what a constraint program looks at gains nothing."""

_COARSE = 250
"""Nodes that the coarsest problem has at most, where light nodes can be merged that far."""

_PIECES = 16
"""Groups that a device has at least: what is coarser cannot be divided well."""

_COLD = 3e-5
"""Temperature at the end, as a share of the makespan."""


def levels(flat: Flat) -> list[Coarse]:
    """Ever coarser problems, the finest first; each merges what is a chain, or light, in the one before."""
    found: list[Coarse] = []
    most_s = flat.serial_s / (_PIECES * flat.devices)
    coarse = chains(flat, most_s)
    if coarse.flat.n < 0.8 * flat.n:
        found.append(coarse)
    finer = coarse.flat if found else flat
    light_s = flat.serial_s / max(1, finer.n)
    while finer.n > _COARSE and light_s < most_s:
        coarse = neighbours(finer, light_s)
        if coarse.flat.n <= _COARSE or 1.5 * light_s >= most_s:
            found += [coarse] if coarse.flat.n < 0.8 * finer.n else []
            break
        light_s *= 1.5
    return found


def annealed(flat: Flat, start: NodeSchedule, limits: SearchLimits, *, cold: bool = False) -> NodeSchedule:
    """The best of several annealings, on groups first where there are many nodes.

    Args:
        flat: the problem
        start: a schedule
        limits: `steps` are spent
        cold: stay near the start, which is good already
    """
    if not limits.compiled or (limits.over() and flat.n > SMALL):
        return start
    steps = min(limits.steps, _SETTLED * flat.n)
    limits = replace(limits, fill=False)
    if cold:
        runs = [_cooled(flat, order_of(flat, start), limits, steps, hot=0.002, number=0)]
    elif flat.n <= SMALL:
        runs = [
            _cooled(
                flat, order_of(flat, start), limits, steps / _TIMES, hot=0.1, number=number, share=1 / (_TIMES - number)
            )
            for number in range(_TIMES)
        ]
    else:
        runs = [descent(flat, levels(flat), start, replace(limits, steps=steps))]
    return _best_of(flat, start, runs)


_TIMES = 3
"""Annealings of a small problem."""


def _best_of(flat: Flat, start: NodeSchedule, found: Sequence[tuple[Order, float]]) -> NodeSchedule:
    """The schedule of the shortest of some orders with the ends of their steps [s], or the start."""
    order, makespan_s = min(found, key=lambda one: one[1])
    return better(start, written_out(flat, order)) if makespan_s < start.makespan_s else start


def _cooled(
    flat: Flat, start: Order, limits: SearchLimits, steps: float, *, hot: float, number: int, share: float = 1.0
) -> tuple[Order, float]:
    """One annealing from hot to cold, in a share of the time that is left; an order, and the end of its step [s]."""
    until = math.inf if math.isinf(limits.deadline) else time.monotonic() + share * max(0.0, limits.left_s)
    goal_s = least_s(flat) * (1 + 1e-9)
    seed = limits.seed * 1009 + number
    return anneal(
        flat, start, steps=steps, seed=seed, hot=hot, cold=_COLD, until=until, fill=limits.fill, goal_s=goal_s
    )


def descent(
    flat: Flat, coarser: Sequence[Coarse], start: NodeSchedule, limits: SearchLimits, *, programmed: bool = False
) -> tuple[Order, float]:
    """Anneal the coarsest problem, then each finer one from what came out, less hot.

    Args:
        flat: the problem
        coarser: as `levels` gives them
        start: a schedule of the problem, from which it is annealed where nothing is coarser
        limits: `steps` are spent
        programmed: whether a constraint program looks at the coarsest problem in between

    Returns:
        An order, and the end of its step [s].
    """
    if not coarser:
        return _cooled(flat, order_of(flat, start), limits, limits.steps, hot=0.05, number=0)
    coarsest = coarser[-1].flat
    listed = order_of(coarsest, min(lists(coarsest, limits), key=lambda one: one.makespan_s))
    found = _cooled(coarsest, listed, limits, 0.5 * limits.steps, hot=0.1, number=0, share=0.5)
    if programmed and not limits.over():
        found = _programmed(coarsest, *found, limits)
    hot, left = 0.01, 0.5 * limits.steps
    for number, coarse in reversed(list(enumerate(coarser))):
        order = Order(on=coarse.devices(found[0].on), tasks=coarse.sequence(found[0].tasks))
        turn = len(coarser) - number
        if number:
            found = _cooled(coarser[number - 1].flat, order, limits, 0.5 * left, hot=hot, number=turn, share=0.5)
        else:
            found = _cooled(flat, order, limits, left, hot=0.001, number=turn)
        hot, left = 0.1 * hot, 0.5 * left
    return found


_PROGRAM_SIZE = 1500
"""Groups times pairs of devices up to which a constraint program looks at the coarsest problem."""

_PROGRAM = 0.2
"""Share of the time that is left, or of the work, that a constraint program of the coarsest problem gets."""


def _programmed(coarsest: Flat, order: Order, makespan_s: float, limits: SearchLimits) -> tuple[Order, float]:
    """What a constraint program makes of an order of the coarsest problem, with the end of its step [s]."""
    from trimaran.placement import exact  # brings a solver that takes a second to import

    if coarsest.n * coarsest.devices**2 > _PROGRAM_SIZE:
        return order, makespan_s
    wall_s = limits.left_s if math.isinf(limits.left_s) else _PROGRAM * limits.left_s
    proof = exact.solve(
        coarsest,
        written_out(coarsest, order),
        wall_s=wall_s,
        work=_PROGRAM * limits.work,
        seed=limits.seed,
        deadline=limits.deadline,
    )
    if proof.layout is not None and proof.layout.makespan_s < makespan_s:
        order, makespan_s = order_of(coarsest, proof.layout), proof.layout.makespan_s
    least = max(proof.bound_s, least_s(coarsest))
    limits.notes.append(
        f"merged into {coarsest.n} groups, the operations take {makespan_s * 1e3:.6g} ms, and at least "
        f"{least * 1e3:.6g} ms by the constraint program of the groups"
    )
    return order, makespan_s


def searched(flat: Flat, start: NodeSchedule, limits: SearchLimits, pool: ThreadPoolExecutor) -> NodeSchedule:
    """The best of several descents; one has a constraint program of the coarsest problem on its way.

    Args:
        flat: the problem
        start: a schedule
        limits: `steps` are spent by all together
        pool: runs them at the same time
    """
    if not limits.compiled or limits.over():
        return start
    coarser = levels(flat)
    steps = limits.steps / limits.searches
    runs = [
        pool.submit(
            descent,
            flat,
            coarser,
            start,
            replace(limits, steps=steps, seed=limits.seed * limits.searches + number),
            programmed=number == 0,
        )
        for number in range(limits.searches)
    ]
    return _best_of(flat, start, [run.result() for run in runs])


def squeezed(flat: Flat, starts: Sequence[NodeSchedule], limits: SearchLimits) -> list[NodeSchedule]:
    """Schedules found by annealing in which memory that is not there costs time.

    Args:
        flat: the problem
        starts: some schedules
        limits: `steps` are spent
    """
    if not limits.compiled:
        return []
    total = memory_of_all(flat)
    price = 4.0 * flat.serial_s / total if total > 0 else 0.0
    found = []
    unlike = {tuple(start.on): start for start in starts}
    for number, start in enumerate(unlike.values()):
        order, _ = anneal(
            flat,
            order_of(flat, start),
            steps=min(limits.steps / len(unlike), _SETTLED * flat.n),
            seed=limits.seed + number,
            hot=0.1,
            cold=_COLD,
            until=limits.deadline,
            price=price,
            fine=0.02 * flat.serial_s,
        )
        found.append(written_out(flat, order))
    return found
