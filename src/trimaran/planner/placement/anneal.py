"""Simulated annealing over devices and orders.

A state is the device of each node and a sequence of all tasks in which none comes before what it needs. The decoder
goes through the sequence: a task runs as soon as its device is free of earlier ones and its inputs are there; a
transfer starts when the first task that needs it is met, behind earlier ones on its links. A move changes the device of
a node, or of a run of nodes that feed one another, or moves a task within the sequence.
"""

import math
import random
from collections.abc import Callable, Sequence

from trimaran.planner.placement.decoder import Decoder, written_out
from trimaran.planner.placement.flat import Flat
from trimaran.planner.placement.lay import Layout

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
