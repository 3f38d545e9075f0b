"""Simulated annealing of a problem: its numbers as arrays, the compiled search on them, and the schedule that it finds.

The search itself, with the decoder in its inner loop, is in `kernel`, which is imported when it is first needed: it
brings a compiler.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trimaran.placement.list_scheduling import urgencies
from trimaran.placement.problem import Flat
from trimaran.placement.schedule import NodeSchedule, by_start, lay

if TYPE_CHECKING:
    from trimaran.placement import kernel

STEPS_PER_S = 2.5e7
"""Tasks that the decoder of a usual core goes through in a second."""

COMPILING_S = 30.0
"""Time that compiling may take, once on a machine; where less is left, nothing is annealed before that [s]."""

_SLICE = 2_000_000
"""Steps after which an annealing looks at the clock at the latest."""

_LEAST = 100_000
"""Steps that it takes whatever the clock says; some milliseconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A schedule as the search has it: the transfers follow.

    Attributes:
        on: device of each node
        tasks: forwards and backwards, none before its inputs
    """

    on: list[int]
    tasks: list[int]


def order_of(flat: Flat, layout: NodeSchedule) -> Order:
    """The devices and the tasks of a schedule."""
    return Order(on=list(layout.on), tasks=[item for item in layout.order if item < 2 * flat.n])


def prepare() -> None:
    """Import what searches, if it is not yet."""
    from trimaran.placement import kernel  # noqa: F401


def compiled() -> bool:
    """Whether the search has been compiled on this machine before."""
    from trimaran.placement import kernel

    return kernel.compiled()


def numbers_of(flat: Flat, *, price: float = 0.0, fine: float = 0.0) -> "kernel.Numbers":
    """A problem as arrays.

    Args:
        flat: the problem
        price: for a byte that is not there [s/byte]
        fine: for any that are not there [s]
    """
    from trimaran.placement import kernel

    n, devices = flat.n, flat.devices
    needs_at, needs = _rows([*flat.reads, *([n + reader for reader in readers] for readers in flat.read_by)])
    pairs = np.ones((devices * devices, 2))
    pairs[:, 0] = np.inf
    ways: list[Sequence[int]] = [()] * (devices * devices)
    for (source, target), wire in flat.wires.items():
        pairs[source * devices + target] = wire.latency_s, wire.bytes_per_s
        ways[source * devices + target] = flat.ways[source, target]
    ways_at, links = _rows(ways)
    seconds = np.array([*flat.forward, *flat.backward], dtype=np.float64)
    sizes = np.array([*flat.out_bytes, *flat.grad_bytes], dtype=np.float64)
    tails = np.array(urgencies(flat, 0.0)) - seconds
    return kernel.Numbers(
        needs_at=needs_at,
        needs=needs,
        tasks=np.ascontiguousarray(np.stack([seconds, sizes, tails], axis=1)),
        pairs=pairs,
        ways_at=ways_at,
        ways=links,
        free=np.array([node not in flat.pins for node in range(n)], dtype=np.int64),
        held=np.array(flat.held, dtype=np.float64) + np.array(flat.state, dtype=np.float64),
        memory=np.array(flat.memory, dtype=np.float64),
        price=np.array([price, fine]),
    )


def _rows(lists: Sequence[Sequence[int]]) -> "tuple[kernel.Ints, kernel.Ints]":
    """Where each list begins, and all of them one after another."""
    at = np.zeros(len(lists) + 1, dtype=np.int64)
    at[1:] = np.cumsum([len(row) for row in lists])
    return at, np.array([number for row in lists for number in row], dtype=np.int64)


def anneal(
    flat: Flat,
    start: Order,
    *,
    steps: float,
    seed: int,
    hot: float,
    cold: float,
    until: float = math.inf,
    fill: bool = False,
    goal_s: float = 0.0,
    price: float = 0.0,
    fine: float = 0.0,
) -> tuple[Order, float]:
    """A better order, or the same, and the end of its step, with what memory costs [s].

    Args:
        flat: the problem
        start: where to begin
        steps: that may be taken, see `kernel`
        seed: of the choice of moves
        hot: temperature at the beginning, as a share of the makespan
        cold: temperature at the end, likewise
        until: moment at which it ends, by the monotonic clock; where its steps would take longer, it takes fewer and
            cools sooner; infinite: its steps alone decide [s]
        fill: take more steps, and cool later, where that moment leaves the time for them
        goal_s: stop when the step is no longer than this [s]
        price: for a byte that is not there [s/byte]
        fine: for any that are not there [s]
    """
    from trimaran.placement import kernel

    numbers = numbers_of(flat, price=price, fine=fine)
    state = kernel.begin(numbers, start.on, start.tasks, len(flat.links), seed)
    kernel.decode(numbers, state)
    scale = float(state.figures[kernel.NOW])
    total = int(steps)
    if scale > 0.0 and flat.devices > 1 and len(flat.pins) < flat.n:
        began, taken = time.monotonic(), 0
        while taken < total and state.figures[kernel.BEST] > goal_s:
            turn = min(_SLICE, max(_LEAST, taken))
            kernel.anneal(numbers, state, min(total, taken + turn), total, hot * scale, cold * scale, goal_s)
            taken = int(state.counts[kernel.STEPS])
            if until < math.inf:
                now = time.monotonic()
                left_s = max(0.0, until - now)
                most = taken + int(taken * left_s / max(now - began, 1e-6))
                total = most if fill else min(total, most)
    found = Order(on=state.best_on.tolist(), tasks=state.best_seq.tolist())
    return found, float(state.figures[kernel.BEST])


def written_out(flat: Flat, order: Order) -> NodeSchedule:
    """The schedule of an order; transfers in the gaps that the decoder finds for them."""
    from trimaran.placement import kernel

    numbers = numbers_of(flat)
    state = kernel.begin(numbers, order.on, order.tasks, len(flat.links), 0)
    kernel.decode(numbers, state)
    n, devices, seconds = flat.n, flat.devices, (*flat.forward, *flat.backward)
    end = dict(enumerate(state.ends[:, 0].tolist()))
    start = {}
    for key, begin_s, end_s in kernel.met(state):
        start[2 * n + key], end[2 * n + key] = begin_s, end_s
    free = [0.0] * devices
    for task in order.tasks:
        # The difference alone may be a rounding before what the task waited for.
        node, here = task % n, order.on[task % n]
        first = 2 * n if task < n else 2 * n + n * devices
        if task < n:
            arrivals = [first + other * devices + here for other in flat.reads[node] if order.on[other] != here]
        else:
            arrivals = [first + node * devices + there for there in {order.on[v] for v in flat.read_by[node]} - {here}]
        start[task] = max(end[task] - seconds[task], free[here], *(end[item] for item in arrivals), 0.0)
        free[here] = end[task]
    return lay(flat, order.on, by_start(flat, start, end))


def speed(flat: Flat, order: Order, *, for_s: float = 0.15) -> float:
    """Steps that this machine takes in a second on a problem, the search compiled before [1/s].

    Args:
        flat: the problem
        order: where to begin
        for_s: how long to look [s]
    """
    from trimaran.placement import kernel

    numbers = numbers_of(flat)
    state = kernel.begin(numbers, order.on, order.tasks, len(flat.links), 0)
    kernel.decode(numbers, state)
    scale = float(state.figures[kernel.NOW]) or 1.0
    kernel.anneal(numbers, state, 1, 1 << 40, 0.003 * scale, 0.003 * scale, 0.0)
    ended = time.monotonic() + for_s
    found = 0.0
    while (began := time.monotonic()) < ended:
        before = int(state.counts[kernel.STEPS])
        kernel.anneal(numbers, state, before + 200_000, 1 << 40, 0.003 * scale, 0.003 * scale, 0.0)
        found = max(found, (int(state.counts[kernel.STEPS]) - before) / (time.monotonic() - began))
    return found
