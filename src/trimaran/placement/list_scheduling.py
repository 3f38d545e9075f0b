"""List scheduling: nodes in order of urgency, each where it ends earliest.

The urgency of a task is the longest way from its start to the end of the step, as for HEFT (Topcuoglu, Hariri & Wu,
IEEE Trans. Parallel Distrib. Syst. 13(3), 2002), with a transfer on each edge weighted by `crossing`: 1 as HEFT has it
for very many devices, 0 where everything shares one. The forward decides the device; the backward follows it.
Devices and links are filled into their gaps.
"""

from bisect import bisect_right, insort
from collections.abc import Sequence
from operator import itemgetter

from trimaran.placement.problem import Flat
from trimaran.placement.schedule import NodeSchedule, by_start, lay


def urgencies(flat: Flat, crossing: float) -> list[float]:
    """Longest way from the start of each task to the end of the step [s].

    Args:
        flat: the problem
        crossing: share of edges that are thought to cross
    """
    n = flat.n
    pairs = list(flat.wires)
    share = crossing / len(pairs) if pairs else 0.0
    over = [share * sum(flat.crossing_s(node, *pair) for pair in pairs) for node in range(n)]
    back = [share * sum(flat.returning_s(node, *pair) for pair in pairs) for node in range(n)]
    urgency = [0.0] * (2 * n)
    for node in range(n):
        urgency[n + node] = flat.backward[node] + max(
            (back[producer] + urgency[n + producer] for producer in flat.reads[node]), default=0.0
        )
    for node in reversed(range(n)):
        after = max((over[node] + urgency[reader] for reader in flat.read_by[node]), default=0.0)
        urgency[node] = flat.forward[node] + max(after, urgency[n + node])
    return urgency


_END = itemgetter(1)


class Gaps:
    """Busy intervals of one device or link, in order."""

    __slots__ = ("busy",)

    def __init__(self) -> None:
        self.busy: list[tuple[float, float]] = []

    def earliest(self, ready: float, length: float) -> float:
        """The first moment from which it is free long enough."""
        moment = ready
        # Intervals do not overlap, so they are in the order of their ends too.
        for index in range(bisect_right(self.busy, moment, key=_END), len(self.busy)):
            begin, end = self.busy[index]
            if moment + length <= begin:
                break
            moment = end
        return moment

    def take(self, begin: float, length: float) -> None:
        """Make it busy."""
        if length > 0:
            insort(self.busy, (begin, begin + length))


class Filling:
    """A schedule in the making: tasks are placed one by one, transfers where a task needs them."""

    def __init__(self, flat: Flat, on: Sequence[int] | None = None) -> None:
        self.flat = flat
        self.on = list(on) if on is not None else [flat.pins.get(node, -1) for node in range(flat.n)]
        self.devices = [Gaps() for _ in range(flat.devices)]
        self.links = [Gaps() for _ in flat.links]
        self.start: dict[int, float] = {}
        self.end: dict[int, float] = {}

    def needs(self, task: int, device: int) -> tuple[float, list[tuple[int, float, float, tuple[int, ...]]]]:
        """When the inputs of a task can be on a device, and the transfers that this takes."""
        flat, n, devices, on, end = self.flat, self.flat.n, self.flat.devices, self.on, self.end
        ready = 0.0
        wanted: list[tuple[float, float, int, tuple[int, ...]]] = []
        if task < n:
            for producer in flat.reads[task]:
                item = producer if on[producer] == device else 2 * n + producer * devices + device
                if item in end:
                    ready = max(ready, end[item])
                else:
                    length = flat.crossing_s(producer, on[producer], device)
                    wanted.append((end[producer], length, item, flat.ways[on[producer], device]))
        else:
            node = task - n
            ready = end[node]
            done: dict[int, float] = {}
            for reader in flat.read_by[node]:
                done[on[reader]] = max(done.get(on[reader], 0.0), end[n + reader])
            for other, when in done.items():
                if other == device:
                    ready = max(ready, when)
                else:
                    item = 2 * n + n * devices + node * devices + other
                    wanted.append((when, flat.returning_s(node, other, device), item, flat.ways[other, device]))
        made = []
        taken: dict[int, list[tuple[float, float]]] = {}
        for when, length, item, ways in sorted(wanted):
            begin = self._free(when, length, ways, taken)
            for link in ways:
                taken.setdefault(link, []).append((begin, begin + length))
            made.append((item, begin, length, ways))
            ready = max(ready, begin + length)
        return ready, made

    def _free(
        self, ready: float, length: float, ways: Sequence[int], taken: dict[int, list[tuple[float, float]]]
    ) -> float:
        """The first moment at which all links are free long enough, with what is about to be taken."""
        moment = ready
        while True:
            before = moment
            for link in ways:
                moment = self.links[link].earliest(moment, length)
                for begin, end in sorted(taken.get(link, ())):
                    if end > moment and begin < moment + length:
                        moment = end
            if moment == before:
                return moment

    def put(self, task: int, device: int) -> None:
        """Run a task on a device as early as it can."""
        flat = self.flat
        ready, made = self.needs(task, device)
        for item, begin, length, ways in made:
            self.start[item], self.end[item] = begin, begin + length
            for link in ways:
                self.links[link].take(begin, length)
        length = flat.forward[task] if task < flat.n else flat.backward[task - flat.n]
        begin = self.devices[device].earliest(ready, length)
        self.devices[device].take(begin, length)
        self.start[task], self.end[task] = begin, begin + length

    def done(self) -> NodeSchedule:
        """The schedule."""
        return lay(self.flat, self.on, by_start(self.flat, self.start, self.end))


def list_schedule(flat: Flat, crossing: float = 1.0) -> NodeSchedule:
    """The schedule in which each node, most urgent first, goes where its forward ends earliest.

    Args:
        flat: the problem
        crossing: see `urgencies`
    """
    n = flat.n
    urgency = urgencies(flat, crossing)
    filling = Filling(flat)
    state = [0.0] * flat.devices
    for task in sorted(range(2 * n), key=lambda task: (-urgency[task], task if task < n else 3 * n - task)):
        if task < n:
            device = filling.on[task] if filling.on[task] >= 0 else _best(filling, task, state)
            filling.on[task] = device
            state[device] += flat.state[task] + flat.held[task]
        filling.put(task, filling.on[task % n])
    return filling.done()


def _best(filling: Filling, task: int, state: Sequence[float]) -> int:
    """The device on which a forward ends earliest, of those that have room for the node."""
    flat = filling.flat
    length = flat.forward[task]
    need = flat.state[task] + flat.held[task]
    choices = []
    for device in range(flat.devices):
        if any(filling.on[p] != device and (filling.on[p], device) not in flat.wires for p in flat.reads[task]):
            continue
        ready, _ = filling.needs(task, device)
        full = max(0.0, state[device] + need - flat.memory[device])
        choices.append((full, filling.devices[device].earliest(ready, length) + length, device))
    return min(choices)[2]
