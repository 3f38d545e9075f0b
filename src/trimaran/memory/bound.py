"""A lower bound on the step time of any memory plan: a linear program over the units of a step.

Unknowns, each from 0 to 1: o_i, r_i (unit i is offloaded, recomputed), x_ij, z_ij (so, and away at key moment j); the
times T_j at which key moment j is reached, and T, the end of the step. Given: size b_i, copies out d_i and back h_i,
time of its recipe c_i, live bytes L_p at each place p when all is kept, budget M, room on the host H, bytes s_i that
unit i takes there, time of the operations before a place E(p), of all C. A unit may be away at the places
A_i = [gone_i, use_i); pack_i is the place of its last pack.

    min T   such that
    (1)  o_i + r_i <= 1                                           a unit has one fate
    (2)  sum over i, A_i holds p: (o_i + r_i) b_i >= L_p − M      every place fits
    (3)  sum over i, A_i holds j: (x_ij + z_ij) b_i >= L_j − M    so do key moments, by what is away then
    (4)  x_ij <= o_i, z_ij <= r_i
    (5)  T >= C + sum r_i c_i                                     operations follow one another
    (6)  T_j >= E(j) + sum over use_i <= j: r_i c_i
    (7)  T >= T_j + C − E(j) + sum z_ij c_i                       what is away at j is recomputed after it
    (8)  T_j >= E(pack_i) + sum over k >= i: x_kj d_k             what is away at j has left by then
    (9)  T >= T_j + sum over use_k <= use_i: x_kj h_k + C − E(use_i)     and comes back after it, in order of use
    (10) T_j' >= T_j + E(j') − E(j)   for key moments j < j'
    (11) sum over i, A_i holds j: x_ij s_i <= H                   what is offloaded and away at j lies on the host

It is below every plan: c_i counts the operations that every recipe of unit i has, copies run at full
rate, small storages are away for nothing, and recomputing needs no further memory, neither for results nor for sources.

(8) and (9) are written as running sums, so that the matrix stays sparse. Places whose (2) follows from that of another
are left out. Leaves out: steps at ticks only, FIFO order but for (8) and (9), operations slowed by copies.

What must be away at each place for a budget to hold, and which of these needs decide.

Only some places need a row in the linear program: where the same units may be away at two places, the larger
need says more, and so it does where fewer units can meet it.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimaran.base.errors import SolverError
from trimaran.graph.trace.live_bytes import live_kept, sum_of_lives
from trimaran.graph.trace.types import StepTrace
from trimaran.memory.minimum import minimum_memory, needed_bytes, none_found
from trimaran.memory.problem import MemoryProblem, memory_problem
from trimaran.pricing.offload_costs import MemoryCosts

_KEY_PLACES = 4


def needs_of(problem: MemoryProblem, budget_bytes: int) -> NDArray[np.int64]:
    """Bytes that must be away at each place, small storages being away wherever they may be.

    Args:
        problem: the step
        budget_bytes: peak to keep [bytes]
    """
    trace = problem.trace
    live = live_kept(trace)
    places = problem.places
    units = sum_of_lives(trace, ((int(places[one.gone]), int(places[one.use]), one.nbytes) for one in problem.units))
    # Needed bytes are without all movable storages; those that are units are put back.
    least = np.minimum(live, needed_bytes(trace) + units)
    most: NDArray[np.int64] = np.maximum.reduceat(least, problem.places) - budget_bytes
    return most


def key_places(problem: MemoryProblem, needs: NDArray[np.int64]) -> list[int]:
    """The place where most must be away, and places spread in time over those where at least half of it must.

    Args:
        problem: the step
        needs: by place [bytes], some above 0
    """
    most = int(needs.argmax())
    wide = np.flatnonzero(needs * 2 >= needs[most])
    times_s = np.linspace(problem.elapsed_s[wide[0]], problem.elapsed_s[wide[-1]], _KEY_PLACES + 2)[1:-1]
    spread = wide[np.minimum(np.searchsorted(problem.elapsed_s[wide], times_s), len(wide) - 1)]
    return sorted({most, *(int(place) for place in spread)})


def undominated(problem: MemoryProblem, needs: NDArray[np.int64]) -> list[tuple[int, list[int]]]:
    """Places whose need does not follow from another's, each with the units that may be away there.

    Args:
        problem: the step
        needs: by place [bytes]
    """
    places = np.flatnonzero(needs > 0)
    gone = np.array([unit.gone for unit in problem.units])
    use = np.array([unit.use for unit in problem.units])
    follows = np.zeros(len(needs), dtype=bool)
    kept: dict[int, list[int]] = {}
    # The largest need first. It says all that a smaller one says where at least the same units may be away: from the
    # place at which the last of them has gone to the one at which the first of them is used.
    for place in places[np.argsort(-needs[places], kind="stable")].tolist():
        if follows[place]:
            continue
        away = np.flatnonzero((gone <= place) & (place < use))
        kept[place] = away.tolist()
        follows[gone[away].max(initial=0) : use[away].min(initial=len(needs))] = True
    return list(kept.items())


# ---------------------------------------------------------------------------------------------------------------------
# The linear program of the bound, row by row; its constraints are numbered where `bound` states the problem


_INFINITE = float("inf")
_INFEASIBLE = 2  # status of scipy's `linprog`
# Cost of moving a unit in addition to the time that it takes, as a share of that time.
_SPARED = 0.02


class LinearProgram:
    """The matrix and its solution.

    Args:
        problem: the step
        needs: bytes that must be away at each place
        keys: places of the key moments
        recompute: whether units may be recomputed
        host_bytes: most that may lie on the host at once [bytes]; None: no limit
    """

    def __init__(
        self,
        problem: MemoryProblem,
        needs: NDArray[np.int64],
        keys: list[int],
        *,
        recompute: bool,
        host_bytes: int | None = None,
    ) -> None:
        self.problem = problem
        self.host_bytes = host_bytes
        self.needs = needs
        self.keys = keys
        self.units = problem.units
        self.number = len(problem.units)
        # Times in steps, so that the solver's tolerances are relative.
        self.scale_s = problem.compute_s or 1.0
        self.seconds = problem.elapsed_s / self.scale_s
        self.compute_s = problem.compute_s / self.scale_s
        self.remake = [one.recompute_s / self.scale_s for one in self.units]
        # Coded copies may be slower in one direction: the least of each keeps the bound below every plan.
        self.to_host = [min(one.to_host_s, (one.coded_s or (_INFINITE,))[0]) / self.scale_s for one in self.units]
        self.to_device = [min(one.to_device_s, (one.coded_s or (_INFINITE,))[-1]) / self.scale_s for one in self.units]
        self.block = 4 * self.number + 1
        self.end = 2 * self.number + len(keys) * self.block
        self.upper = np.full(self.end + 1, _INFINITE)
        self.upper[: 2 * self.number] = 1.0
        for unit, one in enumerate(self.units):
            if not one.ways or not recompute:
                self.upper[self.number + unit] = 0.0
        self.rows: list[int] = []
        self.columns: list[int] = []
        self.values: list[float] = []
        self.limits: list[float] = []

    def build(self) -> None:
        """Add every constraint."""
        self._one_fate()
        self._places_fit()
        self._operations_follow()
        for key in range(len(self.keys)):
            away = self._away(self.keys[key])
            self._key_fits(key, away)
            self._copies_out(key, away)
            self._copies_back(key, away)
            self._host_holds(key, away)
        self._keys_follow()

    def solve(self, *, sparing: bool) -> NDArray[np.float64] | None:
        """The best unknowns; None where the host has too little room for any."""
        # A second to import, which not every plan needs.
        from scipy.optimize import linprog
        from scipy.sparse import csr_matrix

        cost = np.zeros(self.end + 1)
        cost[self.end] = 1.0
        if sparing:
            cost[: self.number] = [_SPARED * seconds for seconds in self.to_host]
            cost[self.number : 2 * self.number] = [
                _SPARED * seconds if seconds < _INFINITE else 0.0 for seconds in self.remake
            ]
        matrix = csr_matrix((self.values, (self.rows, self.columns)), shape=(len(self.limits), self.end + 1))
        bounds = np.stack([np.zeros(self.end + 1), self.upper], axis=1)
        found = linprog(cost, A_ub=matrix, b_ub=np.array(self.limits), bounds=bounds, method="highs")
        if found.status == _INFEASIBLE and self.host_bytes is not None:
            return None
        if found.x is None:
            raise SolverError(
                f"the linear program of the memory bound has no solution ({found.message}): "
                f"is the budget above the minimum memory?"
            )
        return np.asarray(found.x)

    def _at_most(self, limit: float, *terms: tuple[int, float]) -> None:
        """The sum of value × unknown is at most `limit`."""
        row = len(self.limits)
        for column, value in terms:
            self.rows.append(row)
            self.columns.append(column)
            self.values.append(value)
        self.limits.append(limit)

    def _time(self, key: int) -> int:
        return 2 * self.number + key * self.block + 4 * self.number

    def _at_key(self, key: int, which: int, unit: int) -> int:
        """Column of x (0), z (1), running time out (2) or back (3) of a unit at a key moment."""
        return 2 * self.number + key * self.block + which * self.number + unit

    def _away(self, place: int) -> list[int]:
        return [unit for unit, one in enumerate(self.units) if one.gone <= place < one.use]

    def _one_fate(self) -> None:
        """(1)."""
        for unit in range(self.number):
            self._at_most(1.0, (unit, 1.0), (self.number + unit, 1.0))

    def _places_fit(self) -> None:
        """(2), in shares of what must be away."""
        for place, away in undominated(self.problem, self.needs):
            need = float(self.needs[place])
            shares = [(unit, -self.units[unit].nbytes / need) for unit in away]
            self._at_most(-1.0, *shares, *((self.number + unit, share) for unit, share in shares))

    def _operations_follow(self) -> None:
        """(5)."""
        terms = [(self.number + unit, self.remake[unit]) for unit, one in enumerate(self.units) if one.ways]
        self._at_most(-self.compute_s, (self.end, -1.0), *terms)

    def _key_fits(self, key: int, away: list[int]) -> None:
        """(3), (4), (6) and (7)."""
        place, need = self.keys[key], float(self.needs[self.keys[key]])
        remade = [unit for unit in away if self.units[unit].ways]
        columns = [(self._at_key(key, 0, unit), unit) for unit in away]
        columns += [(self._at_key(key, 1, unit), unit) for unit in remade]
        self._at_most(-1.0, *((column, -self.units[unit].nbytes / need) for column, unit in columns))
        for unit in away:
            self._at_most(0.0, (self._at_key(key, 0, unit), 1.0), (unit, -1.0))
        for unit in remade:
            self._at_most(0.0, (self._at_key(key, 1, unit), 1.0), (self.number + unit, -1.0))
        before = [
            (self.number + unit, self.remake[unit])
            for unit, one in enumerate(self.units)
            if one.use <= place and one.ways
        ]
        self._at_most(-float(self.seconds[place]), (self._time(key), -1.0), *before)
        after = [(self._at_key(key, 1, unit), self.remake[unit]) for unit in remade]
        self._at_most(float(self.seconds[place]) - self.compute_s, (self._time(key), 1.0), (self.end, -1.0), *after)

    def _copies_out(self, key: int, away: list[int]) -> None:
        """(8), with running times in the order of packs."""
        last: int | None = None
        for unit in away:
            here, copied = (
                self._at_key(key, 2, unit),
                (self._at_key(key, 0, unit), self.to_host[unit]),
            )
            self._at_most(-float(self.seconds[self.units[unit].packed]), copied, (here, -1.0))
            if last is not None:
                self._at_most(0.0, (last, 1.0), copied, (here, -1.0))
            last = here
        if last is not None:
            self._at_most(0.0, (last, 1.0), (self._time(key), -1.0))

    def _copies_back(self, key: int, away: list[int]) -> None:
        """(9), with running times in the order of first uses."""
        last = self._time(key)
        for unit in sorted(away, key=lambda one: (self.units[one].use, one)):
            here, copied = (
                self._at_key(key, 3, unit),
                (self._at_key(key, 0, unit), self.to_device[unit]),
            )
            self._at_most(0.0, (last, 1.0), copied, (here, -1.0))
            after_s = self.compute_s - float(self.seconds[self.units[unit].use])
            self._at_most(-after_s, (here, 1.0), (self.end, -1.0))
            last = here

    def _host_holds(self, key: int, away: list[int]) -> None:
        """(11), in shares of the room."""
        if self.host_bytes is None or not away:
            return
        room = float(max(1, self.host_bytes))
        there = [(unit, self.problem.trace.storages[self.units[unit].number].copy_bytes) for unit in away]
        self._at_most(1.0, *((self._at_key(key, 0, unit), nbytes / room) for unit, nbytes in there))

    def _keys_follow(self) -> None:
        """(10)."""
        for key in range(len(self.keys) - 1):
            passed_s = float(self.seconds[self.keys[key + 1]] - self.seconds[self.keys[key]])
            self._at_most(-passed_s, (self._time(key), 1.0), (self._time(key + 1), -1.0))


DEFAULT_SMALLEST_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetBound:
    """The least time of a step under a budget, with the measured times of operations.

    Attributes:
        step_time_s: of any plan that keeps, offloads or recomputes [s]
        offload_s: of any plan that only keeps or offloads, however much the host would have to hold [s]
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
) -> BudgetBound:
    """The least time of a step under a budget.

    Args:
        trace: the step
        costs: its durations, and the link to the host
        budget_bytes: peak to keep [bytes]
        smallest_bytes: smaller storages are taken to be away for nothing

    Raises:
        InfeasibleError: the host has too little room for any plan
        SolverError: the budget is below the minimum memory, or the solver gave up
    """
    return bound_of(memory_problem(trace, costs, smallest_bytes=smallest_bytes), budget_bytes, costs.host_bytes)


def bound_of(problem: MemoryProblem, budget_bytes: int, host_bytes: int | None = None) -> BudgetBound:
    """The bound of a problem; as `lower_bound`.

    Args:
        problem: the step
        budget_bytes: peak to keep [bytes]
        host_bytes: most that may lie on the host at once [bytes]; None: no limit
    """
    return BudgetBound(
        step_time_s=relax(problem, budget_bytes, host_bytes=host_bytes).step_time_s,
        offload_s=relax(problem, budget_bytes, recompute=False).step_time_s,
        compute_s=problem.compute_s,
        budget_bytes=budget_bytes,
    )


def relax(
    problem: MemoryProblem,
    budget_bytes: int,
    *,
    host_bytes: int | None = None,
    recompute: bool = True,
    sparing: bool = False,
) -> Relaxation:
    """Solve the linear program.

    Args:
        problem: the step
        budget_bytes: peak to keep [bytes]
        host_bytes: most that may lie on the host at once [bytes]; None: no limit
        recompute: whether units may be recomputed
        sparing: of what takes about equally long, take what moves least; the time is then no bound

    Raises:
        InfeasibleError: the host has too little room for any plan
        SolverError: the budget is below the minimum memory, or the solver gave up
    """
    number = len(problem.units)
    needs = needs_of(problem, budget_bytes)
    if not (needs > 0).any():
        nothing = np.zeros(number)
        return Relaxation(step_time_s=problem.compute_s, offloaded=nothing, recomputed=nothing)
    program = LinearProgram(problem, needs, key_places(problem, needs), recompute=recompute, host_bytes=host_bytes)
    program.build()
    found = program.solve(sparing=sparing)
    if found is None:
        raise none_found(budget_bytes, host_bytes, minimum_memory(problem.trace))
    return Relaxation(
        step_time_s=float(found[program.end]) * program.scale_s,
        offloaded=found[:number],
        recomputed=found[number : 2 * number],
    )
