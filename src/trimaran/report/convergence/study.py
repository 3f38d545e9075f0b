"""A convergence curve with what was asked of it."""

import math
from dataclasses import dataclass

from trimaran.costs.convergence.checks import oddities
from trimaran.costs.convergence.curve import Curve
from trimaran.costs.convergence.prediction import noise_of_single_runs
from trimaran.costs.convergence.quality import Quality
from trimaran.costs.convergence.types import Need

_FAR_BELOW = 90.0
"""Bcrit is sought down to a hundredth of the smallest batch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What one batch needs.

    Attributes:
        global_batch: samples of one update
        need: in the unit of the table
    """

    global_batch: int
    need: Need


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveStudy:
    """A curve, how well it foretells, and what was asked.

    Attributes:
        name: in the catalog, or of the file
        curve: with its table
        quality: leave-one-out figures
        asked: batches that were asked for
    """

    name: str
    curve: Curve
    quality: Quality
    asked: tuple[Asked, ...] = ()

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is odd about the points, what their source notes, and what is odd about the batches asked for."""
        table = self.curve.table
        projection = ("a study's projection, not measured",) if table.projection else ()
        found = [*projection, *oddities(table), *self._of_fit(), *table.notes]
        for asked in self.asked:
            found += [warning for warning in asked.need.warnings if warning not in found]
        return tuple(found)

    def _of_fit(self) -> tuple[str, ...]:
        fit, points, found = self.curve.fit, self.curve.table.points, []
        if len(points) > 1 and math.isinf(fit.b_crit):
            found.append("the amounts do not rise with the batch: Bcrit lies beyond what was measured")
        if fit.b_crit < points[0].global_batch / _FAR_BELOW:
            found.append("the amounts rise as fast as the batch: E0 and Bcrit lie below what was measured, not known")
        noise = 0.0 if self.curve.table.projection else noise_of_single_runs(points)
        if noise:
            found.append(f"single runs jump by more than is usual, as if they strayed by {noise:.0%}: taken as noisy")
        return tuple(found)
