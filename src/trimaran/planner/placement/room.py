"""Memory of a schedule: what lives on each device when, by the rules of the reference scorer."""

from collections.abc import Mapping, Sequence

from trimaran.planner.placement.flat import Flat
from trimaran.planner.placement.lay import Layout


def memory_of_all(flat: Flat) -> float:
    """More than any placement needs on one device [bytes]."""
    return sum(flat.state) + sum(flat.held) + sum(flat.out_bytes) + (flat.devices - 1) * sum(flat.grad_bytes)


def fits(flat: Flat, layout: Layout) -> bool:
    """Whether a schedule stays within every device's memory."""
    return all(peak <= memory for peak, memory in zip(peaks(flat, layout), flat.memory, strict=True))


def overflow(flat: Flat, on: Sequence[int]) -> float:
    """How much more than there is the devices would hold if all that they ever hold were there at once [bytes]."""
    held = [0.0] * flat.devices
    for node, device in enumerate(on):
        held[device] += flat.state[node] + flat.held[node]
        for other in {on[reader] for reader in flat.read_by[node]}:
            if other != device:
                held[other] += flat.out_bytes[node]
                held[device] += flat.grad_bytes[node]
    return sum(max(0.0, nbytes - memory) for nbytes, memory in zip(held, flat.memory, strict=True))


def peaks(flat: Flat, layout: Layout) -> list[float]:
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
