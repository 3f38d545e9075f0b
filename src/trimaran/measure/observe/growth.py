"""How forward and backward grow with the batch, from the copies that were timed after the script."""

from collections.abc import Sequence
from statistics import median

from trimaran.measure.observe.records import ProcessRecord


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


def fixed_share(records: Sequence[ProcessRecord]) -> float | None:
    """Share of forward and backward that does not depend on the batch; None where no copy was timed.

    From the batch in use and twice the batch, continued in a straight line to no batch at all.

    Args:
        records: of the ranks
    """
    ratio = growth(records, 2)
    return None if ratio is None else max(0.0, min(1.0, 2 - 2 * ratio))
