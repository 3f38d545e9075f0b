"""A problem solved stage by stage: each is annealed and then a constraint program, several stages at the same time.

Where all devices and wires are alike, a stage does not care on which device it begins: each is solved with its entry on
device 0, with a free exit, and put on the devices that follow from the stage before. Otherwise stages are solved in
order, each from the device on which the one before ended, and a bound of one stage is no bound of the whole.

Where a network narrows to one operation, its placement falls apart into independent stages.

A node that comes before or after every other one, and that no edge passes by (the join at the end of an Inception
module), is a waist: when its forward ends, every forward before it has ended and no other has begun; its backward is
likewise a moment at which everything after it is done. All that two stages share is where the waist is. So

    makespan = sum over stages of stage(device of its entry, device of its exit)
             + forward of the first waist's stage ...      each waist's forward counted with the stage that it ends,
                                                           its backward with the stage that it begins

and the best placement is a shortest way over the waists' devices. A bound of every stage gives a bound of the whole in
the same way. This leaves out memory, which stages share: where it may bind, the answer is checked as a whole.
"""

import itertools
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from trimaran.placement.bounds import least_s
from trimaran.placement.list_scheduling import Filling
from trimaran.placement.problem import Flat
from trimaran.placement.schedule import NodeSchedule, lay
from trimaran.placement.search import LARGE, SMALL, SearchLimits, annealed, better, lists, searched


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementStage:
    """The nodes from one waist to the next, both included.

    Attributes:
        first: number of the entry, or of the first node of the network
        last: number of the exit, or of the last node
        entry: the first node is a waist, whose forward belongs to the stage before
        exit: the last node is a waist, whose backward belongs to the stage after
    """

    first: int
    last: int
    entry: bool
    exit: bool


def side_nodes(flat: Flat, share: float) -> list[int]:
    """Nodes of little work without which the network has more waists, such as an auxiliary classifier.

    Leaving them out gives a problem whose bound is one of the whole; they are put back into its schedule.

    Args:
        flat: the problem
        share: most of the work that they may have together
    """
    work = [forward + backward for forward, backward in zip(flat.forward, flat.backward, strict=True)]
    most = share * sum(work)
    parallel = _parallel_to(flat)
    # A lower bound on the work of a number of nodes: for most masks it decides without reading their bits.
    least = [0.0, *itertools.accumulate(sorted(work))]
    few = [(node, mask) for node, mask in enumerate(parallel) if mask and least[mask.bit_count()] <= most]
    weights = {node: sum(work[other] for other in _bits(mask)) for node, mask in few}
    dropped = kept = 0
    for node in sorted(weights, key=lambda node: (weights[node], node)):
        if weights[node] > most or dropped >> node & 1:
            continue
        wider = dropped | parallel[node]
        if not wider & (kept | 1 << node) and sum(work[other] for other in _bits(wider)) <= most:
            dropped, kept = wider, kept | 1 << node
    return _bits(dropped)


def without(flat: Flat, dropped: list[int]) -> tuple[Flat, list[int]]:
    """The problem with some nodes left out, and the number in the whole of each node that stays."""
    gone = set(dropped)
    kept = [node for node in range(flat.n) if node not in gone]
    return flat.part(kept, flat.pins), kept


def waists(flat: Flat) -> list[int]:
    """Nodes that come before or after every other node and that no edge passes by, in order."""
    passed = [0] * (flat.n + 1)
    for node in range(flat.n):
        reach = max(flat.read_by[node], default=node)
        if reach > node + 1:
            passed[node + 1] += 1
            passed[reach] -= 1
    over = list(itertools.accumulate(passed))
    return [node for node, mask in enumerate(_parallel_to(flat)) if not mask and not over[node]]


def _bits(mask: int) -> list[int]:
    """Positions of the ones of a mask."""
    digits = f"{mask:b}"[::-1]
    found = []
    position = digits.find("1")
    while position >= 0:
        found.append(position)
        position = digits.find("1", position + 1)
    return found


def _parallel_to(flat: Flat) -> list[int]:
    """For each node, as a mask, those that come neither before nor after it."""
    after = [0] * flat.n
    for node in reversed(range(flat.n)):
        mask = 0
        for reader in flat.read_by[node]:
            mask |= after[reader] | 1 << reader
        after[node] = mask
    before = [0] * flat.n
    for node in range(flat.n):
        mask = 0
        for producer in flat.reads[node]:
            mask |= before[producer] | 1 << producer
        before[node] = mask
    whole = (1 << flat.n) - 1
    return [whole & ~(before[node] | after[node] | 1 << node) for node in range(flat.n)]


def stages(flat: Flat) -> list[PlacementStage]:
    """The network split at its waists."""
    narrow = waists(flat)
    if not narrow or flat.n == 1:
        return [PlacementStage(first=0, last=flat.n - 1, entry=False, exit=False)]
    parts = []
    if narrow[0] > 0:
        parts.append(PlacementStage(first=0, last=narrow[0], entry=False, exit=True))
    parts.extend(PlacementStage(first=a, last=b, entry=True, exit=True) for a, b in itertools.pairwise(narrow))
    if narrow[-1] < flat.n - 1:
        parts.append(PlacementStage(first=narrow[-1], last=flat.n - 1, entry=True, exit=False))
    return parts


def flat_of(flat: Flat, stage: PlacementStage, pins: dict[int, int]) -> Flat:
    """The problem of one stage alone.

    Args:
        flat: the whole problem
        stage: which nodes
        pins: devices of its ends, by their numbers in the whole problem
    """
    part = flat.part(range(stage.first, stage.last + 1), flat.pins | pins)
    if stage.entry:
        part.forward[0] = 0.0
    if stage.exit:
        part.backward[-1] = 0.0
    return part


# ---------------------------------------------------------------------------------------------------------------------
# The schedules of stages as one schedule, and side nodes put back into it


def swapped(flat: Flat, layout: NodeSchedule, one: int, other: int) -> NodeSchedule:
    """The same schedule with two devices exchanged, on a machine where all are alike."""
    if one == other:
        return layout
    new = {one: other, other: one}
    n, devices = flat.n, flat.devices

    def moved(item: int) -> int:
        if item < 2 * n:
            return item
        device = (item - 2 * n) % devices
        return item - device + new.get(device, device)

    return lay(flat, [new.get(device, device) for device in layout.on], [moved(item) for item in layout.order])


def joined(flat: Flat, parts: Sequence[tuple[PlacementStage, Flat, NodeSchedule]]) -> NodeSchedule:
    """Stages one after another: forwards in order, backwards in reverse.

    Args:
        flat: the whole problem
        parts: each stage with its problem and its schedule, whose entry is where the stage before has its exit
    """
    on = [0] * flat.n
    order: list[int] = []
    backwards: list[list[int]] = []
    if parts[0][0].entry:
        order.append(parts[0][0].first)
    for stage, part, layout in parts:
        for node in range(part.n):
            on[stage.first + node] = layout.on[node]
        items = [_global(flat, part, stage, item) for item in layout.order]
        turn, entry = flat.n + stage.last, stage.first
        at = items.index(turn) if stage.exit else len(items)
        order += [item for item in items[:at] if not (stage.entry and item == entry)]
        backwards.append([item for item in items[at:] if item != turn])
    if parts[-1][0].exit:
        order.append(flat.n + parts[-1][0].last)
    for items in reversed(backwards):
        order += items
    return lay(flat, on, order)


def _global(flat: Flat, part: Flat, stage: PlacementStage, item: int) -> int:
    """An item of a stage by its number in the whole problem."""
    devices = flat.devices
    if item < part.n:
        return stage.first + item
    if item < 2 * part.n:
        return flat.n + stage.first + item - part.n
    kind, rest = divmod(item - 2 * part.n, part.n * devices)
    return 2 * flat.n + kind * flat.n * devices + stage.first * devices + rest


def put_back(flat: Flat, layout: NodeSchedule, kept: Sequence[int], part: Flat, dropped: Sequence[int]) -> NodeSchedule:
    """The whole problem's schedule from one that leaves out some nodes.

    Each connected group of them runs as soon as it can, or in the gaps that all others leave, on the device on which
    the step ends first; all in gaps, each with a node that it reads or that reads it, where there are many to try.
    """
    n = flat.n
    on = [-1] * n
    for index, node in enumerate(kept):
        on[node] = layout.on[index]
    tasks = [kept[item] if item < part.n else n + kept[item - part.n] for item in layout.order if item < 2 * part.n]
    groups = _groups(flat, dropped)
    for group in groups:
        pinned = next((flat.pins[node] for node in group if node in flat.pins), None)
        if len(groups) * n > _TRIED:
            near = (on[other] for node in group for other in (*flat.reads[node], *flat.read_by[node]) if on[other] >= 0)
            tasks, device = _inserted(flat, tasks, group, late=True), next(near, 0) if pinned is None else pinned
        else:
            found = []
            for late in (False, True):
                listed = _inserted(flat, tasks, group, late=late)
                for device in range(flat.devices) if pinned is None else (pinned,):
                    for node in group:
                        on[node] = device
                    found.append((_filled(flat, on, listed).makespan_s, device, listed))
            _, device, tasks = min(found)
        for node in group:
            on[node] = device
    return _filled(flat, on, tasks)


_TRIED = 2000
"""Groups times nodes up to which each device is tried for each group."""


def _groups(flat: Flat, nodes: Sequence[int]) -> list[list[int]]:
    """Nodes that are joined by edges, together."""
    left = set(nodes)
    groups = []
    for node in nodes:
        if node not in left:
            continue
        left.discard(node)
        group, waiting = [], [node]
        while waiting:
            found = waiting.pop()
            group.append(found)
            near = [other for other in (*flat.reads[found], *flat.read_by[found]) if other in left]
            left.difference_update(near)
            waiting.extend(near)
        groups.append(sorted(group))
    return groups


def _inserted(flat: Flat, tasks: Sequence[int], group: Sequence[int], *, late: bool) -> list[int]:
    """The sequence with the forwards and backwards of a group as early, or as late, as they can be listed."""
    n = flat.n
    found = list(tasks)
    if late:
        for node in group:
            at = min((found.index(n + other) for other in flat.reads[node] if n + other in found), default=len(found))
            found.insert(at, n + node)
        for node in reversed(group):
            needs = [n + node, *flat.read_by[node]]
            found.insert(min(found.index(task) for task in needs if task in found), node)
        return found
    for node in group:
        at = max((found.index(producer) for producer in flat.reads[node] if producer in found), default=-1)
        found.insert(at + 1, node)
    for node in reversed(group):
        needs = [node, *(n + reader for reader in flat.read_by[node])]
        at = max(found.index(task) for task in needs if task in found)
        found.insert(at + 1, n + node)
    return found


def _filled(flat: Flat, on: Sequence[int], tasks: Sequence[int]) -> NodeSchedule:
    """The schedule of a sequence; tasks that are not placed yet are skipped."""
    filling = Filling(flat, [max(device, 0) for device in on])
    for task in _ordered(flat, tasks):
        filling.put(task, filling.on[task % flat.n])
    return filling.done()


def _ordered(flat: Flat, tasks: Sequence[int]) -> list[int]:
    """All tasks in the given order, each moved behind its inputs; missing ones where they first can be."""
    n = flat.n
    place = {task: index for index, task in enumerate(tasks)}
    done: set[int] = set()
    order: list[int] = []

    def needs(task: int) -> list[int]:
        if task < n:
            return flat.reads[task]
        return [task - n, *(n + reader for reader in flat.read_by[task - n])]

    def visit(task: int) -> None:
        stack = [task]
        while stack:
            top = stack[-1]
            missing = [other for other in needs(top) if other not in done]
            if missing:
                stack.extend(sorted(missing, key=lambda other: place.get(other, 2 * n), reverse=True))
                continue
            stack.pop()
            if top not in done:
                done.add(top)
                order.append(top)

    for task in (*tasks, *range(2 * n)):
        if task not in done:
            visit(task)
    return order


_FEW = 20
"""Nodes up to which nothing is left out to find waists."""

_ASIDE = (0.03, 0.1)
"""Shares of the work that side branches may have together: the least for which a stage falls apart. What is left out
is missing from the bound."""

_APART = 0.75
"""Share of the nodes that the largest stage may keep for side branches to be left out: else nothing falls apart, and
leaving out again what is on the side of the rest would go on nearly for ever."""


@dataclass(slots=True, kw_only=True)
class _Work:
    """One stage under way.

    Attributes:
        stage: which nodes
        part: its problem
        layout: the best schedule so far
        bound_s: no schedule of it is shorter [s]
        found: what looks at it, with the schedule and the bound that it finds
    """

    stage: PlacementStage
    part: Flat
    layout: NodeSchedule
    bound_s: float
    found: "Future[tuple[NodeSchedule, float]] | None" = field(default=None)

    @property
    def gap_s(self) -> float:
        """Largest possible gain [s]."""
        return self.layout.makespan_s - self.bound_s


def alike(flat: Flat) -> bool:
    """Whether devices can be exchanged for each other."""
    ways = list(flat.wires.values())
    pairs = flat.devices * (flat.devices - 1)
    names = [link for wire in ways for link in wire.links]
    return (
        (not flat.pins or flat.pins == {0: 0})
        and len(ways) == pairs
        and len({(wire.bytes_per_s, wire.latency_s, len(wire.links)) for wire in ways}) == 1
        and len(names) == len(set(names))
    )


def by_stages(
    flat: Flat,
    split: Sequence[PlacementStage],
    limits: SearchLimits,
    gap: float,
    pool: ThreadPoolExecutor,
    *,
    first: NodeSchedule | None = None,
) -> tuple[NodeSchedule, list[float]]:
    """The stages of a problem one after another, with bounds of the first entry, of each stage and of the last exit.

    The sum of the bounds is one of the whole [s].

    Args:
        flat: the problem
        split: its stages
        limits: of time and steps
        gap: stop a stage once it is within this share of its bound
        pool: runs what can run at the same time
        first: a schedule of the whole problem, if there is one; a stage that is all of it starts there
    """
    if not alike(flat):
        return _in_order(flat, split, limits, gap, pool, first)
    works = []
    for stage in split:
        part = flat_of(flat, stage, {stage.first: 0} if stage.entry else {})
        works.append(_Work(stage=stage, part=part, layout=_listed(part, limits, first), bound_s=least_s(part)))
    shares = _shares([work.part for work in works])
    # Small stages first: a constraint program ends them in a moment, and what they leave goes to the others.
    left = 1.0
    for work, share in sorted(zip(works, shares, strict=True), key=lambda pair: pair[1]):
        _begin(work, limits, share, gap, pool, of_time=min(1.0, share / left) if share else 0.0)
        left = max(left - share, 1e-9)
    for work in works:
        _finish(work)
    _again(works, limits, gap, pool)
    device = 0
    chain = []
    for work in works:
        layout = swapped(work.part, work.layout, 0, device)
        chain.append((work.stage, work.part, layout))
        device = layout.on[-1]
    return joined(flat, chain), with_ends(flat, split, [work.bound_s for work in works])


def with_ends(flat: Flat, split: Sequence[PlacementStage], bounds: Sequence[float]) -> list[float]:
    """Times of stages, with the forward of the first entry before them and the backward of the last exit behind [s]."""
    entry = flat.forward[0] if split[0].entry else 0.0
    leaves = flat.backward[-1] if split[-1].exit else 0.0
    return [entry, *bounds, leaves]


def _listed(part: Flat, limits: SearchLimits, first: NodeSchedule | None) -> NodeSchedule:
    """A schedule to start a stage from: the best of its lists; of a stage that is the whole problem, the one given."""
    if first is None or len(first.on) > part.n:
        return min(lists(part, limits), key=lambda one: one.makespan_s)
    moved = swapped(part, first, first.on[0], part.pins.get(0, first.on[0]))
    return lay(part, moved.on, moved.order)


def _shares(parts: Sequence[Flat]) -> list[float]:
    """The share of the work that each stage gets: large ones get more than in proportion; edges are soft."""
    weights = [float(part.n) ** 1.3 if part.n > 2 else 0.0 for part in parts]
    total = sum(weights) or 1.0
    return [weight / total for weight in weights]


def _begin(
    work: _Work, limits: SearchLimits, share: float, gap: float, pool: ThreadPoolExecutor, *, of_time: float
) -> None:
    """Set an annealing and a constraint program on a stage.

    Args:
        work: the stage
        limits: of all stages
        share: of the work that it gets
        gap: stop once it is within this share of its bound
        pool: runs what can run at the same time
        of_time: share of the time that is left, where the stage is so large that it has all cores to itself
    """
    part = work.part
    if work.gap_s <= 1e-9 * work.bound_s or (limits.over() and part.n > SMALL):
        return
    large = part.n * part.devices**2 > LARGE
    of_work = share if large else _FIRST * share
    own = replace(limits, steps=of_work * limits.steps, work=of_work * limits.work)
    own = own.until(of_time) if large else own
    core = _core_of(part)
    if core is not None:
        of_core = _OF_CORE if large else 0.7
        inner = replace(own, steps=of_core * own.steps, work=0.8 * own.work).until(of_core if large else 1.0)
        found, least = by_stages(core.part, core.split, inner, gap, pool)
        work.bound_s = max(work.bound_s, filled_up(part, core, least))
        work.layout = better(work.layout, put_back(part, found, core.kept, core.part, core.dropped))
        own = replace(own, steps=(1 - of_core) * own.steps, work=0.2 * own.work)
    if large:
        start = work.layout
        if core is not None:
            settled = replace(own, steps=_SETTLING * own.steps, searches=1).until(_SETTLING)
            work.layout = better(work.layout, annealed(part, work.layout, settled, cold=True))
            own = replace(own, steps=(1 - _SETTLING) * own.steps)
        work.layout = better(work.layout, searched(part, start, own, pool))
        return
    work.found = pool.submit(_solved, work, own, _FIRST * share, gap, cold=core is not None)


_OF_CORE = 0.4
"""Share of the work on a large stage that its core gets, which also gives a bound; the rest is spent on all of it."""

_SETTLING = 0.2
"""Share of what is then left that anneals the schedule of the core with its side nodes."""

_FIRST = 0.6
"""Share of the work that the first round over the stages gets; the second has the rest."""


def _solved(work: _Work, limits: SearchLimits, share: float, gap: float, *, cold: bool) -> tuple[NodeSchedule, float]:
    """A stage annealed, and then a constraint program of it where it is small enough; with a bound [s]."""
    part = work.part
    layout = annealed(part, work.layout, limits, cold=cold)
    if part.n * part.devices**2 > LARGE or layout.makespan_s <= work.bound_s * (1 + 1e-9):
        return layout, work.bound_s
    from trimaran.placement import exact  # brings a solver that takes a second to import

    proof = exact.solve(
        part,
        layout,
        wall_s=limits.part_s(share),
        work=limits.work,
        seed=limits.seed,
        gap=gap,
        deadline=limits.deadline,
    )
    return better(layout, proof.layout), max(work.bound_s, proof.bound_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Core:
    """A stage without side branches that kept it from falling apart.

    Attributes:
        part: the problem that is left
        kept: the number in the stage of each of its nodes
        split: its stages
        dropped: numbers of the nodes that are left out
    """

    part: Flat
    kept: list[int]
    split: list[PlacementStage]
    dropped: list[int]


def _core_of(stage: Flat) -> Core | None:
    """A stage without its side branches; None where it has none, or most of it would still be one stage."""
    tried: list[int] = []
    for share in _ASIDE if stage.n > _FEW else ():
        dropped = side_nodes(stage, share)
        if dropped == tried:
            continue
        tried = dropped
        part, kept = without(stage, dropped)
        split = stages(part)
        if max(inner.last - inner.first for inner in split) <= _APART * stage.n:
            return Core(part=part, kept=kept, split=split, dropped=dropped)
    return None


def filled_up(stage: Flat, core: Core, bounds: Sequence[float]) -> float:
    """A bound of a stage from bounds of the stages of its core [s].

    Waists divide the time into that of each stage of the core. A side node runs in those between the last waist that it
    needs and the first that needs it. In each, devices have nothing to do for as long as the bound is above its work;
    what does not fit there takes more time, on all devices at once. The first side nodes that must be done are
    filled in first, which leaves the least.

    Args:
        stage: the problem
        core: what it is without its side nodes
        bounds: of the core's first entry, of its stages, and of its last exit [s]
    """
    devices, split, part = stage.devices, core.split, core.part
    works = with_ends(part, split, [flat_of(part, inner, {}).serial_s for inner in split])
    # Places of the stages among `works`; a waist ends the one before it and begins the one after it.
    ends = {core.kept[inner.last]: place for place, inner in enumerate(split, 1) if inner.exit}
    if split[0].entry:
        ends[core.kept[split[0].first]] = 0
    first = [0] * stage.n
    last = [len(works) - 1] * stage.n
    for node in range(stage.n):
        first[node] = max(
            (ends[other] + 1 if other in ends else first[other] for other in stage.reads[node]), default=0
        )
    for node in reversed(range(stage.n)):
        last[node] = min((ends.get(other, last[other]) for other in stage.read_by[node]), default=len(works) - 1)
    left = sorted((last[node], first[node], stage.forward[node] + stage.backward[node]) for node in core.dropped)
    over_s = 0.0
    for place, (least, work) in enumerate(zip(bounds, works, strict=True)):
        free_s = max(0.0, devices * least - work)
        waiting = []
        for until, since, seconds in left:
            taken_s = min(free_s, seconds) if since <= place else 0.0
            free_s -= taken_s
            if until == place:
                over_s += seconds - taken_s
            elif seconds > taken_s:
                waiting.append((until, since, seconds - taken_s))
        left = waiting
    return sum(bounds) + over_s / devices


def _finish(work: _Work) -> None:
    """Take over what was found."""
    if work.found is not None:
        work.layout, work.bound_s = work.found.result()
        work.found = None


def _again(works: Sequence[_Work], limits: SearchLimits, gap: float, pool: ThreadPoolExecutor) -> None:
    """A second round for the stages in which most may be left to win."""
    rest = sum(work.gap_s for work in works)
    if rest <= gap * sum(work.bound_s for work in works):
        return
    for work in sorted(works, key=lambda work: -work.gap_s):
        share = work.gap_s / rest
        if share < 0.02 or limits.left_s < 1.0 or work.part.n * work.part.devices**2 > LARGE:
            continue
        steps, program = (1 - _FIRST) * share * limits.steps, (1 - _FIRST) * share * limits.work
        own = replace(limits, steps=steps, work=program, seed=limits.seed + 1)
        work.found = pool.submit(_solved, work, own, share, gap, cold=work.part.n > SMALL)
    for work in works:
        _finish(work)


def _in_order(
    flat: Flat,
    split: Sequence[PlacementStage],
    limits: SearchLimits,
    gap: float,
    pool: ThreadPoolExecutor,
    first: NodeSchedule | None,
) -> tuple[NodeSchedule, list[float]]:
    """Stages on devices that differ."""
    chain: list[tuple[PlacementStage, Flat, NodeSchedule]] = []
    bounds = []
    shares = _shares([flat_of(flat, stage, {}) for stage in split])
    left = 1.0
    for stage, share in zip(split, shares, strict=True):
        pins = {stage.first: chain[-1][2].on[-1]} if chain else {}
        part = flat_of(flat, stage, pins)
        bounds.append(least_s(part))
        work = _Work(stage=stage, part=part, layout=_listed(part, limits, first), bound_s=least_s(part))
        _begin(work, limits, share, gap, pool, of_time=min(1.0, share / left) if share else 0.0)
        left = max(left - share, 1e-9)
        _finish(work)
        chain.append((stage, part, work.layout))
    return joined(flat, chain), with_ends(flat, split, bounds)
