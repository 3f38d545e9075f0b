"""A logical clock over an order of compute: when each step would start if every step took one unit and messages none.

It shows whether an order can run at all, draws it, and is the one time by which both ends of a channel order what they
send and receive.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.errors import InputError
from trimaran.program.orders import BACKWARDS, Compute, Order
from trimaran.program.types import Kind

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """When the steps of an order run.

    Attributes:
        starts: of each step [units]
        lengths: of each step, where steps were given lengths of their own; None: one unit [units]
    """

    starts: Mapping[Compute, float]
    lengths: Mapping[Compute, float] | None = None


def make_clock(
    order: Order,
    *,
    forward: Iterable[Pair],
    backward: Iterable[Pair],
    lengths: Mapping[Compute, float] | None = None,
) -> Clock:
    """The clock of an order; see `start_times`."""
    starts = start_times(order, forward=forward, backward=backward, lengths=lengths)
    return Clock(starts=starts, lengths=lengths)


def start_times(
    order: Order,
    *,
    forward: Iterable[Pair],
    backward: Iterable[Pair],
    lengths: Mapping[Compute, float] | None = None,
) -> dict[Compute, float]:
    """Start of each step [units].

    Args:
        order: one row of steps a rank
        forward: pairs `(producer, consumer)` of segments between which activations flow
        backward: those of them along which gradients flow back
        lengths: how long each step takes [units]; None: one unit

    Returns:
        Start by step.

    Raises:
        InputError: the order waits for itself; drawn up to where it stops

    Example:
        >>> from trimaran.program.schedules import gpipe
        >>> times = start_times(gpipe(2, 2), forward=[(0, 1)], backward=[(0, 1)])
        >>> times[Compute(Kind.FORWARD, 1, 0)], times[Compute(Kind.BACKWARD, 0, 0)]
        (1, 4)
    """
    sources = _by_second(forward)
    consumers = _by_second((consumer, producer) for producer, consumer in backward)
    steps_of_all = {step for steps in order for step in steps}
    needs_of = {step: _needs(step, sources, consumers, steps_of_all) for step in steps_of_all}
    starts: dict[Compute, float] = {}
    ends: dict[Compute, float] = {}
    reached = [0] * len(order)
    moved = True
    while moved:
        moved = False
        for row, steps in enumerate(order):
            while reached[row] < len(steps):
                step = steps[reached[row]]
                needs = [ends.get(need) for need in needs_of[step]]
                if reached[row]:
                    needs.append(ends[steps[reached[row] - 1]])
                if None in needs:
                    break
                starts[step] = max((need for need in needs if need is not None), default=0)
                ends[step] = starts[step] + (1 if lengths is None else lengths[step])
                reached[row] += 1
                moved = True
    if any(reached[row] < len(steps) for row, steps in enumerate(order)):
        raise _stuck(order, reached, starts, needs_of)
    return starts


def draw_order(order: Order, starts: Mapping[Compute, float] | None = None) -> str:
    """The order as a wavefront: one line a row, one column a unit of the logical clock.

    Args:
        order: one row of steps a rank
        starts: start of each step; None: as a chain of its segments; a step that is missing is left out
    """
    if starts is None:
        segments = 1 + max(step.segment for row in order for step in row)
        chain = [(segment, segment + 1) for segment in range(segments - 1)]
        starts = start_times(order, forward=chain, backward=chain)
    length = 1 + int(max(starts.values(), default=-1))
    width = max((len(step.token) for step in starts), default=1)
    lines = []
    for row, steps in enumerate(order):
        cells = ["."] * length
        for step in steps:
            if step in starts:
                cells[int(starts[step])] = step.token
        drawn = " ".join((f" {cell}" if cell == "." else cell).ljust(width) for cell in cells)
        lines.append(f"row {row}  {drawn}".rstrip())
    return "\n".join(lines)


def _by_second(pairs: Iterable[Pair]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for first, second in pairs:
        found.setdefault(second, []).append(first)
    return found


def _needs(
    step: Compute, sources: Mapping[int, list[int]], consumers: Mapping[int, list[int]], steps: Collection[Compute]
) -> list[Compute]:
    """The steps of any row that give what a step reads."""
    if step.kind not in BACKWARDS:
        return [Compute(step.kind, source, step.microbatch) for source in sources.get(step.segment, ())]
    if step.kind is Kind.BACKWARD_WEIGHT:
        return [Compute(Kind.BACKWARD_INPUT, step.segment, step.microbatch)]
    needs = [Compute(Kind.FORWARD, step.segment, step.microbatch)]
    for consumer in consumers.get(step.segment, ()):
        # A segment may run its whole backward for one microbatch and split it for another.
        whole = Compute(Kind.BACKWARD, consumer, step.microbatch)
        needs.append(whole if whole in steps else Compute(Kind.BACKWARD_INPUT, consumer, step.microbatch))
    return needs


def _stuck(
    order: Order, reached: Sequence[int], starts: Mapping[Compute, float], needs_of: Mapping[Compute, Sequence[Compute]]
) -> InputError:
    waits = []
    for row, steps in enumerate(order):
        if reached[row] < len(steps):
            step = steps[reached[row]]
            missing = [need.token for need in needs_of[step] if need not in starts]
            waits.append(f"  row {row} stops before {step.token}, which waits for {', '.join(missing)}")
    drawn = draw_order(order, starts)
    return InputError(
        "this order of compute can never run to its end:\n" + "\n".join(waits) + f"\nIt runs as far as this:\n{drawn}\n"
        "Reorder the rows so that every step comes after those that it waits for.",
        code="order.stuck",
        reached=tuple(reached),
    )
