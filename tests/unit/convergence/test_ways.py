"""How far updates go by their rates, and what other batches need by the noise of one run."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trimaran.convergence.single_run import RateSchedule, predict_b_crit, predict_epochs

BATCHES = (16, 32, 64, 128, 256, 512)


def by_root(batch: int, *, samples: int = 100_000) -> RateSchedule:
    return RateSchedule(batch, samples=samples, rates=itertools.repeat(math.sqrt(batch)))


def test_a_warm_up_is_a_shorter_way() -> None:
    """Rates of ¼, ½, ¾ and 1, two updates an epoch: after an epoch ¾, after one and a half 1½."""
    way = RateSchedule(5, samples=10, rates=itertools.chain((0.25, 0.5, 0.75), itertools.repeat(1.0)))
    assert (way.until(1.0), way.until(1.5)) == (0.75, 1.5)
    assert way.epochs_to(0.75, most=9.0) == 1.0


@given(
    st.integers(1, 40),
    st.integers(40, 100),
    st.lists(st.floats(0.01, 10.0), min_size=1, max_size=9),
    st.floats(0.01, 20.0),
)
def test_the_epochs_of_a_way_are_those_that_it_was_gone(
    batch: int, samples: int, begin: list[float], epochs: float
) -> None:
    way = RateSchedule(batch, samples=samples, rates=itertools.chain(begin, itertools.repeat(begin[-1])))
    assert way.epochs_to(way.until(epochs), most=30.0) == pytest.approx(epochs, rel=1e-6)


def test_rates_that_end_lead_nowhere() -> None:
    way = RateSchedule(10, samples=20, rates=iter((1.0, 1.0)))
    assert way.until(3.0) == 2.0
    assert way.epochs_to(2.5, most=50.0) is None


def test_what_does_not_arrive_within_the_limit_is_none() -> None:
    way = RateSchedule(10, samples=10, rates=itertools.repeat(1.0))
    assert way.epochs_to(7.5, most=7.5) == 7.5
    assert way.epochs_to(7.6, most=7.5) is None


@given(st.sampled_from(BATCHES), st.floats(0.5, 50.0), st.floats(0.0, 1e4))
def test_a_run_foretells_itself(batch: int, epochs: float, noise_scale: float) -> None:
    assert predict_epochs(by_root(batch), epochs, noise_scale, by_root(batch), most=1e6) == pytest.approx(
        epochs, rel=1e-6
    )


def test_far_below_the_noise_epochs_are_flat_and_far_above_they_rise_by_the_root() -> None:
    run = by_root(64)
    assert predict_epochs(run, 1.0, math.inf, by_root(16), most=1e6) == pytest.approx(1.0, rel=1e-3)
    assert predict_epochs(run, 1.0, 0.0, by_root(256), most=1e6) == pytest.approx(2.0, rel=1e-3)


@given(st.floats(1.0, 1e4), st.floats(1.1, 4.0), st.sampled_from(BATCHES))
def test_more_noise_is_a_larger_critical_batch(noise_scale: float, times: float, batch: int) -> None:
    ways = {size: by_root(size) for size in BATCHES}
    less, more = (predict_b_crit(ways, batch, 5.0, scale, most=1e6) for scale in (noise_scale, times * noise_scale))
    assert less is not None
    assert more is not None
    assert less < more


def test_every_run_of_the_same_noise_foretells_the_same_curve() -> None:
    """What one batch foretells of another, the other foretells of it."""
    ways = {size: by_root(size) for size in BATCHES}
    there = predict_epochs(ways[32], 5.0, 80.0, ways[512], most=1e6)
    assert there is not None
    one, other = (predict_b_crit(ways, batch, need, 80.0, most=1e6) for batch, need in ((32, 5.0), (512, there)))
    assert one == pytest.approx(other, rel=1e-6)


def test_a_run_that_did_not_move_foretells_nothing() -> None:
    ways = {size: RateSchedule(size, samples=100, rates=itertools.repeat(0.0)) for size in BATCHES}
    assert predict_b_crit(ways, 16, 2.0, 50.0, most=100.0) is None
