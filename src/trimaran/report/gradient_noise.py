"""The gradient noise scale of a run: over the whole of it, and how it moved from epoch to epoch."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trimaran.base.units import format_span
from trimaran.convergence.noise_scale import (
    LEAST_STEPS,
    NoiseScale,
    StepNorms,
    as_scaled,
    estimate_noise_scale,
)
from trimaran.program.json_files import finite

_LINES = 8
_DOUBLES = 3.0
"""In B_simple, the batch at which √(1 + B / B_simple), by which epochs grow (`costs.convergence.ways`), is 2."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNoise:
    """The gradient noise scale of a run.

    Attributes:
        whole: over all observed steps
        by_epoch: number of the epoch, from 1, and its noise scale; epochs without an observed step are left out
        scaled: over the steps whose gradients are known as the optimizer scales them; None where it does not, or where
            that is not known
        optimizer: name of its class
        notes: what the reader should know
    """

    whole: NoiseScale
    by_epoch: tuple[tuple[int, NoiseScale], ...]
    scaled: NoiseScale | None = None
    optimizer: str = ""
    notes: tuple[str, ...] = ()

    @property
    def critical_batch(self) -> tuple[float, tuple[float, float]]:
        """Where the training needs twice the epochs that small batches need, and its 90 % interval [samples].

        With an optimizer that scales gradients, for rates that follow the square root of the batch; else for the best
        rate of each batch. Infinite where the steps show no signal.
        """
        if self.scaled is None:
            return self.whole.b_crit, self.whole.b_crit_interval
        low, high = self.scaled.interval
        return _DOUBLES * self.scaled.b_simple, (_DOUBLES * low, _DOUBLES * high)


def run_noise(observations: Sequence[StepNorms], steps_per_epoch: int, *, optimizer: str = "") -> RunNoise | None:
    """The noise scale of a run from what its steps noted.

    Args:
        observations: by rising step
        steps_per_epoch: of the run
        optimizer: name of its class; empty: not known

    Returns:
        None where no step was observed whose norms are finite.
    """
    seen = len(observations)
    observations = [one for one in observations if math.isfinite(one.whole) and math.isfinite(one.pieces)]
    if not observations:
        return None
    notes = []
    if len(observations) < seen:
        notes.append(f"{seen - len(observations)} of {seen} steps are left out: their gradients were not finite")
    scaled = as_scaled(observations)
    if optimizer and optimizer not in _PLAIN and len(scaled) < LEAST_STEPS:
        notes.append(
            f"the noise scale is that of plain gradients; {optimizer} scales them, so its critical batch differs"
        )
    whole = estimate_noise_scale(observations)
    if math.isinf(whole.interval[1]):
        notes.append(
            f"{whole.steps} steps at batch {whole.batch:.0f} do not bound the noise scale from above: observe more "
            "steps, or a larger batch"
        )
    epochs = itertools.groupby(observations, lambda one: one.step // steps_per_epoch + 1)
    by_epoch = tuple((number, estimate_noise_scale(list(steps))) for number, steps in epochs)
    return RunNoise(
        whole=whole,
        by_epoch=by_epoch,
        scaled=estimate_noise_scale(scaled) if len(scaled) >= LEAST_STEPS else None,
        optimizer=optimizer,
        notes=tuple(notes),
    )


def gradient_noise_lines(found: RunNoise) -> list[str]:
    """For people: the critical batch, the noise scale, and how it moved.

    Args:
        found: of a run
    """
    whole, scaled = found.whole, found.scaled
    rates = "the best rate of each batch"
    noise = f"gradient noise over {whole.steps} steps: B_simple {_range(whole.b_simple, whole.interval)}"
    if scaled is not None:
        rates = f"{found.optimizer} and rates by the square root of the batch"
        noise += f"; as {found.optimizer} scales gradients {_range(scaled.b_simple, scaled.interval)}"
    lines = [f"critical batch {_range(*found.critical_batch)} samples: there epochs double, with {rates}", noise]
    shown = found.by_epoch[:: max(1, math.ceil(len(found.by_epoch) / _LINES))]
    if len(found.by_epoch) > 1:
        lines.append("by epoch: " + ", ".join(f"{number}: {_round(scale.b_simple)}" for number, scale in shown))
    return lines + [f"note: {note}" for note in found.notes]


def gradient_noise_document(found: RunNoise | None) -> dict[str, Any] | None:
    """For programs: batches in samples, intervals at 90 %, null for what has no upper end.

    Args:
        found: of a run; None where it was not observed
    """
    if found is None:
        return None
    critical, interval = found.critical_batch
    return {
        "critical_batch": finite(critical),
        "critical_batch_interval": [finite(end) for end in interval],
        **noise_scale_document(found.whole),
        "optimizer": found.optimizer,
        "scaled": None if found.scaled is None else noise_scale_document(found.scaled),
        "by_epoch": [{"epoch": number, **noise_scale_document(scale)} for number, scale in found.by_epoch],
        "notes": list(found.notes),
    }


def noise_scale_document(scale: NoiseScale) -> dict[str, Any]:
    """A noise scale for programs.

    Args:
        scale: of some steps

    Example:
        >>> one = StepNorms(step=0, samples=8, share=0.5, pieces=10.0, whole=10.0)
        >>> noise_scale_document(estimate_noise_scale([one]))["b_simple"] is None   # no signal at all
        True
    """
    return {
        "b_simple": finite(scale.b_simple),
        "interval": [finite(end) for end in scale.interval],
        "b_crit": finite(scale.b_crit),
        "b_crit_interval": [finite(end) for end in scale.b_crit_interval],
        "global_batch_size": scale.batch,
        "steps": scale.steps,
    }


def _range(value: float, interval: tuple[float, float]) -> str:
    low, high = interval
    end = f"{_round(low)} or more" if math.isinf(high) else format_span(_round(low), _round(high))
    return f"{_round(value)} (90 %: {end})"


def _round(value: float) -> str:
    """Three digits, more where they stand before the point.

    Example:
        >>> _round(1234.5), _round(56.78), _round(0.0123), _round(math.inf)
        ('1234', '56.8', '0.0123', 'no end seen')
    """
    if math.isinf(value):
        return "no end seen"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


_PLAIN = frozenset({"SGD", "ASGD"})
