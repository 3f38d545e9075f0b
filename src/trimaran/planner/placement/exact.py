"""The best schedule that a constraint program finds, and what it proves (`model`).

One search of CP-SAT, with no second worker: its answer depends on the problem, the seed and the work that it may do,
and not on the machine, as long as the wall time suffices.
"""

import math
import time
from collections.abc import Collection
from dataclasses import dataclass

from ortools.sat.python import cp_model

from trimaran.planner.placement.flat import Flat
from trimaran.planner.placement.lay import Layout, by_start, lay, length_of, transfers_of
from trimaran.planner.placement.model import Model
from trimaran.planner.placement.model_memory import fit
from trimaran.planner.placement.room import releases


@dataclass(slots=True, kw_only=True)
class Proof:
    """What the solver found.

    Attributes:
        layout: the best schedule; None where none was found
        bound_s: no schedule is shorter [s]
        optimal: the schedule is the best, up to the rounding of ticks
        infeasible: nothing fits
        work: deterministic time spent
    """

    layout: Layout | None
    bound_s: float
    optimal: bool
    infeasible: bool
    work: float


def solve(
    flat: Flat,
    start: Layout,
    *,
    wall_s: float,
    work: float,
    deadline: float = math.inf,
    seed: int,
    gap: float = 0.0,
    free: Collection[int] | None = None,
    memory: bool = False,
) -> Proof:
    """The best schedule that the limits allow.

    Args:
        flat: the problem
        start: a schedule, which may use more memory than there is: no longer one is looked for unless memory counts
        wall_s: wall time that may be spent [s]
        work: deterministic time that may be spent, by the solver's own count
        deadline: moment at which all ends, by the monotonic clock [s]
        seed: of the solver
        gap: stop when the answer is within this share of the solver's bound
        free: nodes whose device and order may change; None: all. The bound is then of no use
        memory: whether memory is a constraint
    """
    nothing = Proof(layout=None, bound_s=0.0, optimal=False, infeasible=False, work=0.0)
    if time.monotonic() > deadline:
        return nothing
    horizon_s = flat.serial_s + _all_transfers(flat) if memory else start.makespan_s
    model = Model(flat, horizon_s, frozen=start if free is not None else None, free=free or ())
    if memory:
        fit(model)
    model.hint(start)
    wall_s = min(wall_s, deadline - time.monotonic())
    if wall_s <= 0.0:
        return nothing
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = wall_s
    solver.parameters.max_deterministic_time = work
    solver.parameters.random_seed = seed
    solver.parameters.num_workers = 1  # one search, whose answer does not depend on the machine
    solver.parameters.relative_gap_limit = gap
    status = solver.solve(model.model)
    bound = solver.best_objective_bound * model.tick_s
    spent = solver.response_proto.deterministic_time
    if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        layout = read(model, flat, solver, memory=memory)
        optimal = status == cp_model.OPTIMAL and gap == 0.0
        return Proof(layout=layout, bound_s=bound, optimal=optimal, infeasible=False, work=spent)
    return Proof(layout=None, bound_s=bound, optimal=False, infeasible=status == cp_model.INFEASIBLE, work=spent)


def _all_transfers(flat: Flat) -> float:
    """Time of every transfer that there could be, one after another [s]."""
    slowest = [
        max((flat.crossing_s(v, *pair) + flat.returning_s(v, *pair) for pair in flat.wires), default=0.0)
        for v in range(flat.n)
        if flat.read_by[v]
    ]
    return (flat.devices - 1) * sum(slowest)


def read(model: Model, flat: Flat, solver: cp_model.CpSolver, *, memory: bool) -> Layout:
    """The solver's order, with the times that follow from it."""
    on = [next(d for d in range(flat.devices) if solver.boolean_value(choices[d])) for choices in model.on]
    items = [*range(2 * flat.n), *transfers_of(flat, on)]
    start = {item: float(solver.value(model.start[item])) for item in items}
    end = {item: start[item] + model.ticks(length_of(flat, on, item)) for item in items}
    order = by_start(flat, start, end)
    return lay(flat, on, order, releases(flat, on, order, start, end) if memory else None)
