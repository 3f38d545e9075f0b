"""The largest batch of a job on a device: without a plan, with a plan that is cheap enough, ignoring slowdown.

More samples never need less memory, and live bytes at a moment are a fixed part and a part per sample. So a straight
line through two batches nearly gives the largest batch; the batches next to it are then traced themselves. A plan has
to be made for each batch that is tried: there the interval is halved until it is narrow.

The step of a job at any batch, from two traces of it.

A step runs the same operations at every batch, and each size in it is a fixed part and a part per sample. So what lies
on the straight line through two traces is what a trace would say, without one. Where a step does not keep to that
(other operations, other lives), there is no line.
"""

from collections.abc import Callable
from dataclasses import replace

from trimaran.base.errors import InfeasibleError, InputError
from trimaran.graph.trace.types import Shape, StepTrace, Tick, TraceOp, TraceStorage
from trimaran.memory.minimum import minimum_memory
from trimaran.memory.search import step_within
from trimaran.planning.tracing.meta_trace import PricedSteps
from trimaran.program.memory import KEEP_ALL
from trimaran.report.memory import LargestBatch
from trimaran.simulator.memory import live_bytes

TOLERANCE = 0.02
_MOST = 2**24


def most_samples(peak_bytes: Callable[[int], int], budget_bytes: int, *, near: int, most: int = _MOST) -> int:
    """The most samples whose step stays within a budget; 0 where not even one does.

    Args:
        peak_bytes: of a step, by its samples [bytes]; grows with them
        budget_bytes: that it must stay within [bytes]
        near: samples from which to look
        most: no more than these are looked at

    Example:
        >>> most_samples(lambda samples: 100 + 7 * samples, 1000, near=4)
        128
    """
    known: dict[int, int] = {}

    def peak(samples: int) -> int:
        if samples not in known:
            known[samples] = peak_bytes(samples)
        return known[samples]

    low, high = 0, most + 1
    first, second = (near, 2 * near)
    while high - low > 1:
        slope = (peak(second) - peak(first)) / (second - first)
        guess = second + (budget_bytes - peak(second)) / slope if slope > 0 else low + high
        # Within the interval; where the line says nothing new, halve it; where it says that none fits, look at one.
        middle = int(guess) if low < guess < high else (low + high) // 2 if low or guess > 0 else 1
        for samples in (middle, middle + 1):
            if not low < samples < high:
                continue
            if peak(samples) <= budget_bytes:
                low = samples
            else:
                high = samples
        tried = sorted(known, key=lambda samples: abs(samples - middle))
        first, second = tried[1], tried[0]
    return low


def most_with_plan(
    slowdown: Callable[[int], float | None],
    *,
    at_most: float,
    fits: int,
    possible: int,
    known: tuple[int, float] | None = None,
) -> tuple[int, float]:
    """The most samples with which a plan costs no more than it may.

    Args:
        slowdown: cost of a plan by the samples of the step, 0.02 for 2 %; None where there is none
        at_most: that it may cost
        fits: samples that fit without a plan
        possible: samples with which a plan exists at all
        known: samples, and what a plan costs with them

    Returns:
        Samples, and what the plan costs with them.

    Raises:
        InputError: fewer samples with a plan than without one
    """
    if possible < fits:
        raise InputError(
            f"{fits} samples fit without a plan, so no fewer can with one; got {possible}",
            code="batches.fewer-than-without-plan",
        )
    low: tuple[int, float] = (fits, 0.0)
    high: tuple[int, float | None] = (possible + 1, None)
    if known is not None and fits < known[0] <= possible:
        low, high = (known, high) if known[1] <= at_most else (low, known)
    tried = 0
    while high[0] - low[0] > _step(low[0], TOLERANCE):
        tried += 1
        samples = _guess(low, high, at_most, _step(low[0], TOLERANCE), halve=tried % 3 == 0)
        cost = slowdown(samples)
        if cost is not None and cost <= at_most:
            low = samples, cost
        else:
            high = samples, cost
    return low


def _step(low: int, tolerance: float) -> int:
    return max(1, int(tolerance * low))


def _guess(low: tuple[int, float], high: tuple[int, float | None], at_most: float, step: int, *, halve: bool) -> int:
    """Where a line through the ends of the interval costs what may be paid; at least a step within the interval."""
    first, last = low[0], high[0]
    middle = (first + last) // 2
    if high[1] is not None and high[1] > low[1] and not halve:
        middle = int(first + (at_most - low[1]) / (high[1] - low[1]) * (last - first))
    return max(first + 1, min(max(middle, first + step), max(last - step, first + 1)))


class BatchLine:
    """The step of a job as a function of its batch.

    Args:
        small: a trace
        large: one of another batch
        sizes: samples of the two

    Raises:
        InputError: the two do not run the same operations, or their storages live otherwise
    """

    def __init__(self, small: StepTrace, large: StepTrace, sizes: tuple[int, int]) -> None:
        if not _same_step(small, large):
            raise InputError(
                f"the step runs other operations with {sizes[1]} samples than with {sizes[0]}: trace each batch",
                code="memory.other-operations",
                small=sizes[0],
                large=sizes[1],
            )
        self._small, self._large, self._sizes = small, large, sizes

    def at(self, samples: int) -> StepTrace:
        """The step with a number of samples."""
        first, second = self._sizes
        share = (samples - first) / (second - first)
        events = tuple(
            _op_between(one, other, share) if isinstance(one, TraceOp) and isinstance(other, TraceOp) else one
            for one, other in zip(self._small.events, self._large.events, strict=True)
        )
        storages = tuple(
            _storage_between(one, other, share)
            for one, other in zip(self._small.storages, self._large.storages, strict=True)
        )
        return replace(self._small, events=events, storages=storages)


def at_any_batch(trace: Callable[[int], StepTrace], samples: int) -> Callable[[int], StepTrace]:
    """The step as a function of its batch: on a line where it keeps to one, traced each time where it does not.

    Args:
        trace: traces the step by its samples
        samples: a batch that is traced, with twice and three times as many; the last one is to see that the line holds
    """
    try:
        line = BatchLine(trace(samples), trace(2 * samples), (samples, 2 * samples))
    except InputError:
        return trace
    far = 3 * samples
    return line.at if minimum_memory(line.at(far)).nbytes == minimum_memory(trace(far)).nbytes else trace


def _same_step(one: StepTrace, other: StepTrace) -> bool:
    if one.length != other.length or len(one.storages) != len(other.storages):
        return False
    for first, second in zip(one.events, other.events, strict=True):
        if _form(first) != _form(second):
            return False
    return all(_life(first) == _life(second) for first, second in zip(one.storages, other.storages, strict=True))


def _form(event: TraceOp | Tick) -> tuple[object, ...]:
    """The part of an event that is the same at every batch: its operation and the dims of its tensors, or its tick."""
    if not isinstance(event, TraceOp):
        return (event.kind,)
    taken = tuple((number, len(shape)) for number, shape in event.operands)
    return (event.name, taken, tuple(None if shape is None else len(shape) for shape in event.results))


def _life(storage: TraceStorage) -> tuple[object, ...]:
    ends = (storage.birth, storage.outside_end, storage.keep_end)
    return (storage.role, ends, storage.packs, storage.unpacks, storage.version)


def _op_between(one: TraceOp, other: TraceOp, share: float) -> TraceOp:
    if (one.flops, one.nbytes, one.operands, one.results) == (other.flops, other.nbytes, other.operands, other.results):
        return one
    return replace(
        one,
        flops=one.flops + (other.flops - one.flops) * share,
        nbytes=_size_between(one.nbytes, other.nbytes, share),
        operands=tuple(
            (number, _shape_between(first, second, share))
            for (number, first), (_, second) in zip(one.operands, other.operands, strict=True)
        ),
        results=tuple(
            None if first is None or second is None else _shape_between(first, second, share)
            for first, second in zip(one.results, other.results, strict=True)
        ),
    )


def _shape_between(one: Shape, other: Shape, share: float) -> Shape:
    return one if one == other else tuple(_size_between(a, b, share) for a, b in zip(one, other, strict=True))


def _size_between(one: int, other: int, share: float) -> int:
    return round(one + (other - one) * share)


def _storage_between(one: TraceStorage, other: TraceStorage, share: float) -> TraceStorage:
    if one.nbytes == other.nbytes and one.copy_bytes == other.copy_bytes:
        return one
    return replace(
        one,
        nbytes=_size_between(one.nbytes, other.nbytes, share),
        copy_bytes=_size_between(one.copy_bytes, other.copy_bytes, share),
    )


def movable_bytes(trace: StepTrace) -> int:
    """What a plan of a step may offload at most [bytes]."""
    return sum(storage.copy_bytes for storage in trace.movable)


def _with_some_plan(cost: Callable[[int], float | None], most: int, *, fits: int, known: int) -> int:
    """The most samples with which a plan is found, where the host is too small for what the minimum memory allows."""
    if cost(most) is not None:
        return most
    low, high = max(fits, known if known < most else fits), most
    while high - low > _step(low, TOLERANCE):
        middle = (low + high) // 2
        if cost(middle) is None:
            high = middle
        else:
            low = middle
    return low


def find_largest_batch(
    whole: PricedSteps,
    in_parts: PricedSteps | None,
    budget_bytes: int,
    *,
    slowdown_limit: float,
    known: tuple[int, float],
) -> LargestBatch:
    """The largest batch.

    Args:
        whole: steps of the job on the device
        in_parts: the same with some modules in parts, for batches that need too much without; None: nothing is
        budget_bytes: that they must stay within [bytes]
        slowdown_limit: most that a plan may cost against the whole step with unlimited memory, 0.1 for 10 %
        known: samples, and what a plan costs with them
    """
    near = known[0]
    whole_of = at_any_batch(whole.tracer.trace, near)
    parts_of = None if in_parts is None else at_any_batch(in_parts.tracer.trace, near)

    def cost(samples: int) -> float | None:
        trace = planned = whole_of(samples)
        if parts_of is not None and minimum_memory(trace).nbytes > budget_bytes:
            planned = parts_of(samples)
        alone_s = whole.costs(trace).compute_s
        enough_s = (1.0 + slowdown_limit) * alone_s
        try:
            step_s = step_within(planned, whole.costs(planned), budget_bytes=budget_bytes, enough_s=enough_s)
        except InfeasibleError:
            return None
        return step_s / alone_s - 1.0

    def most_at_minimum(trace_of: Callable[[int], StepTrace]) -> int:
        return most_samples(lambda some: minimum_memory(trace_of(some)).nbytes, budget_bytes, near=near)

    kept = most_samples(lambda some: live_bytes(whole_of(some), KEEP_ALL).peak, budget_bytes, near=near)
    at_minimum = max(most_at_minimum(trace_of) for trace_of in (whole_of, parts_of) if trace_of is not None)
    most = (parts_of or whole_of)(at_minimum) if at_minimum else None
    if whole.host_bytes is not None and most is not None and movable_bytes(most) > whole.host_bytes:
        at_minimum = _with_some_plan(cost, at_minimum, fits=kept, known=known[0])
    samples, slowdown = most_with_plan(cost, at_most=slowdown_limit, fits=kept, possible=at_minimum, known=known)
    return LargestBatch(
        largest_batch=samples,
        largest_batch_without_plan=kept,
        largest_batch_ignoring_slowdown=at_minimum,
        largest_batch_slowdown_limit=slowdown_limit,
        largest_batch_slowdown=slowdown,
    )
