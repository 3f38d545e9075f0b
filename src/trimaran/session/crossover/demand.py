"""How many samples each global batch needs, in figures that compare batches, and how unsure they are together.

A curve says how unsure a batch is by itself. Errors of two batches that are close go together (the same runs, the same
form), those of distant ones less: correlation exp(−(ln B₁ − ln B₂)² / 2ℓ²) with ℓ = ln 4, assumed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from trimaran.costs.convergence import Curve

Draws = NDArray[np.float64]
"""One value for each draw."""

COUNT = 400
"""Draws of everything that is unsure."""

NINETY = 1.645
"""Half-width of a 90 % interval by its standard deviation, of a normal law."""

_REACH = math.log(4.0)


@dataclass(frozen=True, slots=True)
class Samples:
    """Samples to the target, or a figure in proportion to them, with a 90 % interval."""

    amount: float
    low: float
    high: float

    def drawn(self, normal: Draws) -> Draws:
        """The amount where standard normal draws say how far off it is."""
        return self.amount * np.exp(spread(self.amount, self.low, self.high, normal))

    def leaning(self, share: float) -> float:
        """The amount so far towards the high end (1) or the low end (−1)."""
        end = self.high if share > 0 else self.low
        return self.amount * math.exp(abs(share) * math.log(end / self.amount))


@dataclass(slots=True)
class Demand:
    """What batches need by a curve; without a curve all need the same, which says nothing of convergence.

    Attributes:
        curve: None where there is none
    """

    curve: "Curve | None"
    _known: dict[int, Samples] = field(default_factory=dict)

    @property
    def is_absolute(self) -> bool:
        """Whether samples themselves are known, so that a time is."""
        if self.curve is None:
            return False
        table = self.curve.table
        per_unit = {"epochs": table.samples_per_epoch, "tokens": table.tokens_per_sample}
        return per_unit.get(table.unit, 1) is not None

    def at(self, batch: int) -> Samples:
        """What a global batch needs."""
        if batch not in self._known:
            self._known[batch] = self._need(batch)
        return self._known[batch]

    def draws(self, batches: Sequence[int], random: np.random.Generator) -> Mapping[int, Draws]:
        """What each batch needs in each draw."""
        kept = sorted(set(batches))
        logs = np.log(np.array(kept, dtype=float))
        likeness = np.exp(-((logs[:, None] - logs[None, :]) ** 2) / (2 * _REACH**2))
        values, vectors = np.linalg.eigh(likeness)
        roots = vectors * np.sqrt(np.clip(values, 0.0, None))
        normals = roots @ random.standard_normal((len(kept), COUNT))
        return {batch: self.at(batch).drawn(normals[place]) for place, batch in enumerate(kept)}

    def steeper(self, batches: Sequence[int], share: float) -> Mapping[int, float]:
        """What batches need if the curve rose as much more (1) or less (−1) as its intervals allow.

        The smallest batch is at one end of its interval, the largest at the other, those between them in between.
        """
        logs = {batch: math.log(batch) for batch in batches}
        low, high = min(logs.values()), max(logs.values())
        width = (high - low) or 1.0
        return {batch: self.at(batch).leaning(share * (2 * (at - low) / width - 1)) for batch, at in logs.items()}

    def _need(self, batch: int) -> Samples:
        if self.curve is None:
            return Samples(1.0, 1.0, 1.0)
        need, table = self.curve.need(batch), self.curve.table
        # What a study projects is what it says; a measured mean is not the last word.
        stated = [point.amount for point in table.points if table.projection and point.global_batch == batch]
        amount = stated[0] if stated else need.amount
        factor = {"epochs": table.samples_per_epoch or 1.0, "tokens": 1.0 / (table.tokens_per_sample or 1.0)}
        scale = factor.get(need.unit, 1.0)
        return Samples(amount * scale, min(need.low, amount) * scale, max(need.high, amount) * scale)


def spread(amount: float, low: float, high: float, normal: Draws) -> Draws:
    """Logarithms of draws by an amount, whose interval need not be symmetric.

    Args:
        amount: the median
        low: lower end of the 90 % interval
        high: upper end
        normal: standard normal draws
    """
    below = math.log(amount / low) / NINETY if low > 0 else 0.0
    above = math.log(high / amount) / NINETY
    return np.where(normal < 0, normal * below, normal * above)
