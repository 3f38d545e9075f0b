"""Good schedules of one problem in a given amount of work: annealing on coarse and fine nodes.

Work is counted in tasks that the decoder goes through, so that the answer does not depend on how fast the machine is;
a deadline that the user gives ends it all the same.

Fewer nodes: runs of a chain become one, branches stay.

Two neighbours of a chain (the one is read by the other only, which reads nothing else) can be joined without making a
cycle. `units` joins a heavy operation with the lighter ones that follow it: a convolution, its norm and activation. A
schedule of the coarse problem is one of the fine problem: members run one after another, and what crosses is the output
of the last.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trimaran.planner.placement.annealing import anneal
from trimaran.planner.placement.list_scheduling import list_schedule
from trimaran.planner.placement.problem import Flat
from trimaran.planner.placement.schedule import Layout, lay, memory_of_all, overflow


def units(flat: Flat) -> list[list[int]]:
    """Groups of a heavy operation with the lighter ones that follow it in its chain."""
    return _groups(flat, light=0.5)


def _groups(flat: Flat, light: float) -> list[list[int]]:
    """Groups of chains, in which each member takes at most the share `light` of the heaviest before it."""
    work = [forward + backward for forward, backward in zip(flat.forward, flat.backward, strict=True)]
    group_of: dict[int, list[int]] = {}
    heaviest: dict[int, float] = {}
    groups = []
    for node in range(flat.n):
        reads = flat.reads[node]
        if len(reads) == 1 and len(flat.read_by[reads[0]]) == 1 and flat.pins.get(node) == flat.pins.get(reads[0]):
            group = group_of[reads[0]]
            if work[node] <= light * heaviest[group[0]]:
                group.append(node)
                group_of[node] = group
                heaviest[group[0]] = max(heaviest[group[0]], work[node])
                continue
        group_of[node] = [node]
        heaviest[node] = work[node]
        groups.append(group_of[node])
    return groups


def contract(flat: Flat, groups: Sequence[Sequence[int]]) -> Flat:
    """The problem in which each group is a node.

    Args:
        flat: the fine problem
        groups: of nodes; each a run of a chain
    """
    # A group has the place of its last member: its inputs come before its first, its readers after its last.
    owner = {node: number for number, group in enumerate(groups) for node in group}
    reads = [[owner[producer] for producer in flat.reads[group[0]]] for group in groups]
    read_by: list[list[int]] = [[] for _ in groups]
    for number, producers in enumerate(reads):
        for producer in producers:
            read_by[producer].append(number)
    return Flat(
        n=len(groups),
        devices=flat.devices,
        forward=[sum(flat.forward[node] for node in group) for group in groups],
        backward=[sum(flat.backward[node] for node in group) for group in groups],
        out_bytes=[flat.out_bytes[group[-1]] for group in groups],
        grad_bytes=[flat.grad_bytes[group[-1]] for group in groups],
        held=[sum(flat.held[node] for node in group) for group in groups],
        state=[sum(flat.state[node] for node in group) for group in groups],
        reads=reads,
        read_by=read_by,
        memory=flat.memory,
        wires=flat.wires,
        links=flat.links,
        ways=flat.ways,
        pins={number: flat.pins[group[0]] for number, group in enumerate(groups) if group[0] in flat.pins},
    )


def expand(flat: Flat, groups: Sequence[Sequence[int]], coarse: Flat, layout: Layout) -> Layout:
    """The schedule of the fine problem that a schedule of the coarse one means."""
    on = [0] * flat.n
    for number, group in enumerate(groups):
        for node in group:
            on[node] = layout.on[number]
    order: list[int] = []
    for item in layout.order:
        if item < coarse.n:
            order.extend(groups[item])
        elif item < 2 * coarse.n:
            order.extend(flat.n + node for node in reversed(groups[item - coarse.n]))
        else:
            kind, rest = divmod(item - 2 * coarse.n, coarse.n * flat.devices)
            number, device = divmod(rest, flat.devices)
            order.append(2 * flat.n + kind * flat.n * flat.devices + groups[number][-1] * flat.devices + device)
    return lay(flat, on, order)


SHARES = (1.0, 0.5, 0.25, 0.0)
"""Shares of edges that lists take to cross; HEFT's first."""

SMALL = 45
"""Nodes up to which a problem is annealed without coarsening it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much may be spent.

    Attributes:
        deadline: moment at which all ends, by the monotonic clock; infinite: none is given [s]
        steps: tasks that decoders may go through
        work: deterministic time that constraint programs may take together
        seed: of everything random
    """

    deadline: float
    steps: float
    work: float
    seed: int

    @property
    def left_s(self) -> float:
        """Wall time that is left [s]."""
        return self.deadline - time.monotonic()

    def part_s(self, share: float) -> float:
        """Wall time for a part of the problem with such a share of the work [s]."""
        left_s = self.left_s
        return left_s if math.isinf(left_s) else max(0.1, min(left_s, 4.0 * share * left_s))

    def halved(self) -> "Limits":
        """Half of the steps, and of the time that is left."""
        left_s = self.left_s
        deadline = self.deadline if math.isinf(left_s) else self.deadline - 0.5 * max(left_s, 0.0)
        return replace(self, steps=0.5 * self.steps, deadline=deadline)

    def over(self) -> bool:
        """Whether the wall time is over."""
        return self.left_s <= 0.0


def lists(flat: Flat, limits: Limits) -> list[Layout]:
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


def better(one: Layout, other: Layout | None) -> Layout:
    """The shorter of two schedules; the first where they are as long."""
    return other if other is not None and other.makespan_s < one.makespan_s else one


def annealed(flat: Flat, start: Layout, limits: Limits, *, cold: bool = False) -> Layout:
    """The best of several annealings, on groups first where there are many nodes.

    Args:
        flat: the problem
        start: a schedule
        limits: `steps` are spent
        cold: stay near the start, which is good already
    """
    if cold:
        return _restarted(flat, start, limits, limits.steps, hot=0.005, most=2)
    if flat.n <= SMALL:
        return _restarted(flat, start, limits, limits.steps, hot=0.1)
    groups = units(flat)
    best = start
    if len(groups) < 0.8 * flat.n:
        coarse = contract(flat, groups)
        first = min(lists(coarse, limits), key=lambda one: one.makespan_s)
        found = expand(flat, groups, coarse, _restarted(coarse, first, limits, 0.5 * limits.steps, hot=0.1))
        best = min(best, found, key=lambda one: one.makespan_s)
    else:
        best = _restarted(flat, best, limits, 0.5 * limits.steps, hot=0.1)
    return _restarted(flat, best, limits, 0.5 * limits.steps, hot=0.01, most=2)


def _restarted(flat: Flat, start: Layout, limits: Limits, steps: float, *, hot: float, most: int = 6) -> Layout:
    """The best of annealings from one start, each with enough moves to settle."""
    moves = int(steps / (2 * flat.n))
    times = max(1, min(most, moves // (240 * flat.n)))
    best = start
    for number in range(times):
        found = anneal(
            flat,
            start,
            moves=moves // times,
            seed=limits.seed * 1009 + number,
            hot=hot,
            cold=0.0005,
            stop=limits.over,
        )
        best = min(best, found, key=lambda one: one.makespan_s)
        if limits.over():
            break
    return best


def squeezed(flat: Flat, starts: Sequence[Layout], limits: Limits) -> list[Layout]:
    """Schedules found by annealing in which memory that is not there costs time.

    Args:
        flat: the problem
        starts: some schedules
        limits: `steps` are spent
    """
    total = memory_of_all(flat)
    price = 4.0 * flat.serial_s / total if total > 0 else 0.0
    found = []
    unlike = {tuple(start.on): start for start in starts}
    for number, start in enumerate(unlike.values()):
        moves = int(limits.steps / (3 * flat.n * len(unlike)))
        found.append(
            anneal(
                flat,
                start,
                moves=moves,
                seed=limits.seed + number,
                hot=0.1,
                cold=0.0005,
                stop=limits.over,
                extra=lambda on: _price(price, overflow(flat, on), flat),
            )
        )
    return found


def _price(price: float, over: float, flat: Flat) -> float:
    """Seconds for bytes that are not there; something even for one."""
    return price * over + 0.02 * flat.serial_s if over > 0 else 0.0
