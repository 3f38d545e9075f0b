"""Rings of a collective, found on the links that are there.

A ring visits every device once and comes back. On links of the devices' own each direction of a link carries one
ring, so the problem is: as many closed tours through the chosen devices as the links allow, each direction of each
link used once. `tours` solves it: exactly for up to eight devices, and with a search that is cut off for more. Up to
four devices, two rings may also share a link: four that are all joined have the rate of three rings, though
no three whole ones.

On a DGX-1 with P100, devices 0 to 3 are all joined and device 4 has a link to 0 alone. No tour through 4 exists, so a
ring of five falls to PCIe, a tenth as fast.

Devices on NVLink switches reach all others over all their links: as many rings as a device has links. Where no tour
exists at all, one ring goes over PCIe in the order of the tree, and its slowest step decides.

As many closed tours through some devices as the links between them allow.

The problem: a directed graph with a number of links on each arc; as many closed tours through all vertices as can be
taken at once, each link in each direction by one of them. Tours are taken in an order that never goes back, so that no
set is looked at twice, and a set is dropped once the rest cannot make it the best. It ends when a bound is
reached: no more tours than links leave any set of devices.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Literal

from trimaran.machine.topology import Pair, check_devices, host_route, pair, switch_links
from trimaran.machine.types import Edge, Link, Node

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


RingKind = Literal["links", "switch", "pcie", "staged", "none"]
"""Links of the devices' own; switches for them; PCIe from device to device; PCIe by way of the host; one device."""

RING_SHARE = 0.93
"""Share of a link's copies that a ring sustains where no ring was measured: 0.94 of NVLink 1, 0.95 of 2, 0.93 of 4."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RingSet:
    """Rings through some devices of a node.

    Attributes:
        devices: that they go through
        kind: over what
        rings: each as the order in which it visits the devices
        share: of a link's rate that each ring has: 1, or 0.5 where two share each link
        bytes_per_s: of all of them together: bus bandwidth of a large all-reduce, `2 (n - 1) / n` of the buffer over
            its time [bytes/s]
        slowest: what limits it, in words
        exact: no set of more rings exists
    """

    devices: Tour
    kind: RingKind
    rings: tuple[Tour, ...]
    share: float
    bytes_per_s: float
    slowest: str
    exact: bool


def ring_bandwidth(node: Node, devices: Iterable[int]) -> RingSet:
    """The best set of rings through some devices of a node.

    Args:
        node: that has them
        devices: their numbers

    Raises:
        InputError: the node has no such device

    Example:
        >>> from trimaran.machine.catalog import find_node
        >>> dgx = find_node("dgx1-p100")
        >>> [round(ring_bandwidth(dgx, range(count)).bytes_per_s / 1e9, 1) for count in (4, 5, 6)]
        [51.9, 5.6, 34.6]
    """
    chosen = tuple(devices)
    check_devices(node, chosen)
    if len(chosen) < 2:
        return RingSet(
            devices=chosen, kind="none", rings=(), share=1.0, bytes_per_s=0.0, slowest="one device", exact=True
        )
    switched = min(switch_links(node, number) for number in chosen)
    if switched:
        link = pair(node, *chosen[:2]).route.edges[0].link
        return _over_links(chosen, (chosen,) * switched, link, kind="switch", share=1.0, exact=True)
    capacity = _capacity(node, chosen)
    tours, share, exact = best_tours(chosen, capacity)
    if tours:
        link = next(edge.link for edge in pair(node, tours[0][0], tours[0][1]).route.edges)
        return _over_links(chosen, tours, link, kind="links", share=share, exact=exact)
    return _over_pcie(node, chosen)


def ring_rate(link: Link) -> float:
    """Rate of a ring on one link, in one direction [bytes/s]."""
    return link.ring_bytes_per_s or RING_SHARE * link.bytes_per_s


def _over_links(
    devices: Tour, tours: tuple[Tour, ...], link: Link, *, kind: RingKind, share: float, exact: bool
) -> RingSet:
    count = len(tours) * share
    return RingSet(
        devices=devices,
        kind=kind,
        rings=tours,
        share=share,
        bytes_per_s=count * ring_rate(link),
        slowest=f"{count:g} x {link.name}",
        exact=exact,
    )


def _over_pcie(node: Node, devices: Tour) -> RingSet:
    """One ring in the order of the numbers, which is the order of the tree: neighbours are near.

    All steps run at once, so a direction of an edge that two of them go over gives each half.
    """
    order = tuple(sorted(devices))
    steps = [pair(node, a, b) for a, b in _around(order)]
    ways = [_way(node, order[index], step) for index, step in enumerate(steps)]
    rates = _rates(steps, ways, _uses(ways))
    slowest = steps[rates.index(min(rates))]
    words = {"socket": "from socket to socket", "root": "through the root", "pcie": "within a switch"}
    way_words = words.get(slowest.kind, "over their own links")
    return RingSet(
        devices=devices,
        kind="pcie" if all(step.peer for step in steps) else "staged",
        rings=(order,),
        share=1.0,
        bytes_per_s=min(rates),
        slowest=f"gpu{slowest.a} to gpu{slowest.b} {way_words}{'' if slowest.peer else ', by way of the host'}",
        exact=True,
    )


Way = tuple[tuple[str, str, Edge], ...]
"""Edges of a route, each with its direction."""


def _around(order: Tour) -> tuple[tuple[int, int], ...]:
    """Steps of a ring in this order."""
    return tuple(zip(order, (*order[1:], order[0]), strict=True))


def _uses(ways: Iterable[Way]) -> Counter[tuple[str, str]]:
    """How many ways go over each direction of an edge."""
    return Counter((start, end) for way in ways for start, end, _ in way)


def _rates(steps: Sequence[Pair], ways: Sequence[Way], uses: Mapping[tuple[str, str], int]) -> list[float]:
    """Of steps that run at once, each with its equal part of every edge [bytes/s]."""
    rates = []
    for step, way in zip(steps, ways, strict=True):
        share = step.bytes_per_s / step.route.bytes_per_s
        rates.append(min(_part(edge, share) / uses[start, end] for start, end, edge in way))
    return rates


def slowdowns(node: Node, groups: Sequence[Tour], *, messages: bool = False) -> tuple[float, ...]:
    """How many times longer each of several groups of devices takes when all of them communicate at once.

    Links of the devices' own belong to a group alone. Over PCIe, groups share switches, roots and sockets.

    Args:
        node: that has them
        groups: devices of each, around a ring; of messages sender and receiver
        messages: they go one way

    Returns:
        1 for groups that share nothing.

    Example:
        Of four cards, two on each switch: pairs on a switch are apart, pairs over both share its link to the host.

        >>> from trimaran.machine.catalog import boxed, find_device
        >>> node = boxed(find_device("t4"), 4)
        >>> slowdowns(node, [(0, 1), (2, 3)]), slowdowns(node, [(0, 2), (1, 3)])
        ((1.0, 1.0), (2.0, 2.0))
    """
    if len(groups) < 2:
        return (1.0,) * len(groups)
    flows: dict[int, tuple[list[Pair], list[Way]]] = {}
    for index, group in enumerate(groups):
        if messages or ring_bandwidth(node, group).kind in ("pcie", "staged"):
            starts = ((group[0], group[1]),) if messages else _around(tuple(sorted(group)))
            steps = [pair(node, a, b) for a, b in starts]
            if all(step.kind not in ("links", "switch") for step in steps):
                flows[index] = steps, [_way(node, a, step) for (a, _), step in zip(starts, steps, strict=True)]
    every = _uses(way for _, ways in flows.values() for way in ways)
    found = [1.0] * len(groups)
    for index, (steps, ways) in flows.items():
        found[index] = min(_rates(steps, ways, _uses(ways))) / min(_rates(steps, ways, every))
    return tuple(found)


def _way(node: Node, start: int, step: Pair) -> Way:
    """Edges that a step goes over, each with its direction."""
    other = step.b if start == step.a else step.a
    if step.peer:
        vertices = step.route.vertices if start == step.a else step.route.vertices[::-1]
        edges = step.route.edges if start == step.a else step.route.edges[::-1]
        return tuple((a, b, edge) for (a, b), edge in zip(pairwise(vertices), edges, strict=False))
    up, down = host_route(node, start), host_route(node, other)
    climb = [(a, b, edge) for (a, b), edge in zip(pairwise(up.vertices), up.edges, strict=True)]
    fall = [(b, a, edge) for (a, b), edge in zip(pairwise(down.vertices), down.edges, strict=True)]
    sockets = [edge for edge in step.route.edges if edge.link.kind == "socket"]
    return (*climb, *((up.vertices[-1], down.vertices[-1], edge) for edge in sockets), *fall)


def _part(edge: Edge, share: float) -> float:
    """Rate of a ring on an edge; parallel links between sockets count as one [bytes/s]."""
    return ring_rate(edge.link) if edge.link.kind == "socket" else share * ring_rate(edge.link) * edge.count


def _capacity(node: Node, devices: Tour) -> dict[tuple[int, int], int]:
    """Links between two devices, in each direction."""
    found: dict[tuple[int, int], int] = {}
    names = {f"gpu{number}": number for number in devices}
    for edge in node.edges:
        if edge.a in names and edge.b in names:
            for key in ((names[edge.a], names[edge.b]), (names[edge.b], names[edge.a])):
                found[key] = found.get(key, 0) + edge.count
    return found
