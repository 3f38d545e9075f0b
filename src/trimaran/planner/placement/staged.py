"""A problem solved stage by stage: annealing in this thread, constraint programs behind it.

Where all devices and wires are alike, a stage does not care on which device it begins: each is solved with its entry on
device 0, with a free exit, and put on the devices that follow from the stage before. Otherwise stages are solved in
order, each from the device on which the one before ended, and what is proved of one is no bound of the whole.
"""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from trimaran.planner.placement import exact
from trimaran.planner.placement.bounds import least_s
from trimaran.planner.placement.flat import Flat
from trimaran.planner.placement.joining import joined, put_back, swapped
from trimaran.planner.placement.lay import Layout, lay
from trimaran.planner.placement.search import SMALL, Limits, annealed, better, lists
from trimaran.planner.placement.stages import Stage, flat_of, side_nodes, stages, without

_FEW = 20
"""Nodes up to which nothing is left out to find waists."""

_APART = 0.75
"""Share of the nodes that the largest stage may keep for side branches to be left out: else nothing falls apart, and
leaving out again what is on the side of the rest would go on nearly for ever."""

_LARGE = 1000
"""Nodes times pairs of devices beyond which a constraint program takes longer to set up than it is worth."""


@dataclass(slots=True, kw_only=True)
class _Work:
    """One stage under way.

    Attributes:
        stage: which nodes
        part: its problem
        layout: the best schedule so far
        bound_s: no schedule of it is shorter [s]
        proof: the constraint program that looks at it
    """

    stage: Stage
    part: Flat
    layout: Layout
    bound_s: float
    proof: Future[exact.Proof] | None = field(default=None)

    @property
    def gap_s(self) -> float:
        """What there may be to win [s]."""
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
    cut: Sequence[Stage],
    limits: Limits,
    gap: float,
    pool: ThreadPoolExecutor,
    *,
    first: Layout | None = None,
) -> tuple[Layout, float]:
    """The stages of a problem one after another, and a bound of the whole [s].

    Args:
        flat: the problem
        cut: its stages
        limits: what may be spent
        gap: stop a stage once it is within this share of its bound
        pool: runs the constraint programs
        first: a schedule of the whole problem, if there is one; a stage that is all of it starts there
    """
    if not alike(flat):
        return _in_order(flat, cut, limits, gap, pool, first)
    works = []
    for stage in cut:
        part = flat_of(flat, stage, {stage.first: 0} if stage.entry else {})
        works.append(_Work(stage=stage, part=part, layout=_listed(part, limits, first), bound_s=least_s(part)))
    shares = _shares([work.part for work in works])
    for work, share in sorted(zip(works, shares, strict=True), key=lambda pair: -pair[1]):
        _begin(work, limits, share, gap, pool)
    for work in works:
        _finish(work)
    _again(works, limits, gap, pool)
    device = 0
    chain = []
    for work in works:
        layout = swapped(work.part, work.layout, 0, device)
        chain.append((work.stage, work.part, layout))
        device = layout.on[-1]
    ends = (flat.forward[0] if cut[0].entry else 0.0) + (flat.backward[-1] if cut[-1].exit else 0.0)
    return joined(flat, chain), ends + sum(work.bound_s for work in works)


def _listed(part: Flat, limits: Limits, first: Layout | None) -> Layout:
    """A schedule to start a stage from: the best of its lists; of a stage that is the whole problem, the one given."""
    if first is None or len(first.on) > part.n:
        return min(lists(part, limits), key=lambda one: one.makespan_s)
    moved = swapped(part, first, first.on[0], part.pins.get(0, first.on[0]))
    return lay(part, moved.on, moved.order)


def _shares(parts: Sequence[Flat]) -> list[float]:
    """The share of the work that each stage gets: what is large is harder than in proportion; an edge is not hard."""
    weights = [float(part.n) ** 1.3 if part.n > 2 else 0.0 for part in parts]
    total = sum(weights) or 1.0
    return [weight / total for weight in weights]


def _begin(work: _Work, limits: Limits, share: float, gap: float, pool: ThreadPoolExecutor) -> None:
    """Anneal a stage, and set a constraint program on it."""
    part = work.part
    if work.gap_s <= 1e-9 * work.bound_s or limits.over():
        return
    own = replace(limits, steps=0.6 * limits.steps * share, work=0.6 * limits.work * share)
    core = _core_of(part)
    if core is not None:
        half = replace(own, steps=0.7 * own.steps, work=0.8 * own.work)
        found, least = by_stages(core.part, core.cut, half, gap, pool)
        work.bound_s = max(work.bound_s, least)
        work.layout = better(work.layout, put_back(part, found, core.kept, core.part, core.dropped))
        own = replace(own, steps=0.3 * own.steps, work=0.2 * own.work)
    work.layout = annealed(part, work.layout, own, cold=core is not None)
    if part.n * part.devices**2 > _LARGE:
        return
    wall_s = max(0.1, min(limits.left_s, 4.0 * share * limits.left_s))
    work.proof = pool.submit(
        exact.solve,
        part,
        work.layout,
        wall_s=wall_s,
        work=own.work,
        seed=limits.seed,
        gap=gap,
        deadline=limits.deadline,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Core:
    """A stage without side branches that kept it from falling apart.

    Attributes:
        part: the problem that is left
        kept: the number in the stage of each of its nodes
        cut: its stages
        dropped: numbers of the nodes that are left out
    """

    part: Flat
    kept: list[int]
    cut: list[Stage]
    dropped: list[int]


def _core_of(stage: Flat) -> _Core | None:
    """A stage without its side branches; None where it has none, or most of it would still be one stage."""
    dropped = side_nodes(stage) if stage.n > _FEW else []
    if not dropped:
        return None
    part, kept = without(stage, dropped)
    cut = stages(part)
    if max(inner.last - inner.first for inner in cut) > _APART * stage.n:
        return None
    return _Core(part=part, kept=kept, cut=cut, dropped=dropped)


def _finish(work: _Work) -> None:
    """Take over what the constraint program found."""
    if work.proof is not None:
        proof = work.proof.result()
        work.bound_s = max(work.bound_s, proof.bound_s)
        work.layout = better(work.layout, proof.layout)
        work.proof = None


def _again(works: Sequence[_Work], limits: Limits, gap: float, pool: ThreadPoolExecutor) -> None:
    """A second round for the stages in which most may be left to win."""
    rest = sum(work.gap_s for work in works)
    if rest <= gap * sum(work.bound_s for work in works):
        return
    for work in sorted(works, key=lambda work: -work.gap_s):
        share = work.gap_s / rest
        if share < 0.02 or limits.left_s < 1.0:
            continue
        own = replace(limits, steps=0.4 * limits.steps * share, seed=limits.seed + 1)
        work.layout = annealed(work.part, work.layout, own, cold=work.part.n > SMALL)
        if work.part.n * work.part.devices**2 > _LARGE:
            continue
        wall_s = max(0.1, min(limits.left_s, 4.0 * share * limits.left_s))
        work.proof = pool.submit(
            exact.solve,
            work.part,
            work.layout,
            wall_s=wall_s,
            work=0.4 * limits.work * share,
            seed=limits.seed + 1,
            gap=gap,
            deadline=limits.deadline,
        )
    for work in works:
        _finish(work)


def _in_order(
    flat: Flat, cut: Sequence[Stage], limits: Limits, gap: float, pool: ThreadPoolExecutor, first: Layout | None
) -> tuple[Layout, float]:
    """Stages on devices that differ."""
    chain: list[tuple[Stage, Flat, Layout]] = []
    bound = (flat.forward[0] if cut[0].entry else 0.0) + (flat.backward[-1] if cut[-1].exit else 0.0)
    shares = _shares([flat_of(flat, stage, {}) for stage in cut])
    for stage, share in zip(cut, shares, strict=True):
        pins = {stage.first: chain[-1][2].on[-1]} if chain else {}
        part = flat_of(flat, stage, pins)
        bound += least_s(part)
        work = _Work(stage=stage, part=part, layout=_listed(part, limits, first), bound_s=least_s(part))
        _begin(work, limits, share, gap, pool)
        _finish(work)
        chain.append((stage, part, work.layout))
    return joined(flat, chain), bound
