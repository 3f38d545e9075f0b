"""The optimum of small problems, found again by a mixed-integer program of another solver.

For two devices: y[v] says which device has node v, big-M disjunctions order the tasks of a device and the transfers of
a wire. The model is written from the rules of the reference scorer, not from the constraint program.
"""

import itertools

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from trimaran.placement.problem import PlacementNode, PlacementProblem, Wire
from trimaran.placement.solve import place

PROBLEMS = {
    "a fork and its join": (
        [(1, 1, 1), (3, 4, 1), (2, 5, 1), (1, 1, 0)],
        [(0, 1), (0, 2), (1, 3), (2, 3)],
    ),
    "two forks": (
        [(1, 2, 1), (4, 3, 1), (3, 5, 1), (2, 2, 1), (2, 3, 1)],
        [(0, 1), (0, 2), (1, 3), (2, 4)],
    ),
    "a chain beside a node": (
        [(2, 2, 1), (2, 2, 2), (2, 2, 1), (5, 6, 2), (1, 1, 0)],
        [(0, 1), (1, 2), (2, 4), (3, 4)],
    ),
}


class Program:
    """Rows of a mixed-integer program, collected one by one."""

    def __init__(self) -> None:
        self.upper: list[float] = []
        self.whole: list[int] = []
        self.rows: list[dict[int, float]] = []
        self.least: list[float] = []

    def variable(self, upper: float, *, whole: bool) -> int:
        """A new variable from 0 to its upper bound."""
        self.upper.append(upper)
        self.whole.append(int(whole))
        return len(self.upper) - 1

    def require(self, row: dict[int, float], least: float) -> None:
        """row . x >= least."""
        self.rows.append(row)
        self.least.append(least)

    def minimum(self, objective: int) -> float:
        """The least value of a variable."""
        matrix = np.zeros((len(self.rows), len(self.upper)))
        for index, row in enumerate(self.rows):
            for column, factor in row.items():
                matrix[index, column] += factor
        cost = np.zeros(len(self.upper))
        cost[objective] = 1.0
        found = milp(
            cost,
            integrality=np.array(self.whole),
            bounds=Bounds(0, np.array(self.upper)),
            constraints=LinearConstraint(matrix, np.array(self.least), np.inf),
            options={"mip_rel_gap": 0.0, "time_limit": 60},
        )
        assert found.status == 0, found.message
        return float(found.fun)


def optimum(nodes: list[tuple[int, int, int]], edges: list[tuple[int, int]]) -> float:
    """The shortest step on two devices with a wire of a unit a second each way."""
    big = float(sum(f + b + 2 * size for f, b, size in nodes))
    program = Program()
    makespan = program.variable(big, whole=False)
    place_of = [program.variable(1, whole=True) for _ in nodes]
    start = {(v, ph): program.variable(big, whole=False) for v in range(len(nodes)) for ph in "FB"}
    length = {(v, "F"): f for v, (f, _, _) in enumerate(nodes)} | {(v, "B"): b for v, (_, b, _) in enumerate(nodes)}
    readers = {v: [b for a, b in edges if a == v] for v in range(len(nodes))}
    for task, begin in start.items():
        program.require({makespan: 1, begin: -1}, length[task])
    for v in range(len(nodes)):
        program.require({start[v, "B"]: 1, start[v, "F"]: -1}, length[v, "F"])
    crosses = {}
    for v, (_, _, size) in enumerate(nodes):
        for target in (0, 1):
            if not readers[v]:
                continue
            used = program.variable(1, whole=True)
            crosses[v, target] = used
            moves = {ph: program.variable(big, whole=False) for ph in "FB"}
            start[v, f"go{target}"], start[v, f"back{target}"] = moves["F"], moves["B"]
            length[v, f"go{target}"] = length[v, f"back{target}"] = size
            here = 1 if target == 0 else -1
            for reader in readers[v]:
                # used >= (v is not on target) + (reader is on target) - 1
                program.require({used: 1, place_of[v]: -here, place_of[reader]: here}, 0)
                # where reader is on target and v is not: F v, go, F reader; B reader, back, B v
                off = {place_of[v]: -here * big, place_of[reader]: here * big}
                program.require({start[reader, "F"]: 1, moves["F"]: -1} | off, size - big)
                program.require({moves["B"]: 1, start[reader, "B"]: -1} | off, length[reader, "B"] - big)
            program.require({moves["F"]: 1, start[v, "F"]: -1}, length[v, "F"])
            program.require({start[v, "B"]: 1, moves["B"]: -1, used: -big}, size - big)
    for a, b in edges:
        program.require({start[b, "F"]: 1, start[a, "F"]: -1}, length[a, "F"])
        program.require({start[a, "B"]: 1, start[b, "B"]: -1}, length[b, "B"])
    tasks = [(v, ph) for v in range(len(nodes)) for ph in "FB"]
    for one, other in itertools.combinations(tasks, 2):
        if one[0] == other[0]:
            continue
        first = program.variable(1, whole=True)
        together = {place_of[one[0]]: big, place_of[other[0]]: big}
        apart = {place_of[one[0]]: -big, place_of[other[0]]: -big}
        for side, most in ((together, 0.0), (apart, -2 * big)):
            # on device 0 both places are 0, on device 1 both are 1: only then one is before the other
            program.require({start[other]: 1, start[one]: -1, first: -big} | side, length[one] - big + most)
            program.require({start[one]: 1, start[other]: -1, first: big} | side, length[other] + most)
    for target in (0, 1):
        moves_in = [(v, f"go{target}") for v, side in crosses if side == target]
        moves_in += [(v, f"back{1 - target}") for v, side in crosses if side == 1 - target]
        used_by = {key: crosses[key[0], target if key[1].startswith("go") else 1 - target] for key in moves_in}
        for one, other in itertools.combinations(moves_in, 2):
            first = program.variable(1, whole=True)
            both = {used_by[one]: -big, used_by[other]: -big}
            program.require({start[other]: 1, start[one]: -1, first: -big} | both, length[one] - 3 * big)
            program.require({start[one]: 1, start[other]: -1, first: big} | both, length[other] - 2 * big)
    return program.minimum(makespan)


@pytest.mark.parametrize("name", PROBLEMS)
def test_another_solver_finds_the_same_optimum(name: str) -> None:
    nodes, edges = PROBLEMS[name]
    answer = place(
        PlacementProblem(
            nodes=tuple(
                PlacementNode(name=f"n{i}", forward_s=f, backward_s=b, nbytes=size, backward_nbytes=size)
                for i, (f, b, size) in enumerate(nodes)
            ),
            edges=tuple(edges),
            memory_bytes=(1e9, 1e9),
            wires={(0, 1): Wire(bytes_per_s=1.0, links=("0>1",)), (1, 0): Wire(bytes_per_s=1.0, links=("1>0",))},
        ),
        time_limit_s=20,
    )
    assert answer.gap == pytest.approx(0.0, abs=2e-6)
    assert answer.makespan_s == pytest.approx(optimum(nodes, edges), rel=1e-5)
