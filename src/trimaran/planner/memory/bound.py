"""What no memory plan can beat: a linear program over the units of a step.

Unknowns, each from 0 to 1: o_i, r_i (unit i is offloaded, recomputed), x_ij, z_ij (so, and away at key moment j); the
times T_j at which key moment j is reached, and T, the end of the step. Given: size b_i, copies out d_i and back h_i,
time of its recipe c_i, live bytes L_p at each place p when all is kept, budget M, time of the operations before a place
E(p), of all C. A unit may be away at the places A_i = [gone_i, use_i); pack_i is the place of its last pack.

    min T   such that
    (1)  o_i + r_i <= 1                                           a unit has one fate
    (2)  sum over i, A_i holds p: (o_i + r_i) b_i >= L_p − M      every place fits
    (3)  sum over i, A_i holds j: (x_ij + z_ij) b_i >= L_j − M    so do key moments, by what is away then
    (4)  x_ij <= o_i, z_ij <= r_i
    (5)  T >= C + sum r_i c_i                                     operations follow one another
    (6)  T_j >= E(j) + sum over use_i <= j: r_i c_i
    (7)  T >= T_j + C − E(j) + sum z_ij c_i                       what is away at j is made again after it
    (8)  T_j >= E(pack_i) + sum over k >= i: x_kj d_k             what is away at j has left by then
    (9)  T >= T_j + sum over use_k <= use_i: x_kj h_k + C − E(use_i)     and comes back after it, in order of use
    (10) T_j' >= T_j + E(j') − E(j)   for key moments j < j'

It stays below every plan: c_i counts the operations that no way of making unit i can leave out, copies run at full
rate, small storages are away for nothing, and recomputing needs neither memory of its own nor what it reads.

(8) and (9) are written as running sums, so that the matrix stays sparse. Places whose (2) follows from that of another
are left out. Leaves out: steps at ticks only, FIFO order but for (8) and (9), operations slowed by copies.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimaran.costs.memory_costs import MemoryCosts
from trimaran.graph.trace.types import StepTrace
from trimaran.planner.memory.linear_program import LinearProgram
from trimaran.planner.memory.needs import key_places, needs_of
from trimaran.planner.memory.problem import MemoryProblem, memory_problem

DEFAULT_SMALLEST_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What a step takes at least under a budget, with operations that take as long as they take.

    Attributes:
        step_time_s: of any plan that keeps, offloads or recomputes [s]
        offload_s: of any plan that only keeps or offloads [s]
        compute_s: of the operations alone [s]
        budget_bytes: the budget [bytes]
    """

    step_time_s: float
    offload_s: float
    compute_s: float
    budget_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """A solution of the linear program.

    Attributes:
        step_time_s: T [s]
        offloaded: o by unit
        recomputed: r by unit
    """

    step_time_s: float
    offloaded: NDArray[np.float64]
    recomputed: NDArray[np.float64]


def lower_bound(
    trace: StepTrace, costs: MemoryCosts, budget_bytes: int, *, smallest_bytes: int = DEFAULT_SMALLEST_BYTES
) -> Bound:
    """What a step takes at least under a budget.

    Args:
        trace: the step
        costs: its durations, and the link to the host
        budget_bytes: peak to keep [bytes]
        smallest_bytes: smaller storages are taken to be away for nothing

    Raises:
        SolverError: the budget is below the floor, or the solver gave up
    """
    return bound_of(memory_problem(trace, costs, smallest_bytes=smallest_bytes), budget_bytes)


def bound_of(problem: MemoryProblem, budget_bytes: int) -> Bound:
    """The bound of a problem; as `lower_bound`."""
    return Bound(
        step_time_s=relax(problem, budget_bytes).step_time_s,
        offload_s=relax(problem, budget_bytes, recompute=False).step_time_s,
        compute_s=problem.compute_s,
        budget_bytes=budget_bytes,
    )


def relax(problem: MemoryProblem, budget_bytes: int, *, recompute: bool = True, sparing: bool = False) -> Relaxation:
    """Solve the linear program.

    Args:
        problem: the step
        budget_bytes: peak to keep [bytes]
        recompute: whether units may be recomputed
        sparing: of what takes about equally long, take what moves least; the time is then no bound

    Raises:
        SolverError: the budget is below the floor, or the solver gave up
    """
    number = len(problem.units)
    needs = needs_of(problem, budget_bytes)
    if not (needs > 0).any():
        nothing = np.zeros(number)
        return Relaxation(step_time_s=problem.compute_s, offloaded=nothing, recomputed=nothing)
    program = LinearProgram(problem, needs, key_places(problem, needs), recompute=recompute)
    program.build()
    found = program.solve(sparing=sparing)
    return Relaxation(
        step_time_s=float(found[program.end]) * program.scale_s,
        offloaded=found[:number],
        recomputed=found[number : 2 * number],
    )
