"""The largest batch whose step fits: as autograd keeps everything, with a plan, at any price.

More samples never need less memory, and live bytes at a moment are a fixed part and a part per sample. So a straight
line through two batches says nearly at once where the limit lies; the batches next to it are then traced themselves.
A plan has to be made for each batch that is tried: there the interval is halved until it is narrow.
"""

from collections.abc import Callable

from trimaran.errors import InputError

TOLERANCE = 0.02
_MOST = 2**24


def most_samples(peak_bytes: Callable[[int], int], budget_bytes: int, *, near: int, most: int = _MOST) -> int:
    """The most samples whose step stays within a budget; 0 where not even one does.

    Args:
        peak_bytes: of a step with so many samples [bytes]; grows with them
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
        # Within the interval; where the line says nothing new, halve it.
        middle = int(guess) if low < guess < high else (low + high) // 2
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
    floor: int,
    known: tuple[int, float] | None = None,
    tolerance: float = TOLERANCE,
) -> tuple[int, float]:
    """The most samples with which a plan costs no more than it may.

    Args:
        slowdown: what a plan costs with so many samples, 0.02 for 2 %; None where there is none
        at_most: that it may cost
        fits: samples that fit without a plan
        floor: samples with which a plan exists at all
        known: samples, and what a plan costs with them
        tolerance: width of the last interval, relative to its lower end

    Returns:
        Samples, and what the plan costs with them.

    Raises:
        InputError: fewer samples at the floor than without a plan
    """
    if floor < fits:
        raise InputError(
            f"{fits} samples fit without a plan, so no fewer can at the floor; got {floor}",
            code="batches.fewer-than-without-plan",
        )
    low: tuple[int, float] = (fits, 0.0)
    high: tuple[int, float | None] = (floor + 1, None)
    if known is not None and fits < known[0] <= floor:
        low, high = (known, high) if known[1] <= at_most else (low, known)
    turn = 0
    while high[0] - low[0] > _step(low[0], tolerance):
        turn += 1
        samples = _guess(low, high, at_most, _step(low[0], tolerance), halve=turn % 3 == 0)
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
