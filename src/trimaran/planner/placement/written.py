"""The answer with names, after the reference scorer has gone through it."""

from trimaran.errors import SolverError
from trimaran.planner.placement.check import check
from trimaran.planner.placement.flat import Flat
from trimaran.planner.placement.lay import Layout, by_start
from trimaran.planner.placement.types import Placement, PlacementProblem, Run, Transfer

_ROUNDING = 2e-6
"""Share by which a bound may be above an answer: solvers count in whole ticks."""


def written(
    problem: PlacementProblem,
    flat: Flat,
    layout: Layout,
    *,
    bound_s: float,
    heft_s: float | None,
    method: str,
    notes: tuple[str, ...] = (),
) -> Placement:
    """The answer to a problem.

    Args:
        problem: what was asked
        flat: its numbers
        layout: the schedule
        bound_s: no schedule is shorter [s]
        heft_s: makespan of the list schedule by earliest finish time [s]
        method: what found it
        notes: what the reader should know

    Raises:
        SolverError: the schedule breaks a rule, or the bound is none
    """
    n, devices, names = flat.n, flat.devices, [node.name for node in problem.nodes]
    runs, transfers = [], []
    for item in by_start(flat, layout.start, layout.end):
        start_s, end_s = layout.start[item], layout.end[item]
        if item < 2 * n:
            name, home = names[item % n], layout.on[item % n]
            runs.append(Run(node=name, phase="F" if item < n else "B", device=home, start_s=start_s, end_s=end_s))
            continue
        forward = item < 2 * n + n * devices
        node, device = divmod((item - 2 * n) % (n * devices), devices)
        source, target = (layout.on[node], device) if forward else (device, layout.on[node])
        transfers.append(
            Transfer(
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
            f"a placement of {score.makespan_s} s is below what was taken for a bound, {bound_s} s; please report it",
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
    )
