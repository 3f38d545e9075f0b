"""How long a sequence of tasks takes: the decoder in the inner loop of annealing.

It goes through the sequence: a task runs as soon as its device is free of earlier ones and its inputs are there; a
transfer takes the first gap of its links from the moment at which its tensor is there, when the first task that needs
it is met. Plain loops over lists: this runs some hundred thousand times.
"""

import math
from bisect import bisect_right
from collections.abc import Sequence

from trimaran.planner.placement.flat import Flat
from trimaran.planner.placement.heft import Filling
from trimaran.planner.placement.lay import Layout, by_start, lay


class Decoder:
    """Makespans of devices and sequences, as fast as plain Python goes."""

    def __init__(self, flat: Flat) -> None:
        self.flat = flat
        n, devices = flat.n, flat.devices
        self.go = [
            [
                0.0 if a == b or (a, b) not in flat.wires else flat.crossing_s(v, a, b)
                for a in range(devices)
                for b in range(devices)
            ]
            for v in range(n)
        ]
        self.back = [
            [
                0.0 if a == b or (a, b) not in flat.wires else flat.returning_s(v, a, b)
                for a in range(devices)
                for b in range(devices)
            ]
            for v in range(n)
        ]
        self.cause = [-1] * (2 * n)
        self.done = [0.0] * (2 * n)
        self.ways = [flat.ways.get((a, b), ()) for a in range(devices) for b in range(devices)]

    def makespan(self, on: Sequence[int], sequence: Sequence[int], limit: float = math.inf) -> float:
        """End of the last task; infinite once it is known to be beyond the limit."""
        flat = self.flat
        n, devices = flat.n, flat.devices
        forward, backward, reads, read_by = flat.forward, flat.backward, flat.reads, flat.read_by
        go, back, ways = self.go, self.back, self.ways
        free = [0.0] * devices
        link: list[list[float]] = [[] for _ in flat.links]
        done = self.done = [0.0] * (2 * n)
        cause = self.cause
        last = [-1] * devices
        arrived: dict[int, float] = {}
        for task in sequence:
            if task < n:
                device = on[task]
                ready = free[device]
                why = last[device]
                for producer in reads[task]:
                    home = on[producer]
                    if home == device:
                        moment = done[producer]
                    else:
                        key = producer * devices + device
                        if key in arrived:
                            moment = arrived[key]
                        else:
                            pair = home * devices + device
                            moment = _carry(link, ways[pair], done[producer], go[producer][pair])
                            arrived[key] = moment
                    if moment > ready:
                        ready = moment
                        why = producer
                free[device] = done[task] = ready + forward[task]
            else:
                node = task - n
                device = on[node]
                ready = free[device]
                why = last[device]
                if done[node] > ready:
                    ready = done[node]
                    why = node
                away: dict[int, tuple[float, int]] | None = None
                for reader in read_by[node]:
                    moment = done[n + reader]
                    other = on[reader]
                    if other == device:
                        if moment > ready:
                            ready = moment
                            why = n + reader
                    elif away is None:
                        away = {other: (moment, n + reader)}
                    elif other not in away or moment > away[other][0]:
                        away[other] = (moment, n + reader)
                if away is not None:
                    for other, (moment, reason) in away.items():
                        pair = other * devices + device
                        moment = _carry(link, ways[pair], moment, back[node][pair])
                        if moment > ready:
                            ready = moment
                            why = reason
                free[device] = done[task] = ready + backward[node]
                if ready > limit:
                    return math.inf
            cause[task] = why
            last[device] = task
        return max(free)

    def critical(self) -> list[int]:
        """The tasks that the makespan of the last call hangs on, last first; of a call that did not reach the limit."""
        done, cause = self.done, self.cause
        task = max(range(len(done)), key=done.__getitem__)
        path = []
        while task >= 0:
            path.append(task)
            task = cause[task]
        return path


def _carry(link: list[list[float]], ways: Sequence[int], ready: float, length: float) -> float:
    """When a transfer ends that takes the first gap of its links; ends and starts of gaps are kept in one list each.

    A link is busy from entry 0 to 1, 2 to 3, and so on.
    """
    if length <= 0.0 or not ways:
        return ready + length
    if len(ways) == 1:
        busy = link[ways[0]]
        if not busy or busy[-1] <= ready:
            busy.append(ready)
            busy.append(ready + length)
            return ready + length
        at = bisect_right(busy, ready)
        if at & 1:
            ready = busy[at]
            at += 1
        while at < len(busy) and busy[at] < ready + length:
            ready = busy[at + 1]
            at += 2
        busy[at:at] = (ready, ready + length)
        return ready + length
    before = -1.0
    while before != ready:
        before = ready
        for line in ways:
            busy = link[line]
            at = bisect_right(busy, ready)
            if at & 1:
                ready = busy[at]
                at += 1
            while at < len(busy) and busy[at] < ready + length:
                ready = busy[at + 1]
                at += 2
    for line in ways:
        at = bisect_right(link[line], ready)
        link[line][at:at] = (ready, ready + length)
    return ready + length


def written_out(flat: Flat, on: Sequence[int], sequence: Sequence[int]) -> Layout:
    """The schedule of a state; transfers in the gaps that the decoder finds for them."""
    filling = Filling(flat, on)
    free = [0.0] * flat.devices
    for task in sequence:
        device = on[task % flat.n]
        ready, made = filling.needs(task, device)
        for item, begin, length, ways in made:
            filling.start[item], filling.end[item] = begin, begin + length
            for link in ways:
                filling.links[link].take(begin, length)
        length = flat.forward[task] if task < flat.n else flat.backward[task - flat.n]
        begin = max(ready, free[device])
        free[device] = begin + length
        filling.start[task], filling.end[task] = begin, begin + length
    return lay(flat, on, by_start(flat, filling.start, filling.end))
