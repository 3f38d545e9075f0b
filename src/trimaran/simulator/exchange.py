"""Calls of collectives that exchange gradients during a backward: which gradients go into which call, and when it runs.

    compute   ├────── backward, slower while a call runs ──────┤
    calls          ├─ 1 ─┤├──── 2 ────┤      ├─ 3 ─┤    ├──── 4 ────┤
                                                       exposed: ├───┤

There are three methods. Buckets are filled to a size in the order in which gradients are complete. Cycles take at every
tick what is complete by then. And a flat buffer takes everything, after the backward. The calls are tasks of the
engine: each waits for a mark in the backward, where its gradients are complete, and for the call before it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from trimaran.pricing.exchange.frameworks import ExchangeRecipe
from trimaran.pricing.types import Interference
from trimaran.simulator.engine import Engine, Resources
from trimaran.simulator.tasks import Tasks, wait


@dataclass(frozen=True, slots=True)
class GradientCall:
    """One call of a collective.

    Attributes:
        ready_s: when its gradients are complete, in undisturbed time of the backward [s]
        latency_s: its part that leaves compute alone [s]
        flow_s: its part during which bytes flow and compute is slowed [s]
        gradients: their places in `Workload.gradients`
    """

    ready_s: float
    latency_s: float
    flow_s: float
    gradients: tuple[int, ...] = ()

    @property
    def seconds(self) -> float:
        """The whole call [s]."""
        return self.latency_s + self.flow_s


@dataclass(frozen=True, slots=True)
class GradientExchange:
    """Times of the backward and the calls.

    Attributes:
        calls: in the order in which they ran
        ends_s: end of each call, from the start of the backward [s]
        backward_s: the backward, with the delays by calls [s]
        busy_s: of the busiest link or owner, where calls run at the same time; None: they follow one another [s]
    """

    calls: tuple[GradientCall, ...]
    ends_s: tuple[float, ...]
    backward_s: float
    busy_s: float | None = None

    @property
    def end_s(self) -> float:
        """When everything is exchanged and the backward is over [s]."""
        return max([self.backward_s, *self.ends_s[-1:]])

    @property
    def communication_s(self) -> float:
        """The exchange, its overlapped part included [s]."""
        return sum(call.seconds for call in self.calls) if self.busy_s is None else max(self.busy_s, self.exposed_s)

    @property
    def exposed_s(self) -> float:
        """The part that does not overlap with the backward [s]."""
        return self.end_s - self.backward_s


def run_calls(calls: Sequence[GradientCall], *, backward_s: float, interference: float) -> GradientExchange:
    """Run calls in order during a backward.

    Args:
        calls: in the order in which they are started, whenever each is ready
        backward_s: undisturbed [s]
        interference: factor on the time of compute while bytes flow

    Example:
        >>> run_calls([GradientCall(1.0, 0.0, 0.5), GradientCall(2.0, 0.0, 1.0)], backward_s=2.0,
        ...           interference=1.0).exposed_s
        1.0
        >>> run_calls([GradientCall(0.0, 0.0, 1.0)], backward_s=1.0, interference=1.25).backward_s  # 0.8 by 1 s
        1.2
    """
    tasks = Tasks(identifiers=(), first=(), number=[], members=[])
    backward = tasks.add(0, work_s=backward_s, lane=0)
    marks: list[tuple[float, list[int]]] = []
    transfers: list[int] = []
    latest_s = 0.0
    for place, call in enumerate(calls):
        latest_s = max(latest_s, call.ready_s)
        # A tick may come after the backward.
        tick = tasks.add(place, work_s=max(0.0, latest_s - backward_s), lane=-1)
        transfer = tasks.add(place, work_s=call.flow_s, lane=-1)
        tasks.latency_s[transfer], tasks.flow[transfer] = call.latency_s, ((0,), ())
        tasks.waits[tick] += 1
        marks.append((min(1.0, latest_s / backward_s) if backward_s else 1.0, [tick]))
        for earlier in (tick, *transfers[-1:]):
            wait(tasks, transfer, earlier)
        transfers.append(transfer)
    tasks.marks[backward] = marks[::-1]
    engine = Engine(tasks, Resources(ranks=1, links=0, interference=Interference(compute=interference)))
    engine.run()
    ends_s = tuple(engine.end_s[transfer] for transfer in transfers)
    return GradientExchange(tuple(calls), ends_s, engine.end_s[backward])


Price = Callable[[int], tuple[float, float]]
"""Latency and flow of a call by its bytes [s, s]."""


@dataclass(frozen=True, slots=True)
class ReadyGradient:
    """A gradient to exchange.

    Attributes:
        gradient: its place in `Workload.gradients`
        nbytes: that are sent [bytes]
        ready_s: when it is complete, in undisturbed time of the backward [s]
    """

    gradient: int
    nbytes: int
    ready_s: float


def exchange_calls(
    gradients: Sequence[ReadyGradient], recipe: ExchangeRecipe, price: Price, *, backward_s: float
) -> GradientExchange:
    """Run a framework's calls during a backward.

    Args:
        gradients: in the order in which they are complete
        recipe: of the framework
        price: what a call of a size takes
        backward_s: undisturbed [s]

    Example:
        >>> gradients = [ReadyGradient(0, 8, 1.0), ReadyGradient(1, 8, 2.0), ReadyGradient(2, 8, 3.0)]
        >>> recipe = ExchangeRecipe(name="two", bucket_bytes=16, call_s=0.0, interference=1.0, source="example")
        >>> done = exchange_calls(gradients, recipe, lambda nbytes: (0.0, nbytes / 16), backward_s=3.0)
        >>> done.ends_s
        (3.0, 3.5)
    """
    cycle_s = recipe.cycle_s if recipe.overlaps else 0.0

    def start_s(ready: ReadyGradient) -> float:
        complete_s = min(ready.ready_s, backward_s) if recipe.overlaps else backward_s
        return math.ceil(complete_s / cycle_s) * cycle_s if cycle_s else complete_s

    # Which gradients a tick finds is decided by the undisturbed backward: a tick that finds more of them on a faster
    # machine would join them into a longer call.
    calls = []
    for _, found in groupby(gradients, key=lambda ready: start_s(ready) if cycle_s else 0.0):
        for group in fill_buckets(list(found), recipe):
            latency_s, flow_s = price(sum(ready.nbytes for ready in group))
            places = tuple(ready.gradient for ready in group)
            calls.append(GradientCall(max(map(start_s, group)), recipe.call_s + latency_s, flow_s, places))
    return run_calls(calls, backward_s=backward_s, interference=recipe.interference)


def fill_buckets(gradients: Sequence[ReadyGradient], recipe: ExchangeRecipe) -> list[list[ReadyGradient]]:
    """Gradients by call, in order. A call is full when it reaches its size or its number of tensors.

    Args:
        gradients: in the order in which they are complete
        recipe: of the framework

    Example:
        >>> recipe = ExchangeRecipe(name="example", first_bytes=4, bucket_bytes=16, source="example")
        >>> gradients = [ReadyGradient(place, 8, 0.0) for place in range(4)]
        >>> [[ready.gradient for ready in bucket] for bucket in fill_buckets(gradients, recipe)]
        [[0], [1, 2], [3]]
    """
    groups: list[list[ReadyGradient]] = []
    group: list[ReadyGradient] = []
    nbytes = 0
    for ready in gradients:
        group.append(ready)
        nbytes += ready.nbytes
        limit = recipe.first_bytes if recipe.first_bytes and not groups else recipe.bucket_bytes
        if nbytes >= limit or len(group) == recipe.keys:
            groups.append(group)
            group, nbytes = [], 0
    return [*groups, group] if group else groups
