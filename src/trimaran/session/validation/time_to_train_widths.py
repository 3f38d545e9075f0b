"""How unsure a training's time is when it follows from that of a smaller one, were its epochs known.

    deviation² = base² + (per doubling × doublings of devices)² + (slope × share of the step that devices add)²

Fitted by benchmarks/fits/trainings.py to calibration rows in which one device, or the smallest set-up of a table, says
what larger ones take, and widened as all intervals are for machines and networks that no constant was fitted on.
"""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingWidth:
    """The deviation of a training that is predicted from a smaller one: of the logarithm of its time.

    Attributes:
        base: however alike the two are
        per_doubling: for each doubling of devices
        slope: for all of the step, of what devices add to it
    """

    base: float
    per_doubling: float
    slope: float

    def deviation(self, doublings: float, share: float) -> float:
        """Of a training on 2 ** doublings times the devices, of whose step they add a share.

        Example:
            >>> round(TrainingWidth(base=0.03, per_doubling=0.01, slope=0.4).deviation(0, 0.1), 4)
            0.05
        """
        return math.hypot(self.base, self.per_doubling * doublings, self.slope * share)


BUILT = TrainingWidth(base=0.0627, per_doubling=0.03, slope=0.572)
"""Of networks that Trimaran builds."""

SIZE_ONLY = TrainingWidth(base=0.262, per_doubling=0.0, slope=1.12)
"""Of networks of known size only."""
