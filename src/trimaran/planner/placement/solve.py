"""The placement of a whole problem: lists, stages, annealing, constraint programs, and the reference scorer."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from trimaran.errors import InfeasibleError
from trimaran.planner.placement import exact
from trimaran.planner.placement.asked import check_problem
from trimaran.planner.placement.bounds import least_s
from trimaran.planner.placement.flat import Flat, flatten
from trimaran.planner.placement.lay import Layout
from trimaran.planner.placement.reasons import reasons
from trimaran.planner.placement.room import fits
from trimaran.planner.placement.search import Limits, better, lists, squeezed
from trimaran.planner.placement.staged import by_stages
from trimaran.planner.placement.stages import stages
from trimaran.planner.placement.types import Placement, PlacementProblem
from trimaran.planner.placement.written import written
from trimaran.units import format_bytes, format_count

_EXACT = 64
"""Nodes times pairs of devices up to which a problem is solved as a whole, to the end."""

_STEPS_PER_S = 250_000
"""Tasks that decoders go through for each second of the time limit."""

_WORK_PER_S = 0.2
"""Deterministic time that constraint programs get for each second of the time limit."""

_MODEL = 640
"""Nodes times pairs of devices up to which a constraint program of the whole problem with its memory is tried."""


def place(
    problem: PlacementProblem,
    *,
    time_limit_s: float = 60.0,
    seed: int = 0,
    gap: float = 0.0,
    began: float | None = None,
) -> Placement:
    """Which device runs what, and when.

    Args:
        problem: operations, devices, wires
        time_limit_s: wall time that may be spent; the work to be done is limited in proportion, so that the answer is
            the same whenever the time suffices for it [s]
        seed: of everything random
        gap: stop once the answer is within this share of the bound
        began: moment from which the time counts, by the monotonic clock; None: now [s]

    Raises:
        InfeasibleError: the network does not fit the devices
        InputError: the problem is not one
    """
    limits = Limits(
        # The rest of the time is for what cannot be interrupted.
        deadline=(time.monotonic() if began is None else began) + 0.85 * time_limit_s - 0.2,
        steps=_STEPS_PER_S * time_limit_s,
        work=_WORK_PER_S * time_limit_s,
        seed=seed,
    )
    check_problem(problem)
    flat = flatten(problem)
    listed = lists(flat, limits)
    heft, first = listed[0], min(listed, key=lambda one: one.makespan_s)
    best, bound_s, method = _solved(flat, first, limits, gap)
    if not fits(flat, best):
        best, bound_s, method = _within_memory(flat, listed, bound_s, limits, gap)
    return written(
        problem,
        flat,
        best,
        bound_s=bound_s,
        heft_s=heft.makespan_s if fits(flat, heft) else None,
        method=method,
        notes=reasons(flat, best),
    )


def _solved(flat: Flat, first: Layout, limits: Limits, gap: float) -> tuple[Layout, float, str]:
    """The best schedule whatever the memory, a bound [s], and how it was found."""
    bound_s = least_s(flat)
    if flat.devices == 1 or first.makespan_s <= bound_s * (1 + 1e-12):
        return first, bound_s, "list"
    if flat.n * flat.devices**2 <= _EXACT:
        proof = exact.solve(flat, first, wall_s=limits.left_s, work=1e6, seed=limits.seed, gap=gap)
        return better(first, proof.layout), max(bound_s, proof.bound_s), "exact" if proof.optimal else "bounded"
    with ThreadPoolExecutor(max_workers=2) as pool:
        found, least = by_stages(flat, stages(flat), limits, gap, pool, first=first)
    return better(first, found), max(bound_s, least), "stages"


def _within_memory(
    flat: Flat, candidates: list[Layout], bound_s: float, limits: Limits, gap: float
) -> tuple[Layout, float, str]:
    """The best schedule that fits.

    Raises:
        InfeasibleError: nothing fits, or nothing was found that does
    """
    fitting = [one for one in candidates if fits(flat, one)]
    start = min(fitting or candidates, key=lambda one: one.makespan_s)
    if flat.n * flat.devices**2 > _EXACT:
        half = replace(limits, steps=0.5 * limits.steps, deadline=limits.deadline - 0.5 * max(limits.left_s, 0.0))
        fitting += [one for one in squeezed(flat, candidates, half) if fits(flat, one)]
        start = min(fitting or [start], key=lambda one: one.makespan_s)
    method = "annealing within memory"
    if flat.n * flat.devices**2 <= _MODEL:
        proof = exact.solve(flat, start, wall_s=limits.left_s, work=limits.work, seed=limits.seed, gap=gap, memory=True)
        bound_s = max(bound_s, proof.bound_s) if not proof.infeasible else bound_s
        if proof.infeasible and not fitting:
            raise _nothing_fits(flat, proved=True)
        if proof.layout is not None and fits(flat, proof.layout):
            fitting.append(proof.layout)
            method = "exact" if proof.optimal else "constraint program within memory"
    if not fitting:
        raise _nothing_fits(flat, proved=False)
    return min(fitting, key=lambda one: one.makespan_s), bound_s, method


def _nothing_fits(flat: Flat, *, proved: bool) -> InfeasibleError:
    need, have = sum(flat.state) + sum(flat.held), sum(flat.memory)
    what = "no placement fits" if proved else "no placement was found that fits"
    return InfeasibleError(
        f"{what} {format_count(flat.devices, 'device')} with {format_bytes(have)} together: operations keep "
        f"{format_bytes(need)}, and "
        "copies of what crosses come on top; take more devices, more memory, or a smaller batch",
        code="placement.nothing-fits",
        needed_bytes=need,
        memory_bytes=have,
    )
