"""Where more devices stop helping: the count beyond which a doubling saves less than a stated share of the time.

time  │╲
      │ ╲                     saved by a doubling = 1 - t(2N) / t(N)
      │   ╲__                 stop at the first N where that is below the share
      │      ‾‾──____──  ←    here more devices cost and save little
      └───────────────── devices
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trimaran.planner.accuracy.types import Estimate
from trimaran.planner.choice import MODEL_ERROR

LEAST_SAVED = 0.1
"""A doubling of the devices that saves less than this share of the time is not worth it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Where to stop adding devices.

    Attributes:
        devices: beyond which a doubling saves less than the share; None: it saves more up to the last count
        interval: the same where the uncertainty is against large counts, and where it is for them; None: beyond the
            last count
        share: of the time that a doubling must save
        saved: for each count, what the step to the next one saves for a doubling; below 0: it takes longer
        counts: of devices that were compared
    """

    devices: int | None
    interval: tuple[int | None, int | None]
    share: float
    saved: Mapping[int, float]
    counts: tuple[int, ...]


def find_stop(estimates: Iterable[Estimate], *, share: float = LEAST_SAVED) -> Stop:
    """Find the count of devices beyond which more of them save too little time.

    Args:
        estimates: with times; the fastest of each count stands for it
        share: of the time that a doubling must save
    """
    best: dict[int, Estimate] = {}
    for one in estimates:
        kept = best.get(one.devices)
        if one.time_s is not None and (kept is None or one.time_s < (kept.time_s or math.inf)):
            best[one.devices] = one
    counts = tuple(sorted(best))
    cases = [_saved(best, counts, sign) for sign in (1, 0, -1)]
    pessimistic, median, optimistic = (_first_below(saved, share) for saved in cases)
    return Stop(
        devices=median,
        interval=(pessimistic, optimistic),
        share=share,
        saved=cases[1],
        counts=counts,
    )


def _saved(best: Mapping[int, Estimate], counts: Sequence[int], sign: int) -> dict[int, float]:
    """What the step from each count to the next saves for a doubling; `sign` of the uncertainty that is added."""
    found = {}
    for fewer, more in itertools.pairwise(counts):
        before, after = best[fewer], best[more]
        doubt = math.exp(sign * _slack(before, after)) if sign else 1.0
        ratio = (after.time_s or 0.0) / (before.time_s or math.inf) * doubt
        found[fewer] = 1.0 - ratio ** (1.0 / math.log2(more / fewer))
    return found


def _slack(before: Estimate, after: Estimate) -> float:
    """How far the ratio of two times may be wrong, in logarithms: steps of one machine err together, curves apart."""
    slack = math.log(1.0 + MODEL_ERROR)
    if before.global_batch == after.global_batch or before.training is None or after.training is None:
        return slack
    widths = [
        math.log(need.high / need.low) / 2 for need in (before.training.updates, after.training.updates) if need.low > 0
    ]
    return math.hypot(slack, *widths)


def _first_below(saved: Mapping[int, float], share: float) -> int | None:
    return next((count for count, part in saved.items() if part < share), None)
