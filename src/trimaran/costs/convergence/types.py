"""How much training a global batch needs to reach the target: E(B), with what it rests on.

amount
  │  ·                       · measured: mean over runs, spread
  │   ·                 ·  ╱   E(B) = E0 · (1 + B / Bcrit) where no point is near,
  │     ·    ·   ·   ╱         drawn to the points where they are
  └──────────────────────── B
     known from … to    beyond: warned, and wider
"""

from dataclasses import dataclass
from typing import Literal

from trimaran.costs.convergence.recipes import Recipe

Unit = Literal["epochs", "samples", "steps", "tokens"]
"""In what an amount of training is counted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What one global batch needed.

    Attributes:
        global_batch: samples of one update, over all ranks
        amount: mean over the runs, in the unit of the table
        runs: how many reached the target
        deviation: standard deviation over the runs; None where it is not known
        values: of each run, where they are known
        failed: runs that did not reach the target
    """

    global_batch: int
    amount: float
    runs: int = 1
    deviation: float | None = None
    values: tuple[float, ...] = ()
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveTable:
    """Points of one task, and where they come from.

    Attributes:
        task: what was trained to which target, such as "resnet50 on ImageNet to 75.9 % top-1"
        unit: of the amounts
        points: by rising batch, one a batch
        source: where they were published, or how they were measured
        samples_per_epoch: of the training data; None where it is not known
        network: reference of the network or job it holds for; empty: any that the user names
        target: value of the metric that was reached; None where it is not known
        projection: they are a study's projections rather than measurements
        recipe: how the learning rate followed the batch; None where it is not known
        tokens_per_sample: length of a sample [tokens]; None where it is not known
        notes: what the reader should know of the points, such as one that was left out
    """

    task: str
    unit: Unit
    points: tuple[Point, ...]
    source: str
    samples_per_epoch: int | None = None
    network: str = ""
    target: float | None = None
    projection: bool = False
    recipe: Recipe | None = None
    tokens_per_sample: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """How much training a batch needs, with a 90 % interval.

    Attributes:
        amount: in `unit`
        low: lower end
        high: upper end
        unit: in what the three are counted
        source: "measured: …", "interpolated: …" or "extrapolated: …"
        warnings: what the reader should know, such as a batch beyond the data
    """

    amount: float
    low: float
    high: float
    unit: Unit
    source: str
    warnings: tuple[str, ...] = ()

    def scaled(self, factor: float, unit: Unit) -> "Need":
        """The same need in another unit, of which one of this unit has `factor`."""
        return Need(
            amount=self.amount * factor,
            low=self.low * factor,
            high=self.high * factor,
            unit=unit,
            source=self.source,
            warnings=self.warnings,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """E(B) = e0 · (1 + B / b_crit), fitted to the logarithms of the points.

    Attributes:
        e0: amount that small batches need, in the unit of the table
        b_crit: batch at which twice as much is needed [samples]; infinite where the points do not rise
        e0_interval: 90 %
        b_crit_interval: 90 %; its upper end may be infinite
        rms: root mean square of predicted / measured − 1 over the points
    """

    e0: float
    b_crit: float
    e0_interval: tuple[float, float]
    b_crit_interval: tuple[float, float]
    rms: float
