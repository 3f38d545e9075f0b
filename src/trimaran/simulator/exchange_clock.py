"""The clock of an exchange during the backward: one stream computes, the other runs calls one after another.

    compute   ├────── backward, slower while a call runs ──────┤
    calls          ├─ 1 ─┤├──── 2 ────┤      ├─ 3 ─┤    ├──── 4 ────┤
                                                       exposed: ├───┤

A call starts when its gradients are complete and the call before it has ended. All calls that slow the backward up to
then are known before it starts, so one pass over the calls in order is exact: the event engine gives the same for such
a program.

Which gradients go into which call of a collective, and when.

There are three methods. Buckets are filled to a size in the order in which gradients are complete. Cycles take at every
tick what is complete by then. And a flat buffer takes everything, after the backward.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from trimaran.pricing.exchange.frameworks import Recipe


@dataclass(frozen=True, slots=True)
class Call:
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
class Span:
    """When a call ran, from the start of the backward [s]."""

    start_s: float
    end_s: float


@dataclass(slots=True)
class BackwardClock:
    """Converts between wall time and progress of the backward, given the calls so far.

    Attributes:
        backward_s: all of it, undisturbed [s]
        interference: factor on the time of compute while bytes flow
        free_s: when the last call ends [s]

    Example:
        >>> clock = BackwardClock(backward_s=2.0, interference=1.25)
        >>> clock.call(0.0, Call(0.0, 0.0, 1.0))
        Span(start_s=0.0, end_s=1.0)
        >>> clock.wall(1.0)  # 0.8 done by the end of the call, 0.2 after it
        1.2
    """

    backward_s: float
    interference: float
    free_s: float = 0.0
    _flows: list[tuple[float, float]] = field(default_factory=list)
    _place: int = 0
    _wall_s: float = 0.0
    _done_s: float = 0.0

    def call(self, ready_wall_s: float, call: Call) -> Span:
        """Run a call as early as may be.

        Args:
            ready_wall_s: when its gradients are complete, on the wall [s]
            call: what it takes
        """
        start_s = max(ready_wall_s, self.free_s)
        self.free_s = start_s + call.seconds
        if call.flow_s:
            self._flows.append((start_s + call.latency_s, self.free_s))
        return Span(start_s, self.free_s)

    def wall(self, done_s: float) -> float:
        """Wall time at which a part of the backward is done, or so long after its end [s]. Asked in ascending order."""
        after_s = max(0.0, done_s - self.backward_s)
        left_s = done_s - after_s - self._done_s
        self._done_s += max(0.0, left_s)
        while left_s > 0.0 and self._place < len(self._flows):
            start_s, end_s = self._flows[self._place]
            flowing = self._wall_s >= start_s
            slowdown, border_s = (self.interference, end_s) if flowing else (1.0, start_s)
            if self._wall_s + left_s * slowdown <= border_s:
                self._wall_s += left_s * slowdown
                return self._wall_s + after_s
            left_s -= (border_s - self._wall_s) / slowdown
            self._wall_s = border_s
            self._place += flowing
        self._wall_s += max(0.0, left_s)
        return self._wall_s + after_s


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Times of the backward and the calls.

    Attributes:
        calls: in the order in which they ran
        spans: of each call, from the start of the backward
        backward_s: the backward, with the delays by calls [s]
        busy_s: of the busiest link or owner, where calls run at the same time; None: they follow one another [s]
    """

    calls: tuple[Call, ...]
    spans: tuple[Span, ...]
    backward_s: float
    busy_s: float | None = None

    @property
    def end_s(self) -> float:
        """When everything is exchanged and the backward is over [s]."""
        return max([self.backward_s, *(span.end_s for span in self.spans[-1:])])

    @property
    def communication_s(self) -> float:
        """The exchange, its overlapped part included [s]."""
        return sum(call.seconds for call in self.calls) if self.busy_s is None else max(self.busy_s, self.exposed_s)

    @property
    def exposed_s(self) -> float:
        """The part that does not overlap with the backward [s]."""
        return self.end_s - self.backward_s


def run_calls(calls: Sequence[Call], *, backward_s: float, interference: float) -> Exchanged:
    """Run calls in order during a backward.

    Args:
        calls: in the order in which they are started, whenever each is ready
        backward_s: undisturbed [s]
        interference: factor on the time of compute while bytes flow

    Example:
        >>> run_calls([Call(1.0, 0.0, 0.5), Call(2.0, 0.0, 1.0)], backward_s=2.0, interference=1.0).exposed_s
        1.0
    """
    clock = BackwardClock(backward_s=backward_s, interference=interference)
    spans = []
    latest_s = 0.0
    for call in calls:
        latest_s = max(latest_s, call.ready_s)
        spans.append(clock.call(clock.wall(latest_s), call))
    return Exchanged(tuple(calls), tuple(spans), clock.wall(backward_s))


Price = Callable[[int], tuple[float, float]]
"""Latency and flow of a call by its bytes [s, s]."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A gradient to exchange.

    Attributes:
        gradient: its place in `Workload.gradients`
        nbytes: that are sent [bytes]
        ready_s: when it is complete, in undisturbed time of the backward [s]
    """

    gradient: int
    nbytes: int
    ready_s: float


def exchange_calls(gradients: Sequence[Ready], recipe: Recipe, price: Price, *, backward_s: float) -> Exchanged:
    """Run a framework's calls during a backward.

    Args:
        gradients: in the order in which they are complete
        recipe: of the framework
        price: what a call of a size takes
        backward_s: undisturbed [s]

    Example:
        >>> gradients = [Ready(0, 8, 1.0), Ready(1, 8, 2.0), Ready(2, 8, 3.0)]
        >>> recipe = Recipe(name="two", bucket_bytes=16, call_s=0.0, interference=1.0, source="example")
        >>> done = exchange_calls(gradients, recipe, lambda nbytes: (0.0, nbytes / 16), backward_s=3.0)
        >>> [(span.start_s, span.end_s) for span in done.spans]
        [(2.0, 3.0), (3.0, 3.5)]
    """
    cycle_s = recipe.cycle_s if recipe.overlaps else 0.0

    def start_s(ready: Ready) -> float:
        complete_s = min(ready.ready_s, backward_s) if recipe.overlaps else backward_s
        return math.ceil(complete_s / cycle_s) * cycle_s if cycle_s else complete_s

    # Which gradients a tick finds is decided by the undisturbed backward: a tick that finds more of them on a faster
    # machine would join them into a longer call.
    calls = []
    for _, found in groupby(gradients, key=lambda ready: start_s(ready) if cycle_s else 0.0):
        for group in fill_buckets(list(found), recipe):
            latency_s, flow_s = price(sum(ready.nbytes for ready in group))
            places = tuple(ready.gradient for ready in group)
            calls.append(Call(max(map(start_s, group)), recipe.call_s + latency_s, flow_s, places))
    return run_calls(calls, backward_s=backward_s, interference=recipe.interference)


def fill_buckets(gradients: Sequence[Ready], recipe: Recipe) -> list[list[Ready]]:
    """Gradients by call, in order. A call is full when it reaches its size or its number of tensors.

    Args:
        gradients: in the order in which they are complete
        recipe: of the framework

    Example:
        >>> recipe = Recipe(name="example", first_bytes=4, bucket_bytes=16, source="example")
        >>> gradients = [Ready(0, 8, 0.0), Ready(1, 8, 0.0), Ready(2, 8, 0.0), Ready(3, 8, 0.0)]
        >>> [[ready.gradient for ready in bucket] for bucket in fill_buckets(gradients, recipe)]
        [[0], [1, 2], [3]]
    """
    groups: list[list[Ready]] = []
    group: list[Ready] = []
    nbytes = 0
    for ready in gradients:
        group.append(ready)
        nbytes += ready.nbytes
        limit = recipe.first_bytes if recipe.first_bytes and not groups else recipe.bucket_bytes
        if nbytes >= limit or len(group) == recipe.keys:
            groups.append(group)
            group, nbytes = [], 0
    return [*groups, group] if group else groups
