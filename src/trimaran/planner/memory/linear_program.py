"""The linear program of the bound, row by row; its constraints are numbered where `bound` states the problem."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix

from trimaran.errors import SolverError
from trimaran.planner.memory.needs import undominated
from trimaran.planner.memory.problem import MemoryProblem

_INFINITE = float("inf")
# What moving a unit costs beside the time that it takes, as a share of its own time.
_SPARED = 0.02


class LinearProgram:
    """The matrix and its solution.

    Args:
        problem: the step
        needs: bytes that must be away at each place
        keys: places of the key moments
        recompute: whether units may be recomputed
    """

    def __init__(self, problem: MemoryProblem, needs: NDArray[np.int64], keys: list[int], *, recompute: bool) -> None:
        self.problem = problem
        self.needs = needs
        self.keys = keys
        self.units = problem.units
        self.number = len(problem.units)
        # Times in steps, so that the solver's tolerances are relative.
        self.scale_s = problem.compute_s or 1.0
        self.seconds = problem.elapsed_s / self.scale_s
        self.compute_s = problem.compute_s / self.scale_s
        self.remake = [one.recompute_s / self.scale_s for one in self.units]
        self.to_host = [one.to_host_s / self.scale_s for one in self.units]
        self.to_device = [one.to_device_s / self.scale_s for one in self.units]
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
        self._keys_follow()

    def solve(self, *, sparing: bool) -> NDArray[np.float64]:
        """The best unknowns."""
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
        if found.x is None:
            raise SolverError(
                f"the linear program of the memory bound has no solution ({found.message}): "
                f"is the budget above the floor?"
            )
        return np.asarray(found.x)

    def _at_most(self, limit: float, *terms: tuple[int, float]) -> None:
        """The sum of value × unknown is at most the limit."""
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

    def _keys_follow(self) -> None:
        """(10)."""
        for key in range(len(self.keys) - 1):
            passed_s = float(self.seconds[self.keys[key + 1]] - self.seconds[self.keys[key]])
            self._at_most(-passed_s, (self._time(key), 1.0), (self._time(key + 1), -1.0))
