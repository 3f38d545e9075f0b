"""The placement of a whole problem: lists, stages, annealing, constraint programs, and the reference scorer."""

import math
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from trimaran.base.errors import InfeasibleError, InputError, SolverError
from trimaran.base.system import allowed_cores
from trimaran.base.units import format_bytes, format_count
from trimaran.placement.annealing import COMPILING_S, STEPS_PER_S, compiled, order_of, prepare, speed
from trimaran.placement.bounds import least_s, reasons
from trimaran.placement.check import check
from trimaran.placement.problem import Flat, NodeRun, NodeTransfer, Placement, PlacementProblem, flatten
from trimaran.placement.schedule import NodeSchedule, by_start, fits
from trimaran.placement.search import SearchLimits, better, lists, squeezed
from trimaran.placement.stages import by_stages, stages

# ---------------------------------------------------------------------------------------------------------------------
# Whether a placement problem is one


def check_problem(problem: PlacementProblem) -> None:
    """Refuse a problem without a possible placement.

    Raises:
        InputError: no nodes or devices, two nodes of one name, a time or size that is negative or no number, an edge
            that goes backwards, a wire between devices that are not there, a pin on one
    """
    names = [node.name for node in problem.nodes]
    if not names or not problem.memory_bytes:
        raise InputError(
            f"a placement needs nodes and devices, got {len(names)} and {problem.devices}", code="placement.empty"
        )
    twice = next((name for name, other in zip(sorted(names), sorted(names)[1:], strict=False) if name == other), None)
    if twice is not None:
        raise InputError(f'two nodes of the placement are named "{twice}"', code="placement.node-twice", node=twice)
    for node in problem.nodes:
        for field in ("forward_s", "backward_s", "nbytes", "backward_nbytes", "saved_bytes", "state_bytes"):
            value = getattr(node, field)
            if not math.isfinite(value) or value < 0:
                raise InputError(
                    f'"{node.name}".{field}: expected a number that is not negative, got {value}',
                    code="placement.negative-number",
                )
    for producer, consumer in problem.edges:
        if not 0 <= producer < consumer < len(names):
            raise InputError(
                f"edge ({producer}, {consumer}) must go from an earlier to a later one of {len(names)} nodes",
                code="placement.bad-edge",
                edge=(producer, consumer),
            )
    _check_machine(problem)


def _check_machine(problem: PlacementProblem) -> None:
    for device, memory in enumerate(problem.memory_bytes):
        if math.isnan(memory) or memory < 0:
            raise InputError(f"memory of device {device}: expected bytes, got {memory}", device=device)
    for (source, target), wire in problem.wires.items():
        inside = 0 <= source < problem.devices and 0 <= target < problem.devices
        rated = wire.bytes_per_s > 0 and math.isfinite(wire.latency_s) and wire.latency_s >= 0
        if source == target or not inside or not rated:
            raise InputError(
                f"wire ({source}, {target}): expected two of {problem.devices} devices, a rate above 0 and a latency, "
                f"got {wire.bytes_per_s} bytes/s and {wire.latency_s} s",
                code="placement.bad-wire",
                wire=(source, target),
            )
        if (target, source) not in problem.wires:
            raise InputError(
                f"there is a wire from {source} to {target}, and none back for the gradients",
                code="placement.one-way-wire",
            )
    known = {node.name for node in problem.nodes}
    for name, device in problem.pinned.items():
        if name not in known or not 0 <= device < problem.devices:
            raise InputError(
                f'"{name}" is pinned on device {device}: there is no such node, or no such device',
                code="placement.bad-pin",
                node=name,
            )


# ---------------------------------------------------------------------------------------------------------------------
# The answer with names, after the reference scorer has gone through it


_ROUNDING = 2e-6
"""Share by which a bound may be above an answer: solvers count in whole ticks."""


def written(
    problem: PlacementProblem,
    flat: Flat,
    layout: NodeSchedule,
    *,
    bound_s: float,
    heft_s: float | None,
    method: str,
    notes: tuple[str, ...] = (),
    work_s: float = 0.0,
    searches: int = 1,
) -> Placement:
    """The answer to a problem.

    Args:
        problem: to solve
        flat: its numbers
        layout: the schedule
        bound_s: no schedule is shorter [s]
        heft_s: makespan of the list schedule by earliest finish time [s]
        method: of the answer
        notes: for the reader
        work_s: seconds of a usual core whose work it may have taken [s]
        searches: that ran at the same time

    Raises:
        SolverError: the schedule breaks a rule, or the bound is none
    """
    n, devices, names = flat.n, flat.devices, [node.name for node in problem.nodes]
    runs, transfers = [], []
    for item in by_start(flat, layout.start, layout.end):
        start_s, end_s = layout.start[item], layout.end[item]
        if item < 2 * n:
            name, device = names[item % n], layout.on[item % n]
            runs.append(NodeRun(node=name, phase="F" if item < n else "B", device=device, start_s=start_s, end_s=end_s))
            continue
        forward = item < 2 * n + n * devices
        node, device = divmod((item - 2 * n) % (n * devices), devices)
        source, target = (layout.on[node], device) if forward else (device, layout.on[node])
        transfers.append(
            NodeTransfer(
                node=names[node],
                phase="F" if forward else "B",
                source=source,
                target=target,
                start_s=start_s,
                end_s=end_s,
                links=problem.wires[source, target].links,
            )
        )
    score = check(problem, runs, transfers)
    if bound_s > score.makespan_s * (1 + _ROUNDING) + _ROUNDING * problem.serial_s:
        raise SolverError(
            f"a placement of {score.makespan_s} s is below the proved bound, {bound_s} s; please report it",
            makespan_s=score.makespan_s,
            bound_s=bound_s,
        )
    return Placement(
        device_of={name: layout.on[node] for node, name in enumerate(names)},
        schedule=tuple(runs),
        transfers=tuple(transfers),
        makespan_s=score.makespan_s,
        serial_s=problem.serial_s,
        bound_s=min(bound_s, score.makespan_s),
        peak_bytes=score.peak_bytes,
        heft_s=heft_s,
        method=method,
        notes=notes,
        work_s=work_s,
        searches=searches,
    )


_EXACT = 64
"""Nodes times pairs of devices up to which a problem is solved as a whole, to the end."""

WORK_S = 60.0
"""Seconds of a usual core whose work goes into an answer, where no time limit allows less [s]."""

SEARCHES = 4
"""Searches that run at the same time on a large problem; under a time limit, one on each core."""

_MOST_SEARCHES = 16

_FILLED = 0.95
"""Share of what is left of a time limit that the work of searches fills."""

_WORK_PER_S = 0.2
"""Deterministic time that constraint programs get for each second of work."""

_EXACT_PER_S = 1.0
"""The same of a problem that is solved as a whole."""

_MODEL = 640
"""Nodes times pairs of devices up to which a constraint program of the whole problem with its memory is tried."""


def place(
    problem: PlacementProblem,
    *,
    work_s: float | None = None,
    time_limit_s: float | None = None,
    searches: int | None = None,
    seed: int = 0,
    gap: float = 0.0,
    began: float | None = None,
) -> Placement:
    """Which device runs which operation, and when.

    Args:
        problem: operations, devices, wires
        work_s: seconds of a usual core that may be spent, counted as work, so that the answer does not depend on how
            fast the machine is; None: `WORK_S`, or with a limit what this machine does in that time [s]
        time_limit_s: wall time that may be spent; no more work is done than fits, and the answer says where the time
            ended it [s]; None: none
        searches: that run at the same time on a large problem; None: `SEARCHES`, or with a limit one for each core
        seed: of everything random
        gap: stop once the answer is within this share of the bound
        began: moment from which the time counts, by the monotonic clock; None: when what searches is imported [s]

    Raises:
        InfeasibleError: the network does not fit the devices
        InputError: the problem is not one
    """
    check_problem(problem)
    flat = flatten(problem)
    if _least_bytes(flat) > sum(flat.memory):
        raise _nothing_fits(flat, proved=True)
    if flat.devices > 1 and flat.n * flat.devices**2 > _EXACT:
        prepare()
    limits = SearchLimits(
        # The rest of the time is for calls that cannot be interrupted.
        deadline=math.inf
        if time_limit_s is None
        else (time.monotonic() if began is None else began) + 0.9 * time_limit_s - 0.2,
        steps=STEPS_PER_S * (WORK_S if work_s is None else work_s),
        work=_WORK_PER_S * (WORK_S if work_s is None else work_s),
        seed=seed,
        searches=SEARCHES if searches is None else searches,
    )
    listed = lists(flat, limits)
    heft, first = listed[0], min(listed, key=lambda one: one.makespan_s)
    proved = flat.devices == 1 or first.makespan_s <= least_s(flat) * (1 + 1e-12)
    if time_limit_s is not None and not proved and flat.n * flat.devices**2 > _EXACT:
        limits = _within(flat, first, limits, work_s, searches)
    best, bound_s, method = _solved(flat, first, limits, gap)
    if not fits(flat, best):
        best, bound_s, method = _within_memory(flat, listed, bound_s, limits, gap)
    stopped = (f"the time limit of {time_limit_s:g} s ended the search",) if limits.over() else ()
    return written(
        problem,
        flat,
        best,
        bound_s=bound_s,
        heft_s=heft.makespan_s if fits(flat, heft) else None,
        method=method,
        notes=(*stopped, *reasons(flat, best), *limits.notes),
        work_s=limits.steps / STEPS_PER_S,
        searches=limits.searches,
    )


def _within(
    flat: Flat, first: NodeSchedule, limits: SearchLimits, work_s: float | None, searches: int | None
) -> SearchLimits:
    """The limits of work that this machine can do until the deadline."""
    if not compiled() and limits.left_s < COMPILING_S:
        limits.notes.append(
            f"nothing was annealed: the search is not compiled yet, which takes up to {COMPILING_S:.0f} s once on a "
            "machine; without a time limit, or with a longer one, it is compiled and kept"
        )
        return replace(limits, compiled=False)
    if limits.over():
        return limits
    number = min(max(allowed_cores(), 1), _MOST_SEARCHES) if searches is None else searches
    per_s = speed(flat, order_of(flat, first)) * min(allowed_cores(), number)
    most = _FILLED * per_s * max(0.0, limits.left_s)
    steps = most if work_s is None else min(most, limits.steps)
    # How long the work of constraint programs takes is not known before: the clock ends them too.
    work = 2 * _WORK_PER_S * max(0.0, limits.left_s)
    return replace(
        limits,
        steps=steps,
        work=work if work_s is None else min(work, limits.work),
        searches=number,
        fill=work_s is None,
    )


def _solved(flat: Flat, first: NodeSchedule, limits: SearchLimits, gap: float) -> tuple[NodeSchedule, float, str]:
    """The best schedule whatever the memory, a bound [s], and how it was found."""
    bound_s = least_s(flat)
    if flat.devices == 1 or first.makespan_s <= bound_s * (1 + 1e-12):
        return first, bound_s, "list"
    if flat.n * flat.devices**2 <= _EXACT:
        from trimaran.placement import exact  # brings a solver that takes a second to import

        proof = exact.solve(
            flat, first, wall_s=limits.left_s, work=_EXACT_PER_S / _WORK_PER_S * limits.work, seed=limits.seed, gap=gap
        )
        return better(first, proof.layout), max(bound_s, proof.bound_s), "exact" if proof.optimal else "bounded"
    with ThreadPoolExecutor(max_workers=max(2, allowed_cores())) as pool:
        found, least = by_stages(flat, stages(flat), limits, gap, pool, first=first)
    return better(first, found), max(bound_s, sum(least)), "stages"


def _within_memory(
    flat: Flat, candidates: list[NodeSchedule], bound_s: float, limits: SearchLimits, gap: float
) -> tuple[NodeSchedule, float, str]:
    """The best schedule that fits.

    Raises:
        InfeasibleError: nothing fits, or nothing was found that does
    """
    fitting = [one for one in candidates if fits(flat, one)]
    start = min(fitting or candidates, key=lambda one: one.makespan_s)
    if flat.n * flat.devices**2 > _EXACT:
        half = replace(limits.until(0.5), steps=0.5 * limits.steps)
        fitting += [one for one in squeezed(flat, candidates, half) if fits(flat, one)]
        start = min(fitting or [start], key=lambda one: one.makespan_s)
    method = "annealing within memory"
    if flat.n * flat.devices**2 <= _MODEL:
        from trimaran.placement import exact

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


def _least_bytes(flat: Flat) -> float:
    """What all devices together hold at some moment in any schedule [bytes].

    Before the backward of an output begins, all forwards that lead to it have been done.
    """
    leads: list[set[int]] = []
    for node, producers in enumerate(flat.reads):
        leads.append({node}.union(*(leads[producer] for producer in producers)))
    outputs = [found for found, readers in zip(leads, flat.read_by, strict=True) if not readers]
    return sum(flat.state) + max(sum(flat.held[node] for node in found) for found in outputs)


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
