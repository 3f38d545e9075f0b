"""The noise scale from squared norms: no bias for any split, right within its interval, open where it must be."""

import dataclasses
import itertools
import json
import math
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.raising import raises

from trimaran.convergence.noise_scale import StepNorms, as_scaled, estimate_noise_scale
from trimaran.report.gradient_noise import (
    gradient_noise_document,
    gradient_noise_lines,
    noise_scale_document,
    run_noise,
)

SPLITS = ((1, 1, 1, 1), (2, 2), (1, 3), (1, 1, 2))


def observe(gradients: numpy.ndarray, split: tuple[int, ...], step: int = 0) -> StepNorms:
    """What a step says whose samples have these gradients [samples, dims], in pieces of these sizes."""
    total, ends = len(gradients), list(itertools.accumulate(split))
    pieces = [part.sum(axis=0) / total for part in numpy.split(gradients, ends[:-1])]
    return StepNorms(
        step=step,
        samples=total,
        share=sum((size / total) ** 2 for size in split),
        pieces=float(sum((piece**2).sum() for piece in pieces)),
        whole=float((sum(pieces) ** 2).sum()),
    )


def run(batch: int, pieces: int, steps: int, *, signal: float, noise: float, seed: int) -> list[StepNorms]:
    """A run on |G|² = `signal` and tr Σ = `noise`, in 20 dimensions."""
    generator = numpy.random.default_rng(seed)
    mean, deviation = math.sqrt(signal / 20), math.sqrt(noise / 20 * pieces / batch)
    found = []
    for step in range(steps):
        each = (mean + deviation * generator.standard_normal((pieces, 20))) / pieces
        found.append(
            StepNorms(
                step=step,
                samples=batch,
                share=1 / pieces,
                pieces=float((each**2).sum()),
                whole=float((each.sum(axis=0) ** 2).sum()),
            )
        )
    return found


def test_two_samples_by_hand() -> None:
    """Gradients (3, 0) and (1, 0): g = (2, 0), |g|² = 4; pieces 1.5² + 0.5² = 2.5; |G|² = (4 − 2.5) / ½ = 3 = 3 · 1;
    tr Σ = (2.5 − 4 / 2) · 2 / ½ = 2, which is the variance of 3 and 1."""
    one = observe(numpy.array([[3.0, 0.0], [1.0, 0.0]]), (1, 1))
    assert (one.whole, one.pieces) == (4.0, 2.5)
    assert (one.signal, one.noise) == (3.0, 2.0)
    assert estimate_noise_scale([one]).b_simple == pytest.approx(2 / 3)


@given(st.lists(st.integers(-5, 5), min_size=2, max_size=3), st.sampled_from(SPLITS))
def test_any_split_has_the_same_expectation(population: list[int], split: tuple[int, ...]) -> None:
    """Over all batches of 4 that can be drawn with replacement: exactly |G|² and tr Σ."""
    batches = itertools.product(population, repeat=4)
    seen = [observe(numpy.array(batch, float)[:, None], split) for batch in batches]
    assert numpy.mean([one.signal for one in seen]) == pytest.approx(numpy.mean(population) ** 2, abs=1e-9)
    assert numpy.mean([one.noise for one in seen]) == pytest.approx(numpy.var(population), abs=1e-9)


@given(st.floats(1e-3, 1e3))
def test_the_scale_of_the_loss_does_not_matter(scale: float) -> None:
    steps = run(64, 4, 24, signal=2.0, noise=100.0, seed=0)
    scaled = [
        StepNorms(step=one.step, samples=64, share=one.share, pieces=one.pieces * scale**2, whole=one.whole * scale**2)
        for one in steps
    ]
    plain, other = estimate_noise_scale(steps), estimate_noise_scale(scaled)
    assert other.b_simple == pytest.approx(plain.b_simple, rel=1e-9)
    assert other.b_crit_interval == pytest.approx(plain.b_crit_interval, rel=1e-9)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    """B_simple = 800 / 2 = 400, at batches below and above it; 90 % are said, and 200 runs tell 90 % from 83 or 97."""
    for batch, pieces, steps in ((64, 8, 150), (512, 2, 60)):
        runs = [run(batch, pieces, steps, signal=2.0, noise=800.0, seed=seed) for seed in range(200)]
        found = [estimate_noise_scale(one) for one in runs]
        for intervals in ([one.interval for one in found], [one.b_crit_interval for one in found]):
            covered = sum(low <= 400.0 <= high for low, high in intervals)
            assert 0.83 <= covered / 200 <= 0.97


def test_no_noise_is_zero() -> None:
    found = estimate_noise_scale([observe(numpy.ones((4, 3)), (2, 2), step) for step in range(8)])
    assert (found.b_simple, found.interval) == (0.0, (0.0, 0.0))
    assert found.b_crit == pytest.approx(0.0, abs=1e-9)


def test_all_noise_is_open_to_the_right_and_null_in_json() -> None:
    """No mean gradient at all: the lower end stays far above the batch."""
    found = estimate_noise_scale(run(16, 4, 48, signal=0.0, noise=1.0, seed=3))
    assert found.interval[1] == found.b_crit_interval[1] == math.inf
    assert found.interval[0] > 16
    document = noise_scale_document(found)
    assert document["interval"][1] is None
    json.dumps(document, allow_nan=False)


def test_training_weighs_steps_by_what_they_gain() -> None:
    """Batch 8. Early |G|² = 4, tr Σ / 8 = 4, so B_simple = 8 and a step gains ½; late 1 and 2, 16 and ⅓. On average
    5/12, so that Bcrit = 8 · (7/12) / (5/12) = 11.2. The mean of the two B_simple is 12, their harmonic mean 10.7."""
    early = [StepNorms(step=step, samples=8, share=0.5, pieces=6.0, whole=8.0) for step in range(24)]
    late = [StepNorms(step=step, samples=8, share=0.5, pieces=2.5, whole=3.0) for step in range(24, 48)]
    assert [(one.signal, one.noise / 8) for one in (early[0], late[0])] == [(4.0, 4.0), (1.0, 2.0)]
    assert estimate_noise_scale([*early, *late]).b_crit == pytest.approx(11.2)


def test_few_steps_say_nothing_of_their_spread() -> None:
    found = estimate_noise_scale(run(64, 4, 3, signal=2.0, noise=100.0, seed=0))
    assert found.interval == found.b_crit_interval == (0.0, math.inf)


def test_steps_without_finite_gradients_are_left_out_of_a_run_and_told() -> None:
    steps = run(64, 4, 30, signal=2.0, noise=100.0, seed=0)
    broken = [*steps, dataclasses.replace(steps[0], step=30, whole=math.inf)]
    found, clean = run_noise(broken, 10), run_noise(steps, 10)
    assert found is not None
    assert clean is not None
    assert found.whole == clean.whole
    assert any("1 of 31 steps are left out" in note for note in found.notes)
    assert run_noise([dataclasses.replace(steps[0], pieces=math.nan)], 10) is None


def test_scaled_steps_are_those_that_know_it() -> None:
    bare = StepNorms(step=0, samples=8, share=0.5, pieces=10.0, whole=14.0)
    other = StepNorms(step=1, samples=8, share=0.5, pieces=10.0, whole=14.0, scaled=(3.0, 4.0))
    endless = dataclasses.replace(other, scaled=(3.0, math.inf))
    (found,) = as_scaled([bare, other, endless])
    assert (found.step, found.pieces, found.whole, found.scaled) == (1, 3.0, 4.0, None)


def test_the_page_says_where_epochs_double_by_the_root_of_the_batch() -> None:
    """B_simple 6 as the optimizer scales: √(1 + B / 6) is 2 at 18. Else the best rates are taken: one figure only."""
    steps = [StepNorms(step=step, samples=8, share=0.5, pieces=9.0, whole=14.0) for step in range(8)]
    found = run_noise([dataclasses.replace(one, scaled=(10.0, 14.0)) for one in steps], 8, optimizer="AdamW")
    plain = run_noise(steps, 8, optimizer="SGD")
    assert found is not None
    assert plain is not None
    for noise, critical in ((found, 18.0), (plain, plain.whole.b_crit)):
        (line,) = [line for line in gradient_noise_lines(noise) if "critical batch" in line]
        assert line.startswith(f"critical batch {critical:.3g} ")
        document = gradient_noise_document(noise)
        assert document is not None
        assert document["critical_batch"] == pytest.approx(critical)


@pytest.mark.parametrize(
    ("steps", "code", "figures"),
    [
        ([], "noise-scale.no-steps", {}),
        ([StepNorms(step=7, samples=8, share=1.0, pieces=1.0, whole=1.0)], "noise-scale.one-piece", {"step": 7}),
        ([StepNorms(step=7, samples=8, share=0.5, pieces=math.nan, whole=1.0)], "noise-scale.bad-norms", {"step": 7}),
    ],
)
def test_what_says_nothing_is_refused(steps: list[StepNorms], code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        estimate_noise_scale(steps)
