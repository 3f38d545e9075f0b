"""Which gradients go into which call of a collective, and when.

Three habits. Buckets are filled to a size in the order in which gradients are complete. Cycles take at every tick what
is complete by then. And a flat buffer takes everything, after the backward.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trimaran.costs.exchange_recipes import Recipe
from trimaran.simulator.exchange_clock import BackwardClock, Call, Exchanged, run_calls

Price = Callable[[int], tuple[float, float]]
"""Latency and flow of a call by its bytes [s, s]."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A gradient to exchange.

    Attributes:
        gradient: its place in `Workload.gradients`
        nbytes: on the wire [bytes]
        ready_s: when it is complete, in undisturbed time of the backward [s]
    """

    gradient: int
    nbytes: int
    ready_s: float


def exchange_calls(gradients: Sequence[Ready], recipe: Recipe, price: Price, *, backward_s: float) -> Exchanged:
    """Run a framework's calls beside a backward.

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
    if recipe.cycle_s and recipe.overlaps:
        return _in_cycles(gradients, recipe, price, backward_s=backward_s)
    calls = [_call(group, recipe, price, backward_s=backward_s) for group in fill_buckets(gradients, recipe)]
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


def _in_cycles(gradients: Sequence[Ready], recipe: Recipe, price: Price, *, backward_s: float) -> Exchanged:
    clock = BackwardClock(backward_s=backward_s, interference=recipe.interference)
    calls, spans = [], []
    place, tick_s = 0, 0.0
    while place < len(gradients):
        done_s = clock.progress(tick_s)
        first = place
        while place < len(gradients) and min(gradients[place].ready_s, backward_s) <= done_s:
            place += 1
        # What is complete but does not fit one call is left to the next ones of the same tick.
        for group in fill_buckets(gradients[first:place], recipe):
            call = _call(group, recipe, price, backward_s=backward_s)
            calls.append(call)
            spans.append(clock.call(tick_s, call))
        tick_s += recipe.cycle_s
    return Exchanged(tuple(calls), tuple(spans), clock.wall(backward_s))


def _call(group: Sequence[Ready], recipe: Recipe, price: Price, *, backward_s: float) -> Call:
    latency_s, flow_s = price(sum(ready.nbytes for ready in group))
    ready_s = max(ready.ready_s for ready in group) if recipe.overlaps else backward_s
    places = tuple(ready.gradient for ready in group)
    return Call(min(ready_s, backward_s), recipe.call_s + latency_s, flow_s, places)
