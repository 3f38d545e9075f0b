"""The gradient noise scale: from which global batch on more samples in an update stop paying, seen within a run.

G is the gradient of the mean loss over all data, Σ the covariance of the gradient of one sample. The gradient of B
samples is G with noise Σ / B on it, and its squared norm has the mean |G|² + tr Σ / B. At the batch
B_simple = tr Σ / |G|² noise and signal are equal.

A step computes its gradient g in pieces, on replicas or microbatch by microbatch: g = Σ g_k, where g_k counts the n_k
of N samples of its piece, so that it is n_k / N times their mean gradient. With share = Σ (n_k / N)²,

    E |g|²     = |G|²         + tr Σ / N        so   |G|² = E (|g|² − Σ |g_k|²) / (1 − share)
    E Σ|g_k|²  = |G|² · share + tr Σ / N             tr Σ = E (Σ |g_k|² − share · |g|²) · N / (1 − share)

without bias, however uneven the pieces. A ratio of two noisy figures is biased, so each is averaged over steps first.

At a batch B a step gains |G|² / E|g|² = 1 / (1 + B_simple / B) of its gain without noise. With x for the mean
of that share over a run, the run needs 1 / x times the steps: S = S_min (1 + Bcrit / B) and E = E_min (1 + B / Bcrit)
with Bcrit = B (1 − x) / x. That is the mean of B_simple over training, weighted as training spends its steps.

Source:
    McCandlish, Kaplan, Amodei et al., An Empirical Model of Large-Batch Training, arXiv 1812.06162, 2018: sections 2.2
    and 2.3, appendix A.1. Uneven pieces and the mean over a run are worked out here from the same premises.

Intervals of figures computed from the steps of a run, which scatter and drift.

Blocks of neighbouring steps are drawn with replacement within each window of steps, so that neither correlation of
neighbours nor the drift of a run is mistaken for independent scatter.

Source:
    Künsch, The jackknife and the bootstrap for general stationary observations, Ann. Statist. 17(3), 1989: blocks.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy

from trimaran.base.errors import InputError

WINDOW = 12
"""Steps over which a figure of the run is taken as one."""

LEAST_STEPS = 4
"""With fewer, an interval is open: so few say nothing of their spread."""

_DRAWS = 1000
_TAILS = (0.05, 0.95)
Array = numpy.ndarray


def windows(count: int) -> list[Array]:
    """The steps of each window: equal parts of about `WINDOW` steps.

    Args:
        count: of steps

    Example:
        >>> [len(window) for window in windows(25)]
        [13, 12]
    """
    return numpy.array_split(numpy.arange(count), max(1, round(count / WINDOW)))


def resample(count: int, seed: int) -> Array:
    """Runs as they might have been.

    Args:
        count: of steps
        seed: of the draws

    Returns:
        Indices of steps [draws, count]; in each window, blocks of its steps, which wrap around.
    """
    generator = numpy.random.default_rng(seed)
    parts = []
    for members in windows(count):
        size, block = len(members), _block(len(members))
        starts = generator.integers(0, size, (_DRAWS, -(-size // block)))
        places = (starts[:, :, None] + numpy.arange(block)) % size
        parts.append(members[places.reshape(_DRAWS, -1)[:, :size]])
    return numpy.concatenate(parts, axis=1)


def widen(values: Array) -> Array:
    """Values spread about the means of their windows, to restore the variance that resampling removes.

    The mean of n values in blocks of b, resampled, has (n − b) / n of the right variance.

    Args:
        values: one a step
    """
    found = values.copy()
    for members in windows(len(values)):
        mean, size, block = values[members].mean(), len(members), _block(len(members))
        found[members] = mean + (values[members] - mean) * math.sqrt(size / max(1, size - block))
    return found


def interval_of(values: Array, steps: int) -> tuple[float, float]:
    """The 90 % interval of a figure computed from resampled runs; open where they have too few steps.

    Args:
        values: one a draw; may be infinite
        steps: of a run
    """
    if steps < LEAST_STEPS:
        return 0.0, math.inf
    ordered = numpy.sort(values)
    low, high = (float(ordered[min(len(ordered) - 1, int(tail * len(ordered)))]) for tail in _TAILS)
    return low, high


def _block(size: int) -> int:
    return max(1, round(math.cbrt(size)))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepNorms:
    """Data of one step: squared norms before clipping, of its pieces and of their sum.

    Attributes:
        step: its number, from 0
        samples: N, of the global batch
        share: sum over the pieces of (n_k / N)²; 1 / pieces where they are even; below 1
        pieces: sum of |g_k|²
        whole: |g|²
        scaled: the same two of gradients as the optimizer scales them, g / √(√v + ε) with the mean square v that Adam
            keeps of earlier gradients: it steps by g / (√v + ε), which in these coordinates is plain descent. An ε of
            its own, and a hundredth of the root mean square of the tensor, so that no element counts for all; None
            where it does not scale, or has only begun

    Example:
        >>> one = StepNorms(step=0, samples=8, share=0.5, pieces=10.0, whole=14.0)
        >>> one.signal, one.noise       # (14 − 10) / 0.5; (10 − 7) · 8 / 0.5
        (8.0, 48.0)
    """

    step: int
    samples: int
    share: float
    pieces: float
    whole: float
    scaled: tuple[float, float] | None = None

    @property
    def signal(self) -> float:
        """|G|², without bias; a single step may well give a negative one."""
        return (self.whole - self.pieces) / (1.0 - self.share)

    @property
    def noise(self) -> float:
        """The trace of Σ, without bias."""
        return (self.pieces - self.share * self.whole) * self.samples / (1.0 - self.share)


def as_scaled(observations: Iterable[StepNorms]) -> tuple[StepNorms, ...]:
    """The same steps in the optimizer's own coordinates, those that have them, in finite figures.

    Args:
        observations: of a run
    """
    return tuple(
        replace(one, pieces=one.scaled[0], whole=one.scaled[1], scaled=None)
        for one in observations
        if one.scaled is not None and all(map(math.isfinite, one.scaled))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseScale:
    """The gradient noise scale of some steps, with 90 % intervals. Infinite where no signal is seen.

    Attributes:
        b_simple: mean tr Σ / mean |G|² [samples]
        interval: of it; its upper end is infinite where the steps do not exclude that there is no signal
        b_crit: critical batch of training over these steps, to be compared with the fitted one of E0 · (1 + B / Bcrit)
            [samples]
        b_crit_interval: of it
        signal: mean |G|²
        noise: mean tr Σ
        batch: mean global batch [samples]
        steps: observed
    """

    b_simple: float
    interval: tuple[float, float]
    b_crit: float
    b_crit_interval: tuple[float, float]
    signal: float
    noise: float
    batch: float
    steps: int


def estimate_noise_scale(observations: Sequence[StepNorms]) -> NoiseScale:
    """The noise scale of some steps in a row: a whole run, or an epoch of it.

    Intervals are percentiles over resampled blocks of neighbouring steps, taken with replacement within each window of
    steps, so that neither correlation of neighbours nor the drift of a run is mistaken for independent scatter.

    Args:
        observations: by rising step

    Raises:
        InputError: there are none, one has a single piece, or a figure that is no number

    Example:
        >>> steps = [StepNorms(step=number, samples=8, share=0.5, pieces=10.0, whole=14.0) for number in range(4)]
        >>> found = estimate_noise_scale(steps)
        >>> found.b_simple, found.interval, round(found.b_crit, 6)
        (6.0, (6.0, 6.0), 6.0)
    """
    _check(observations)
    signal = numpy.array([one.signal for one in observations])
    noise = numpy.array([one.noise for one in observations])
    samples = numpy.array([float(one.samples) for one in observations])
    drawn = resample(len(observations), 0)
    batch = float(samples.mean())
    spread = widen(signal), widen(noise)
    simple = _ratios(spread[1][drawn].mean(axis=1), spread[0][drawn].mean(axis=1))
    gained = _gained(signal, noise, samples, numpy.arange(len(observations))[None, :])
    critical = _critical(_gained(*spread, samples, drawn), batch)
    return NoiseScale(
        b_simple=float(_ratios(noise.mean(keepdims=True), signal.mean(keepdims=True))[0]),
        interval=interval_of(simple, len(observations)),
        b_crit=float(_critical(gained, batch)[0]),
        b_crit_interval=interval_of(critical, len(observations)),
        signal=float(signal.mean()),
        noise=float(noise.mean()),
        batch=batch,
        steps=len(observations),
    )


def _check(observations: Sequence[StepNorms]) -> None:
    if not observations:
        raise InputError(
            "a noise scale needs observed steps, and there are none: train some steps first",
            code="noise-scale.no-steps",
        )
    for one in observations:
        if not 0.0 < one.share < 1.0:
            raise InputError(
                f"step {one.step} computed its gradient in one piece (share {one.share}), which says nothing of its "
                "noise: use two replicas or two microbatches",
                code="noise-scale.one-piece",
                step=one.step,
            )
        if not (math.isfinite(one.pieces) and math.isfinite(one.whole) and one.samples > 0):
            raise InputError(
                f"step {one.step} has squared norms {one.pieces} and {one.whole} over {one.samples} samples: "
                "leave it out",
                code="noise-scale.bad-norms",
                step=one.step,
            )


def _ratios(noise: Array, signal: Array) -> Array:
    """The noise over the signal; 0 where there is no noise, infinite where there is no signal."""
    with numpy.errstate(divide="ignore", invalid="ignore"):
        found = numpy.where(signal > 0.0, numpy.maximum(noise, 0.0) / signal, math.inf)
    return numpy.where(noise <= 0.0, 0.0, found)


def _gained(signal: Array, noise: Array, samples: Array, drawn: Array) -> Array:
    """Mean over the steps of |G|² / E|g|², each window's by its own means [draws].

    The quotient of two means of n steps is off by (cov(s, w) − r var(w)) / (n w²), which is put back (Tin, J. Amer.
    Statist. Assoc. 60, 1965).
    """
    total = numpy.zeros(len(drawn))
    for members in windows(len(signal)):
        part = drawn[:, members]
        squares, wholes = signal[part], (signal + noise / samples)[part]
        square, whole = squares.mean(axis=1), wholes.mean(axis=1)
        safe = numpy.where(whole > 0.0, whole, 1.0)
        share = square / safe
        both = ((squares - square[:, None]) * (wholes - whole[:, None])).mean(axis=1)
        share += (both - share * wholes.var(axis=1)) / (part.shape[1] * safe**2)
        total += numpy.where(whole > 0.0, numpy.clip(share, -1.0, 1.0), 0.0) * part.shape[1]
    return total / len(signal)


def _critical(gained: Array, batch: float) -> Array:
    with numpy.errstate(divide="ignore"):
        return numpy.where(gained > 0.0, batch * (1.0 - gained) / gained, math.inf)
