"""Placement, order, transfers and memory as one constraint program, solved by CP-SAT.

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
                what lives on a device at once fits its memory (`model_memory`)                memory              (7)
                makespan >= end of every task; and the load of each device, by phase           bound               (8)

A tick is a whole number of a small unit, and lengths are rounded down to it: what the solver proves is a bound of the
problem itself, and the times of the answer come from its order (`lay`), not from its ticks.
"""

from collections.abc import Collection

from ortools.sat.python import cp_model

from trimaran.planner.placement.bounds import least_s
from trimaran.planner.placement.flat import Flat
from trimaran.planner.placement.lay import Layout

TICKS = 1 << 22
"""Ticks of the longest schedule that is considered: rounding is below a millionth of it."""


class Model:
    """The constraint program of one problem.

    Args:
        flat: the problem
        horizon_s: no schedule longer than this is looked for [s]
        frozen: a schedule whose devices and orders hold for all but the free nodes
        free: numbers of the free nodes
    """

    def __init__(
        self,
        flat: Flat,
        horizon_s: float,
        *,
        frozen: Layout | None = None,
        free: Collection[int] = (),
    ) -> None:
        self.flat = flat
        self.frozen = frozen
        self.free = frozenset(free)
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
        if frozen is not None:
            self._keep_order()
        self.model.minimize(self.makespan)

    def ticks(self, seconds: float) -> int:
        """A length in whole ticks, rounded down (a hair above a whole number counts as that number).

        What takes longer than the horizon never fits before it: by how much does not matter, and might be no integer.
        """
        return int(min(seconds / self.tick_s * (1 + 1e-12), self.horizon + 1))

    def _place(self) -> None:
        """(1), and the devices that are equal to each other in a fixed order."""
        flat, model = self.flat, self.model
        for node in range(flat.n):
            if self.fixed(node) or node in flat.pins:
                home = self.frozen.on[node] if self.frozen is not None and self.fixed(node) else flat.pins[node]
                self.on.append([model.new_constant(int(home == d)) for d in range(flat.devices)])
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

    def fixed(self, node: int) -> bool:
        """Whether a node stays where it is."""
        return self.frozen is not None and node not in self.free

    def _keep_order(self) -> None:
        """Tasks of nodes that stay keep their order on each device."""
        if self.frozen is None:
            return
        last: dict[int, int] = {}
        n = self.flat.n
        for item in self.frozen.order:
            if item < 2 * n and self.fixed(item % n):
                device = self.frozen.on[item % n]
                if device in last:
                    self.model.add(self.start[item] >= self.start[last[device]] + self.length(last[device]))
                last[device] = item

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

    def hint(self, layout: Layout) -> None:
        """Start the search from a schedule."""
        flat, model, n = self.flat, self.model, self.flat.n
        for node in range(n):
            if node in flat.pins or self.fixed(node):
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
