"""Simulated annealing over devices and orders.

A state is the device of each node and a sequence of all tasks in which none comes before its inputs. The decoder
goes through the sequence: a task runs as soon as its device is free of earlier ones and its inputs are there; a
transfer starts when the first task that needs it is met, behind earlier ones on its links. A move changes the device of
a node, or of a run of nodes that feed one another, or moves a task within the sequence.

How long a sequence of tasks takes: the decoder in the inner loop of annealing.

It goes through the sequence: a task runs as soon as its device is free of earlier ones and its inputs are there; a
transfer takes the first gap of its links from the moment at which its tensor is there, when the first task that needs
it is met. Plain loops over lists: this runs some hundred thousand times.
"""

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Sequence

from trimaran.planner.placement.list_scheduling import Filling
from trimaran.planner.placement.problem import Flat
from trimaran.planner.placement.schedule import Layout, by_start, lay


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
        """End of the last task; infinite once it is known to be beyond `limit`."""
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
                    origin = on[producer]
                    if origin == device:
                        moment = done[producer]
                    else:
                        key = producer * devices + device
                        if key in arrived:
                            moment = arrived[key]
                        else:
                            pair = origin * devices + device
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
        """The critical tasks of the last call, last first; of a call with a finite makespan."""
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


FOCUS = 0.7


def anneal(
    flat: Flat,
    start: Layout,
    *,
    moves: int,
    seed: int,
    hot: float = 0.02,
    cold: float = 0.0005,
    stop: Callable[[], bool] = lambda: False,
    extra: Callable[[Sequence[int]], float] | None = None,
) -> Layout:
    """A better schedule, or the same.

    Args:
        flat: the problem
        start: where to begin
        moves: to be tried
        seed: of the choice of moves
        hot: temperature at the beginning, as a share of the makespan
        cold: at the end
        stop: asked now and then whether to stop early
        extra: time that the devices of the nodes cost on top, such as for memory that is not there [s]
    """
    n, devices = flat.n, flat.devices
    decoder = Decoder(flat)
    draw = random.Random(seed)
    on = list(start.on)
    sequence = [item for item in start.order if item < 2 * n]
    before = [
        set(flat.reads[task]) if task < n else {task - n, *(n + r for r in flat.read_by[task - n])}
        for task in range(2 * n)
    ]
    cost = extra(on) if extra else 0.0
    now = decoder.makespan(on, sequence) + cost
    best, best_on, best_sequence = now, list(on), list(sequence)
    loose = [node for node in range(n) if node not in flat.pins]
    if not loose or devices < 2:
        return start
    scale = now
    ratio = math.log(cold / hot)
    length = 2 * n
    uniform = draw.random
    path = decoder.critical()
    fresh = True
    temperature = hot * scale
    for move in range(moves):
        if move % 64 == 0:
            temperature = hot * scale * math.exp(ratio * move / moves)
            if stop():
                break
        kind = uniform()
        limit = now - temperature * math.log(uniform() or 1e-300)
        if not fresh:
            path = decoder.critical()
            fresh = True
        task = path[int(uniform() * len(path))] if uniform() < FOCUS else int(uniform() * length)
        if kind < 0.5:
            node = task % n
            if node in flat.pins:
                continue
            device = int(uniform() * (devices - 1))
            if device >= on[node]:
                device += 1
            group = [node]
            old = on[node]
            while uniform() < 0.6:
                around = [
                    other
                    for other in (*flat.reads[node], *flat.read_by[node])
                    if on[other] == old and other not in group and other not in flat.pins
                ]
                if not around:
                    break
                node = around[int(uniform() * len(around))]
                group.append(node)
            for node in group:
                on[node] = device
            price = extra(on) if extra else 0.0
            then = decoder.makespan(on, sequence, limit - price) + price
            if then <= limit:
                now, cost = then, price
                fresh = False
            else:
                for node in group:
                    on[node] = old
                continue
        else:
            position = sequence.index(task)
            steps = 1 + int(-math.log(uniform() or 1e-300) * 0.06 * length)
            target = position
            if uniform() < 0.5:
                needs = before[task]
                while target > 0 and steps > 0 and sequence[target - 1] not in needs:
                    target -= 1
                    steps -= 1
            else:
                while target < length - 1 and steps > 0 and task not in before[sequence[target + 1]]:
                    target += 1
                    steps -= 1
            if target == position:
                continue
            del sequence[position]
            sequence.insert(target, task)
            then = decoder.makespan(on, sequence, limit - cost) + cost
            if then <= limit:
                now = then
                fresh = False
            else:
                del sequence[target]
                sequence.insert(position, task)
                continue
        if now < best:
            best, best_on, best_sequence = now, list(on), list(sequence)
    found = written_out(flat, best_on, best_sequence)
    return found if extra or found.makespan_s < start.makespan_s else start
