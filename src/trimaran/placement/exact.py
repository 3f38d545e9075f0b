"""The best schedule that a constraint program finds, and the bound that it proves.

One search of CP-SAT, with no second worker: its answer depends on the problem, the seed and the work that it may do,
and not on the machine, as long as the wall time suffices.

Placement, order, transfers and memory as one constraint program, solved by CP-SAT.

    decide      on[v, d]                device d has node v                                    in {0, 1}
                start[t]                of every forward and backward t                        in ticks
                crosses[v, a, b]        the output of v goes from device a to device b         in {0, 1}
                go[v, b], back[v, b]    start of that transfer, and of the gradient's          in ticks
    minimise    makespan
    subject to  sum_d on[v, d] = 1                                                             one device a node   (1)
                on[v, a] and on[w, b] imply crosses[v, a, b], for each edge v -> w             one transfer a device (2)
                start[F w] >= end[F v];  >= arrival of v on b where w is there                 precedence          (3)
                start[B v] >= end[F v], >= end[B w];  >= arrival of the gradient from b        precedence          (4)
                go[v, b] >= end[F v];  back[v, b] >= end[B w] for each w on b                  transfers           (5)
                tasks of a device, and transfers of a link, do not overlap                     resources           (6)
                tensors on a device at once fit its memory (`model_memory`)                    memory              (7)
                makespan >= end of every task; and the load of each device, by phase           bound               (8)

A tick is a whole number of a small unit, and lengths are rounded down to it: the solver's bound is a bound of the
problem itself, and the times of the answer come from its order (`lay`), not from its ticks.
"""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass

from ortools.sat.python import cp_model

from trimaran.placement.bounds import least_s
from trimaran.placement.problem import Flat
from trimaran.placement.schedule import NodeSchedule, by_start, lay, length_of, memory_of_all, releases, transfers_of

TICKS = 1 << 22
"""Ticks of the longest schedule that is considered: rounding is below a millionth of it."""


class Model:
    """The constraint program of one problem.

    Args:
        flat: the problem
        horizon_s: no schedule longer than this is looked for [s]
    """

    def __init__(self, flat: Flat, horizon_s: float) -> None:
        self.flat = flat
        self.tick_s = horizon_s / TICKS if horizon_s > 0 else 1.0
        self.horizon = TICKS
        self.model = cp_model.CpModel()
        self.start: dict[int, cp_model.IntVar] = {}
        self.on: list[list[cp_model.LiteralT]] = []
        self.choices: dict[int, dict[int, cp_model.IntVar]] = {}
        self.crosses: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self.on_device: list[list[cp_model.IntervalVar]] = [[] for _ in range(flat.devices)]
        self.on_link: list[list[cp_model.IntervalVar]] = [[] for _ in flat.links]
        self.makespan = self.model.new_int_var(0, self.horizon, "makespan")
        self._place()
        self._tasks()
        self._transfers()
        self._precede()
        for intervals in (*self.on_device, *self.on_link):
            self.model.add_no_overlap(intervals)
        self._bound()
        self.model.minimize(self.makespan)

    def ticks(self, seconds: float) -> int:
        """A length in whole ticks, rounded down (a hair above a whole number counts as that number).

        A duration beyond the horizon never fits: its excess does not matter, and may be no integer.
        """
        return int(min(seconds / self.tick_s * (1 + 1e-12), self.horizon + 1))

    def _place(self) -> None:
        """(1), and the devices that are equal to each other in a fixed order."""
        flat, model = self.flat, self.model
        for node in range(flat.n):
            if node in flat.pins:
                self.on.append([model.new_constant(int(flat.pins[node] == d)) for d in range(flat.devices)])
            elif flat.devices == 2:
                second = model.new_bool_var(f"on{node}")
                self.choices[node] = {1: second}
                self.on.append([second.negated(), second])
            else:
                choices = [model.new_bool_var(f"on{node},{d}") for d in range(flat.devices)]
                model.add_exactly_one(choices)
                self.on.append(list(choices))
                self.choices[node] = dict(enumerate(choices))
        for producer, readers in enumerate(flat.read_by):
            for reader in readers:
                for a in range(flat.devices):
                    for b in range(flat.devices):
                        if a != b and (a, b) not in flat.wires:
                            model.add_bool_or(_no(self.on[producer][a]), _no(self.on[reader][b]))

    def _tasks(self) -> None:
        """Starts of forwards and backwards, and their intervals on each device."""
        flat, model = self.flat, self.model
        for task in range(2 * flat.n):
            node = task % flat.n
            length = self.length(task)
            start = model.new_int_var(0, self.horizon - length, f"s{task}")
            self.start[task] = start
            for device in range(flat.devices):
                self.on_device[device].append(
                    model.new_optional_fixed_size_interval_var(
                        start, length, self.on[node][device], f"i{task},{device}"
                    )
                )

    def length(self, task: int) -> int:
        """Ticks of a forward or backward."""
        flat = self.flat
        return self.ticks(flat.forward[task] if task < flat.n else flat.backward[task - flat.n])

    def _transfers(self) -> None:
        """(2) and (5): the starts of transfers, and their intervals on each link."""
        flat, model, n, devices = self.flat, self.model, self.flat.n, self.flat.devices
        for node in range(n):
            if not flat.read_by[node]:
                continue
            for b in range(devices):
                go, back = 2 * n + node * devices + b, 2 * n + n * devices + node * devices + b
                self.start[go] = model.new_int_var(0, self.horizon, f"g{node},{b}")
                self.start[back] = model.new_int_var(0, self.horizon, f"b{node},{b}")
                for a in range(devices):
                    if a == b or (a, b) not in flat.wires:
                        continue
                    crosses = model.new_bool_var(f"x{node},{a},{b}")
                    self.crosses[node, a, b] = crosses
                    model.add_implication(crosses, self.on[node][a])
                    model.add_bool_or(*(self.on[reader][b] for reader in flat.read_by[node]), crosses.negated())
                    for reader in flat.read_by[node]:
                        model.add_bool_or(_no(self.on[node][a]), _no(self.on[reader][b]), crosses)
                    self._hold(go, self.ticks(flat.crossing_s(node, a, b)), crosses, flat.ways[a, b])
                    if (b, a) in flat.wires:
                        self._hold(back, self.ticks(flat.returning_s(node, b, a)), crosses, flat.ways[b, a])

    def _hold(self, item: int, length: int, crosses: cp_model.IntVar, ways: tuple[int, ...]) -> None:
        """A transfer holds all its links."""
        interval = self.model.new_optional_fixed_size_interval_var(
            self.start[item], length, crosses, f"t{item},{len(self.on_link)}"
        )
        for link in ways:
            self.on_link[link].append(interval)

    def _precede(self) -> None:
        """(3), (4), (5)."""
        flat, model, n, devices = self.flat, self.model, self.flat.n, self.flat.devices
        for node in range(n):
            model.add(self.start[n + node] >= self.start[node] + self.length(node))
            for reader in flat.read_by[node]:
                model.add(self.start[reader] >= self.start[node] + self.length(node))
                model.add(self.start[n + node] >= self.start[n + reader] + self.length(n + reader))
        for (node, a, b), crosses in self.crosses.items():
            go, back = 2 * n + node * devices + b, 2 * n + n * devices + node * devices + b
            there = self.ticks(flat.crossing_s(node, a, b))
            model.add(self.start[go] >= self.start[node] + self.length(node)).only_enforce_if(crosses)
            for reader in flat.read_by[node]:
                both = (crosses, self.on[reader][b])
                model.add(self.start[reader] >= self.start[go] + there).only_enforce_if(*both)
                model.add(self.start[back] >= self.start[n + reader] + self.length(n + reader)).only_enforce_if(*both)
            if (b, a) in flat.wires:
                here = self.ticks(flat.returning_s(node, b, a))
                model.add(self.start[n + node] >= self.start[back] + here).only_enforce_if(crosses)

    def _bound(self) -> None:
        """(8). Where one node comes after all others, no backward starts before all forwards have ended."""
        flat, model, n = self.flat, self.model, self.flat.n
        for task in range(2 * n):
            model.add(self.makespan >= self.start[task] + self.length(task))
        model.add(self.makespan >= min(self.ticks(least_s(flat)), self.horizon))
        sinks = [node for node in range(n) if not flat.read_by[node]]
        turn = self.start[n + sinks[0]] if len(sinks) == 1 else None
        for device in range(flat.devices):
            here = [self.on[node][device] for node in range(n)]
            forward = cp_model.LinearExpr.weighted_sum(here, [self.length(node) for node in range(n)])
            backward = cp_model.LinearExpr.weighted_sum(here, [self.length(n + node) for node in range(n)])
            if turn is None:
                model.add(self.makespan >= forward + backward)
            else:
                model.add(turn >= forward)
                model.add(self.makespan >= turn + backward)

    def hint(self, layout: NodeSchedule) -> None:
        """Start the search from a schedule."""
        flat, model, n = self.flat, self.model, self.flat.n
        for node in range(n):
            if node in flat.pins:
                continue
            for device, choice in self.choices[node].items():
                model.add_hint(choice, layout.on[node] == device)
        for item, start in layout.start.items():
            model.add_hint(self.start[item], int(start / self.tick_s))
        for (node, a, b), crosses in self.crosses.items():
            model.add_hint(crosses, layout.on[node] == a and any(layout.on[r] == b for r in flat.read_by[node]))
        model.add_hint(self.makespan, min(self.horizon, int(layout.makespan_s / self.tick_s)))


def _no(literal: cp_model.LiteralT) -> cp_model.LiteralT:
    return literal.negated() if hasattr(literal, "negated") else ~literal


# ---------------------------------------------------------------------------------------------------------------------
# Memory of the constraint program of a placement (`model`): tensors on a device at once fit it, constraint (7)


_BYTES = 1 << 34
"""Bytes are counted in units of which all that there is makes no more than this."""


def fit(whole: Model) -> None:
    """(7): state always; saved tensors from forward to backward; received tensors until their last use.

    Args:
        whole: the program without memory; gets the constraints
    """
    total = memory_of_all(whole.flat)
    scale = max(1.0, total / _BYTES)
    for device, memory in enumerate(whole.flat.memory):
        _fit_device(whole, device, int(min(memory, total) / scale), scale)


def _fit_device(whole: Model, device: int, room: int, scale: float) -> None:
    flat, model, n, devices = whole.flat, whole.model, whole.flat.n, whole.flat.devices
    intervals: list[cp_model.IntervalVar] = []
    sizes: list[cp_model.LinearExprT] = []

    def hold(item: int, until: Iterable[int], nbytes: float, present: cp_model.LiteralT) -> None:
        size = math.ceil(nbytes / scale)  # rounded up, so that a fit here is a real fit
        if size == 0:
            return
        length = model.new_int_var(0, whole.horizon, "")
        end = model.new_int_var(0, whole.horizon, "")
        for task in until:
            there = whole.on[task % n][device]
            model.add(end >= whole.start[task] + whole.length(task)).only_enforce_if(present, there)
        intervals.append(model.new_optional_interval_var(whole.start[item], length, end, present, ""))
        sizes.append(size)

    for node in range(n):
        hold(node, [n + node], flat.held[node], whole.on[node][device])
    for (node, a, b), crosses in whole.crosses.items():
        go, back = 2 * n + node * devices + b, 2 * n + n * devices + node * devices + b
        if b == device:
            hold(go, [n + reader for reader in flat.read_by[node]], flat.out_bytes[node], crosses)
        elif a == device:
            hold(back, [n + node], flat.grad_bytes[node], crosses)
    used = model.new_int_var(0, room, "")
    here = [whole.on[node][device] for node in range(n)]
    sizes_here = [math.ceil(nbytes / scale) for nbytes in flat.state]
    model.add(used == cp_model.LinearExpr.weighted_sum(here, sizes_here))
    intervals.append(model.new_fixed_size_interval_var(0, whole.horizon, ""))
    sizes.append(used)
    model.add_cumulative(intervals, sizes, room)


@dataclass(slots=True, kw_only=True)
class Proof:
    """Result of the solver.

    Attributes:
        layout: the best schedule; None where none was found
        bound_s: no schedule is shorter [s]
        optimal: the schedule is the best, up to the rounding of ticks
        infeasible: nothing fits
        work: deterministic time spent
    """

    layout: NodeSchedule | None
    bound_s: float
    optimal: bool
    infeasible: bool
    work: float


def solve(
    flat: Flat,
    start: NodeSchedule,
    *,
    wall_s: float,
    work: float,
    deadline: float = math.inf,
    seed: int,
    gap: float = 0.0,
    memory: bool = False,
) -> Proof:
    """The best schedule that the limits allow.

    Args:
        flat: the problem
        start: a schedule, which may use more memory than there is: no longer one is looked for unless memory counts
        wall_s: wall time that may be spent; infinite: any [s]
        work: deterministic time that may be spent, by the solver's own count
        deadline: moment at which all ends, by the monotonic clock [s]
        seed: of the solver
        gap: stop when the answer is within this share of the solver's bound
        memory: whether memory is a constraint
    """
    nothing = Proof(layout=None, bound_s=0.0, optimal=False, infeasible=False, work=0.0)
    if time.monotonic() > deadline:
        return nothing
    horizon_s = flat.serial_s + _all_transfers(flat) if memory else start.makespan_s
    model = Model(flat, horizon_s)
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


def read(model: Model, flat: Flat, solver: cp_model.CpSolver, *, memory: bool) -> NodeSchedule:
    """The solver's order, with the times that follow from it."""
    on = [next(d for d in range(flat.devices) if solver.boolean_value(choices[d])) for choices in model.on]
    items = [*range(2 * flat.n), *transfers_of(flat, on)]
    start = {item: float(solver.value(model.start[item])) for item in items}
    end = {item: start[item] + model.ticks(length_of(flat, on, item)) for item in items}
    order = by_start(flat, start, end)
    return lay(flat, on, order, releases(flat, on, order, start, end) if memory else None)
