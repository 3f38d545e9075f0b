"""Times that follow from devices and an order: the one decoder that every solver of the room uses.

An order lists items: forwards, backwards and transfers. Each starts as soon as its inputs are there and the items
that come before it on its device or links have ended. Every schedule can be written so without becoming longer: list
its items by start.

Items are numbers: task `t` is `t` (forwards `v`, backwards `n + v`); the transfer of the output of `v` to device `d` is
`2n + vD + d`; that of its gradient from device `d` is `2n + nD + vD + d`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trimaran.placement.problem import Flat


@dataclass(slots=True, kw_only=True)
class NodeSchedule:
    """A schedule: where each node is, and when each item runs.

    Attributes:
        on: device of each node
        order: items by start
        start: of each item [s]
        end: of each item [s]
        makespan_s: end of the last item [s]
    """

    on: list[int]
    order: list[int]
    start: dict[int, float]
    end: dict[int, float]
    makespan_s: float


def transfers_of(flat: Flat, on: Sequence[int]) -> list[int]:
    """The transfers that a placement needs."""
    n, devices = flat.n, flat.devices
    items = []
    for node in range(n):
        for device in sorted({on[reader] for reader in flat.read_by[node]} - {on[node]}):
            items.append(2 * n + node * devices + device)
            items.append(2 * n + n * devices + node * devices + device)
    return items


def rank(flat: Flat, item: int) -> int:
    """A number by which every item comes after those that it needs."""
    n, devices = flat.n, flat.devices
    if item < n:
        return 2 * item
    if item < 2 * n:
        return 4 * n - 2 * (item - n)
    node = (item - 2 * n) % (n * devices) // devices
    return 2 * node + 1 if item < 2 * n + n * devices else 4 * n - 2 * node - 1


def length_of(flat: Flat, on: Sequence[int], item: int) -> float:
    """Time of a task or transfer [s]."""
    n, devices = flat.n, flat.devices
    if item < n:
        return flat.forward[item]
    if item < 2 * n:
        return flat.backward[item - n]
    node, device = divmod((item - 2 * n) % (n * devices), devices)
    if item < 2 * n + n * devices:
        return flat.crossing_s(node, on[node], device)
    return flat.returning_s(node, device, on[node])


def by_start(flat: Flat, start: dict[int, float], end: dict[int, float]) -> list[int]:
    """Items in an order that gives these times, or earlier ones."""
    return sorted(start, key=lambda item: (start[item], end[item], rank(flat, item)))


def lay(
    flat: Flat, on: Sequence[int], order: Sequence[int], after: Mapping[int, Sequence[int]] | None = None
) -> NodeSchedule:
    """The earliest times of an order.

    Args:
        flat: the problem
        on: device of each node
        order: every task and every transfer of `transfers_of`, none before its inputs
        after: items that must have ended before others start, though nothing else says so: they free their memory
    """
    n, devices = flat.n, flat.devices
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    free = [0.0] * devices
    link_free = [0.0] * len(flat.links)
    here = 2 * n
    back = here + n * devices
    for item in order:
        least = max((end[other] for other in after.get(item, ())), default=0.0) if after else 0.0
        if item < here:
            begin, length, device = _task(flat, on, item, end)
            begin = max(begin, free[device], least)
            free[device] = begin + length
        else:
            node, device = divmod((item - here) % (n * devices), devices)
            if item < back:
                begin, pair = end[node], (on[node], device)
                length = flat.crossing_s(node, *pair)
            else:
                begin = max(end[n + reader] for reader in flat.read_by[node] if on[reader] == device)
                pair = (device, on[node])
                length = flat.returning_s(node, *pair)
            begin = max(begin, least)
            for link in flat.ways[pair]:
                begin = max(begin, link_free[link])
            for link in flat.ways[pair]:
                link_free[link] = begin + length
        start[item] = begin
        end[item] = begin + length
    makespan = max(end.values(), default=0.0)
    return NodeSchedule(on=list(on), order=list(order), start=start, end=end, makespan_s=makespan)


def _task(flat: Flat, on: Sequence[int], task: int, end: dict[int, float]) -> tuple[float, float, int]:
    """When the inputs of a forward or backward are there, its length, its device."""
    n, devices = flat.n, flat.devices
    ready = 0.0
    if task < n:
        device = on[task]
        for producer in flat.reads[task]:
            item = producer if on[producer] == device else 2 * n + producer * devices + device
            ready = max(ready, end[item])
        return ready, flat.forward[task], device
    node = task - n
    device = on[node]
    ready = end[node]
    for reader in flat.read_by[node]:
        other = on[reader]
        item = n + reader if other == device else 2 * n + n * devices + node * devices + other
        ready = max(ready, end[item])
    return ready, flat.backward[node], device


# ---------------------------------------------------------------------------------------------------------------------
# Memory of a schedule: bytes on each device at each moment, by the rules of the reference scorer


def memory_of_all(flat: Flat) -> float:
    """More than any placement needs on one device [bytes]."""
    return sum(flat.state) + sum(flat.held) + sum(flat.out_bytes) + (flat.devices - 1) * sum(flat.grad_bytes)


def fits(flat: Flat, layout: NodeSchedule) -> bool:
    """Whether a schedule stays within every device's memory."""
    return all(peak <= memory for peak, memory in zip(peaks(flat, layout), flat.memory, strict=True))


def peaks(flat: Flat, layout: NodeSchedule) -> list[float]:
    """Most that lives on each device at once [bytes]."""
    n, devices, on, start, end = flat.n, flat.devices, layout.on, layout.start, layout.end
    events: list[list[tuple[float, int, float]]] = [[] for _ in range(devices)]

    def hold(device: int, begin: float, until: float, nbytes: float) -> None:
        if nbytes > 0:
            events[device] += [(begin, 1, nbytes), (until, 0, -nbytes)]

    for node in range(n):
        hold(on[node], start[node], end[n + node], flat.held[node])
        for other in {on[reader] for reader in flat.read_by[node]} - {on[node]}:
            go = 2 * n + node * devices + other
            until = max(end[n + reader] for reader in flat.read_by[node] if on[reader] == other)
            hold(other, start[go], until, flat.out_bytes[node])
            hold(on[node], start[go + n * devices], end[n + node], flat.grad_bytes[node])
    found = []
    for device in range(devices):
        live = peak = sum(flat.state[node] for node in range(n) if on[node] == device)
        for _, _, change in sorted(events[device]):
            live += change
            peak = max(peak, live)
        found.append(peak)
    return found


def releases(
    flat: Flat, on: Sequence[int], order: Sequence[int], start: Mapping[int, float], end: Mapping[int, float]
) -> dict[int, list[int]]:
    """For each item that takes memory, the backwards that free some before it in a schedule.

    A schedule that waits for memory keeps waiting when its times are worked out again.
    """
    n, devices = flat.n, flat.devices
    found: dict[int, list[int]] = {}
    freeing = [item for item in order if n <= item < 2 * n]
    for item in order:
        if n <= item < 2 * n:
            continue
        if item < n:
            device = on[item]
        else:
            kind, rest = divmod(item - 2 * n, n * devices)
            node, other = divmod(rest, devices)
            device = other if kind == 0 else on[node]
        found[item] = [task for task in freeing if end[task] <= start[item] and on[task - n] == device]
    return found
