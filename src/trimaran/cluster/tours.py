"""As many closed tours through some devices as the links between them allow.

The problem: a directed graph with a number of links on each arc; as many closed tours through all vertices as can be
taken at once, each link in each direction by one of them. Tours are taken in an order that never goes back, so that no
set is looked at twice, and a set is given up once what is left could not make it the best. It ends when a bound is
reached: no more tours than links leave any set of devices.
"""

import functools
from collections.abc import Iterator, Mapping
from itertools import combinations

Tour = tuple[int, ...]
Capacity = Mapping[tuple[int, int], int]

EXACT = 8
"""Most devices whose rings are searched to the end."""

_SHARED = 4
"""Most devices for which rings that share a link are looked for (NVIDIA/nccl@f93fe9bf:src/transport/p2p.cu)."""

_STEPS = 200_000
"""Tours that are tried before a search is cut off: under a second."""


def best_tours(devices: Tour, capacity: Capacity) -> tuple[tuple[Tour, ...], float, bool]:
    """Tours, the share of a link that each has, and whether there are no more."""
    whole, exact = _most_tours(devices, capacity)
    if not whole or len(devices) > _SHARED or len(whole) == _bound(devices, capacity):
        return whole, 1.0, exact
    halves, half_exact = _most_tours(devices, {key: 2 * count for key, count in capacity.items()})
    return (halves, 0.5, half_exact) if len(halves) > 2 * len(whole) else (whole, 1.0, exact)


def _most_tours(devices: Tour, capacity: Capacity) -> tuple[tuple[Tour, ...], bool]:
    return _searched(devices, tuple(sorted(capacity.items())))


@functools.lru_cache(maxsize=1024)
def _searched(devices: Tour, links: tuple[tuple[tuple[int, int], int], ...]) -> tuple[tuple[Tour, ...], bool]:
    """As many tours as fit, and whether the search went to its end."""
    capacity = dict(links)
    if len(devices) == 2:
        a, b = devices
        return ((a, b),) * capacity.get((a, b), 0), True
    bound = _bound(devices, capacity)
    search = _Search(devices, capacity, bound)
    search.run()
    return search.best, len(search.best) == bound or (search.steps < _STEPS and len(devices) <= EXACT)


def _bound(devices: Tour, capacity: Capacity) -> int:
    """No more tours than this: each leaves every set of devices at least once.

    All sets are looked at where they are few, single devices and pairs of them where there are many.
    """
    most = len(devices) // 2 if len(devices) <= EXACT else 2
    leaving = []
    for size in range(1, most + 1):
        for inside in combinations(devices, size):
            crossing = (count for (a, b), count in capacity.items() if a in inside and b not in inside)
            leaving.append(sum(crossing))
    return min(leaving)


class _Search:
    """Tours taken one after the other, in an order that never goes back, until the bound or the last step."""

    def __init__(self, devices: Tour, capacity: Capacity, bound: int) -> None:
        self.devices = devices
        self.room = dict(capacity)
        self.bound = bound
        self.steps = 0
        self.best: tuple[Tour, ...] = ()
        self.next = {a: tuple(b for b in devices if capacity.get((a, b), 0)) for a in devices}

    def run(self) -> None:
        if self.bound:
            self._extend((), (self.devices[0],))

    def _extend(self, taken: tuple[Tour, ...], least: Tour) -> bool:
        """Add one more tour, not before the last one in order; whether the bound is reached."""
        if len(taken) > len(self.best):
            self.best = taken
        if len(self.best) == self.bound:
            return True
        for tour in self._tours((self.devices[0],), least):
            steps = tuple(zip(tour, (*tour[1:], tour[0]), strict=True))
            for step in steps:
                self.room[step] -= 1
            done = self._hopeful(len(taken) + 1) and self._extend((*taken, tour), tour)
            for step in steps:
                self.room[step] += 1
            if done or self.steps >= _STEPS:
                return done
        return False

    def _hopeful(self, count: int) -> bool:
        """Whether what is left could still make more tours than the best has."""
        left = min(sum(self.room[a, b] for b in self.next[a]) for a in self.devices)
        return count + left > len(self.best)

    def _tours(self, way: Tour, least: Tour) -> Iterator[Tour]:
        """Tours on what is left, in order, none before `least`."""
        self.steps += 1
        if self.steps >= _STEPS:
            return
        if len(way) == len(self.devices):
            if self.room.get((way[-1], way[0]), 0) > 0 and way >= least:
                yield way
            return
        for vertex in self.next[way[-1]]:
            if vertex not in way and self.room[way[-1], vertex] > 0:
                further = (*way, vertex)
                if further >= least[: len(further)]:
                    yield from self._tours(further, least)
