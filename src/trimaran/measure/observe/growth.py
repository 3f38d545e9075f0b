"""How forward and backward grow with the batch, from the copies that were timed after the script."""

from collections.abc import Sequence
from statistics import median

from trimaran.measure.observe.parts import interval
from trimaran.measure.observe.records import ProcessRecord

_BLOCKS = 5


def growth(records: Sequence[ProcessRecord], factor: int) -> float | None:
    """Time per sample with a larger batch over that with the batch in use; None where no copy was timed with it.

    Args:
        records: of the ranks, of which the mean is taken
        factor: of the batch
    """
    ratios = []
    for record in records:
        again = record.again or {}
        if factor in again.get("factors", []):
            one, many = (median(again["durations_s"][again["factors"].index(size)]) for size in (1, factor))
            ratios.append(many / one / factor)
    return sum(ratios) / len(ratios) if ratios else None


def growth_interval(records: Sequence[ProcessRecord], factor: int) -> tuple[float, float]:
    """90 % interval of the growth, from the spread between blocks of rounds; (1, 1) where no copy was timed.

    Args:
        records: of the ranks, of which the mean is taken
        factor: of the batch
    """
    ends = []
    for record in records:
        again = record.again or {}
        if factor in again.get("factors", []):
            one, many = (again["durations_s"][again["factors"].index(size)] for size in (1, factor))
            ends.append(ratio_interval(many, one))
    if not ends:
        return 1.0, 1.0
    return sum(low for low, _ in ends) / len(ends) / factor, sum(high for _, high in ends) / len(ends) / factor


def ratio_interval(above: Sequence[float], below: Sequence[float]) -> tuple[float, float]:
    """90 % interval of a ratio of medians of durations that were taken in turns.

    Args:
        above: durations of the numerator, a round each
        below: durations of the denominator, in the same rounds

    Example:
        >>> ratio_interval([2.0] * 10, [1.0] * 10)
        (2.0, 2.0)
    """
    rounds = min(len(above), len(below))
    blocks = min(_BLOCKS, rounds)
    edges = [rounds * number // blocks for number in range(blocks + 1)] if blocks else []
    parts = [slice(edges[number], edges[number + 1]) for number in range(blocks)]
    return interval(median(above) / median(below), [median(above[part]) / median(below[part]) for part in parts])


def fixed_share(records: Sequence[ProcessRecord]) -> float | None:
    """Share of forward and backward that does not depend on the batch; None where no copy was timed.

    From the batch in use and twice the batch, continued in a straight line to no batch at all.

    Args:
        records: of the ranks
    """
    ratio = growth(records, 2)
    return None if ratio is None else max(0.0, min(1.0, 2 - 2 * ratio))
