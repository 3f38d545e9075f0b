"""What the noise of gradients says of the critical batch, on quadratic losses whose noise is known.

½ Σ h x² over 32 elements, h from 1 to 1/32. A sample's gradient is h x (1 + √c z) with z normal: at batch B the noise
of an element is c / B of its square, so that b = tr Σ / |G|² is c, and c grows as the loss falls. Trainings are
simulated at each batch, until the loss has fallen to a twentieth; what they need is fitted as measured points are.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trimaran.convergence.curve import fit_curve
from trimaran.convergence.noise_scale import StepNorms, estimate_noise_scale
from trimaran.convergence.single_run import RateSchedule, predict_b_crit
from trimaran.convergence.types import CurveTable, Point

Array = numpy.ndarray
BATCHES = (16, 32, 64, 128, 256, 512)
CURVATURES = 1.0 / numpy.arange(1, 33)
START = numpy.ones(32)
LOSS = 0.5 * float(CURVATURES.sum())
GOAL = LOSS / 20
SAMPLES = 512
BETAS = (0.9, 0.999)


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """A simulated one: samples that it needed, and what its steps noted."""

    samples: float
    observations: tuple[StepNorms, ...]


def noise_at(loss: float, first: float, growth: float) -> float:
    """c: `first` at the start, 20 ** growth times that at the goal."""
    return first * (LOSS / loss) ** growth


def train(
    batch: int, noise: Callable[[float], float], move: Callable[[Array, Array, float], Array], seed: int
) -> Training:
    """Train until the goal.

    Args:
        batch: of a step, computed in two halves
        noise: c at a loss
        move: what the gradient of the step, the exact one and the noise c / B make of the elements; and the factors in
            whose coordinates the step is plain descent, by which squares are noted
        seed: of the noise
    """
    generator = numpy.random.default_rng(seed)
    x, seen = START.copy(), []
    losses = [LOSS]
    for step in itertools.count():
        c = noise(losses[-1])
        exact = CURVATURES * x
        halves = exact * (1 + math.sqrt(2 * c / batch) * generator.standard_normal((2, 32))) / 2
        change, factors = move(halves.sum(axis=0), exact, c / batch)
        seen.append(
            StepNorms(
                step=step,
                samples=batch,
                share=0.5,
                pieces=float((halves**2 * factors).sum()),
                whole=float((halves.sum(axis=0) ** 2 * factors).sum()),
            )
        )
        x = x - change
        losses.append(0.5 * float((CURVATURES * x * x).sum()))
        if losses[-1] <= GOAL:
            last = math.log(losses[-2] / GOAL) / math.log(losses[-2] / losses[-1])
            return Training(samples=batch * (step + last), observations=tuple(seen))
    raise AssertionError


def best_rate(gradient: Array, exact: Array, ratio: float) -> tuple[Array, Array]:
    """Descent by a tenth of the rate that is best in expectation, |G|² / (G'HG + tr (H Σ) / B), as if in many steps."""
    bend = float((CURVATURES * exact**2).sum())
    return 0.1 * float((exact**2).sum()) / (bend * (1 + ratio)) * gradient, numpy.ones(32)


class Adam:
    """Adam by given rates."""

    def __init__(self, rates: Iterator[float]) -> None:
        self._rates = rates
        self._mean, self._square = numpy.zeros(32), numpy.zeros(32)
        self._step = 0

    def __call__(self, gradient: Array, exact: Array, ratio: float) -> tuple[Array, Array]:
        first, second = BETAS
        root = numpy.sqrt(self._square / (1 - second**self._step)) if self._step else numpy.full(32, math.inf)
        self._step += 1
        self._mean = first * self._mean + (1 - first) * gradient
        self._square = second * self._square + (1 - second) * gradient**2
        mean, square = self._mean / (1 - first**self._step), self._square / (1 - second**self._step)
        return next(self._rates) * mean / (numpy.sqrt(square) + 1e-8), 1 / root


def rates(batch: int, rate: float, warm_up: float, power: float) -> Iterator[float]:
    """By a power of the batch, after a warm-up of so many samples."""
    for step in itertools.count():
        yield rate * (batch / 64) ** power * min(1.0, (step + 0.5) * batch / warm_up)


def fitted(runs: dict[int, list[Training]]) -> float:
    """Bcrit of what trainings needed."""
    points = tuple(
        Point(global_batch=batch, amount=statistics.mean(run.samples for run in mine)) for batch, mine in runs.items()
    )
    return fit_curve(CurveTable(task="quadratic", unit="samples", points=points, source="simulated")).fit.b_crit


@pytest.mark.parametrize(("first", "growth"), [(40.0, 0.0), (20.0, 1.0), (100.0, 0.5)])
def test_theorys_critical_batch_is_that_of_the_best_rate_at_each_batch(first: float, growth: float) -> None:
    """Seen within runs, within a third; sums over the run, in which its begin rules, miss by more.

    At batches from a quarter of it on: far below, the signal hardly shows within one run.
    """
    noise = partial(noise_at, first=first, growth=growth)
    runs = {batch: [train(batch, noise, best_rate, seed) for seed in range(6)] for batch in BATCHES}
    truth = fitted(runs)
    for mine in (mine for batch, mine in runs.items() if 4 * batch >= truth):
        found = [estimate_noise_scale(run.observations) for run in mine]
        assert 0.67 * truth < statistics.median(one.b_crit for one in found) < 1.33 * truth
        if growth == 1.0:
            assert statistics.median(one.b_simple for one in found) < 0.67 * truth


@settings(max_examples=12)
@given(
    first=st.floats(10.0, 60.0),
    growth=st.floats(0.0, 0.5),
    rate=st.floats(0.002, 0.01),
    warm_up=st.sampled_from((1.0, 4000.0, 8000.0)),
    power=st.sampled_from((0.0, 0.5)),
    batch=st.sampled_from((16, 64, 256)),
)
def test_with_adam_the_rates_and_the_noise_of_one_run_foretell_the_curve(
    first: float, growth: float, rate: float, warm_up: float, power: float, batch: int
) -> None:
    """Within a factor of 1.5, whatever the rates do; theory's, of the best rates, is less than half of it by √B."""

    def make(size: int) -> Iterator[float]:
        return rates(size, rate, warm_up, power)

    noise = partial(noise_at, first=first, growth=growth)
    runs = {size: [train(size, noise, Adam(make(size)), seed) for seed in range(2)] for size in BATCHES}
    truth = fitted(runs)
    ways = {size: RateSchedule(size, samples=SAMPLES, rates=make(size)) for size in BATCHES}
    run = runs[batch][0]
    seen = estimate_noise_scale(run.observations[1:])
    found = predict_b_crit(ways, batch, run.samples / SAMPLES, seen.b_simple, most=math.inf)
    assert found is not None
    assert truth / 1.5 < found < 1.5 * truth
    if power == 0.5:
        assert seen.b_crit < 0.5 * truth
