"""The clock of an exchange beside the backward: one stream computes, the other runs calls one after another.

    compute   ├────── backward, slower while a call runs ──────┤
    calls          ├─ 1 ─┤├──── 2 ────┤      ├─ 3 ─┤    ├──── 4 ────┤
                                                       exposed: ├───┤

A call starts when its gradients are complete and the call before it has ended. It is known before it starts what slows
the backward up to then, so one pass over the calls in order is exact: the event engine says the same of such a program.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


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
    """Turns time on the wall into progress of the backward and back, with what has been called so far.

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
        """When so much of the backward is done, on the wall [s]. Asked in ascending order."""
        return self._walk(float("inf"), min(done_s, self.backward_s))

    def progress(self, wall_s: float) -> float:
        """How much of the backward is done at a time on the wall [s]. Asked in ascending order."""
        self._walk(wall_s, self.backward_s)
        return self._done_s

    def _walk(self, wall_s: float, done_s: float) -> float:
        while self._wall_s < wall_s and self._done_s < done_s:
            if self._place == len(self._flows):
                if done_s - self._done_s <= wall_s - self._wall_s:
                    self._wall_s, self._done_s = self._wall_s + (done_s - self._done_s), done_s
                else:
                    self._wall_s, self._done_s = wall_s, self._done_s + (wall_s - self._wall_s)
                break
            start_s, end_s = self._flows[self._place]
            flowing = self._wall_s >= start_s
            slowdown = self.interference if flowing else 1.0
            border_s = min(end_s if flowing else start_s, wall_s)
            needed_s = (done_s - self._done_s) * slowdown
            if self._wall_s + needed_s <= border_s:
                self._wall_s, self._done_s = self._wall_s + needed_s, done_s
                break
            self._done_s += (border_s - self._wall_s) / slowdown
            self._wall_s = border_s
            self._place += border_s == end_s
        return self._wall_s


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What became of the backward and the calls.

    Attributes:
        calls: in the order in which they ran
        spans: of each call, from the start of the backward
        backward_s: the backward, as long as it took beside the calls [s]
        busy_s: of the busiest link or home, where calls run side by side; None: they follow one another [s]
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
        """The exchange, however much of it is hidden [s]."""
        return sum(call.seconds for call in self.calls) if self.busy_s is None else max(self.busy_s, self.exposed_s)

    @property
    def exposed_s(self) -> float:
        """What the backward does not hide [s]."""
        return self.end_s - self.backward_s


def run_calls(calls: Sequence[Call], *, backward_s: float, interference: float) -> Exchanged:
    """Run calls in order beside a backward.

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
