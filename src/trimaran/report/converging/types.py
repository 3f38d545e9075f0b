"""What a measurement of convergence found."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trimaran.costs.convergence import Curve


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergedRun:
    """One training.

    Attributes:
        global_batch: samples of an update
        seed: of weights, order and dropout
        end: why it ended: "reached", "epochs", "diverged"
        epochs: to the target; None where it was not reached
        trained_epochs: until it ended
        samples: that it trained on
        updates: of the weights
        seconds: of training, evaluations not counted [s]
        best: largest metric; None where there was no evaluation
        noise: of its gradients, plain; None where it was not seen
        noise_b_crit: critical batch by them, infinite where they say of none [samples]; None where they were not seen,
            or where the target, from which it follows, was not reached
    """

    global_batch: int
    seed: int
    end: str
    epochs: float | None
    trained_epochs: float
    samples: int
    updates: int
    seconds: float
    best: float | None
    noise: Mapping[str, Any] | None = None
    noise_b_crit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvergedBatch:
    """One batch.

    Attributes:
        global_batch: samples of an update
        runs: that ended
        missing: that were wanted and did not end in time
    """

    global_batch: int
    runs: tuple[ConvergedRun, ...]
    missing: int = 0

    @property
    def needed(self) -> tuple[float, ...]:
        """Epochs to the target of the runs that reached it."""
        return tuple(run.epochs for run in self.runs if run.epochs is not None)

    @property
    def failed(self) -> int:
        """Runs that ended without reaching it."""
        return len(self.runs) - len(self.needed)

    @property
    def best(self) -> float | None:
        """The largest metric of all runs; None where none was evaluated."""
        return max((run.best for run in self.runs if run.best is not None), default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseComparison:
    """The critical batch by gradient noise, beside the fitted one.

    Attributes:
        b_crit: median over all runs, as the fit weighs their batches; infinite where most show no signal [samples]
        low: 5 % of the runs are below
        high: 5 % of the runs are above
        runs: that were observed
        endless: those of them whose gradients show no signal: their critical batch is counted as infinite
        ratio: over the fitted one; None where either is infinite
    """

    b_crit: float
    low: float
    high: float
    runs: int
    ratio: float | None
    endless: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Convergence:
    """A finished measurement.

    Attributes:
        job: reference of the job
        target: value of the metric
        target_source: who says so
        rule_source: why that rule of the learning rate
        max_epochs: limit of a run
        microbatch: most samples that a device took at once
        devices: that took part
        batches: by rising batch
        curve: through what was reached; its table has the recipe
        noise: None where no run says one
        kept: runs that had ended before
        seconds: of this command [s]
        run_dir: where the runs are kept
        curve_file: that plans take
        warnings: what the reader should know
    """

    job: str
    target: float
    target_source: str
    rule_source: str
    max_epochs: float
    microbatch: int
    devices: int
    batches: tuple[ConvergedBatch, ...]
    curve: Curve
    noise: NoiseComparison | None
    kept: int
    seconds: float
    run_dir: str
    curve_file: str
    warnings: tuple[str, ...] = ()
