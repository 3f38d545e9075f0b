"""Batches as people write them, and as microbatches."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.raising import raises

from trimaran.base.errors import InputError
from trimaran.measure.convergence.batches import check_batches, count_microbatches, default_batches, parse_batches


@pytest.mark.parametrize(
    ("text", "batches"),
    [
        ("64", (64,)),
        ("64, 32,64", (32, 64)),
        ("32,64,…,1024", (32, 64, 128, 256, 512, 1024)),
        ("32,64,...,1024", (32, 64, 128, 256, 512, 1024)),
        ("32..256", (32, 64, 128, 256)),
        ("10,30,…,110", (10, 30, 50, 70, 90, 110)),
        ("8,24,…,216", (8, 24, 72, 216)),
    ],
)
def test_what_people_write(text: str, batches: tuple[int, ...]) -> None:
    assert parse_batches(text) == batches


@pytest.mark.parametrize(
    "text", ["", "abc", "32,", "-4", "0", "1.5", "nan", "…,64", "32,…", "32,…,…,64", "32,64,…,1000", "64..32", "1e3"]
)
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="--batches"):
        parse_batches(text)


def test_a_batch_larger_than_the_data_is_refused_with_both() -> None:
    with raises("batches.beyond-data-set", batch=2048, samples=1437) as raised:
        check_batches([64, 2048], samples=1437)
    assert raised.value.figures == {"batch": 2048, "samples": 1437}


def test_a_batch_that_leaves_a_rest_of_few_updates_is_told() -> None:
    """1437 = 2 · 512 + 413; of 64 there are 23 updates, whose last one does not matter."""
    (told,) = check_batches([64, 512], samples=1437)
    assert "512" in told
    assert "413" in told


@given(st.integers(1, 4096), st.integers(1, 100_000))
def test_default_batches_have_the_jobs_own_and_two_updates(base: int, samples: int) -> None:
    batches = default_batches(base, samples=samples)
    assert base in batches
    assert all(2 * batch <= samples for batch in batches if batch > base)
    assert all(later == 2 * batch for batch, later in itertools.pairwise(batches))


@given(st.integers(2, 4096), st.integers(1, 512))
def test_microbatches_are_equal_and_fit(batch: int, fits: int) -> None:
    try:
        count = count_microbatches(batch, fits=fits)
    except InputError as error:
        multiples = [int(word) for word in error.message.split("take ")[1].split(" or ")]
        assert all(multiple % fits == 0 and multiple != batch for multiple in multiples)
        assert all(count_microbatches(multiple, fits=fits) for multiple in multiples)
        return
    assert batch % count == 0
    assert count >= 2 or batch <= fits
    assert batch // count <= fits


def test_the_fewest_microbatches_are_taken() -> None:
    """96 in parts of at most 40: 2 parts of 48 are too large, 3 of 32 fit."""
    assert count_microbatches(96, fits=40) == 3


@pytest.mark.parametrize("batch", [1, 13, 31, 101])
def test_a_prime_batch_that_fits_is_taken_whole(batch: int) -> None:
    """Its parts of one sample each would be mostly overhead; the job itself may have such a batch."""
    assert count_microbatches(batch, fits=batch) == 1
    assert all(count_microbatches(size, fits=batch) for size in default_batches(batch, samples=5000))


@pytest.mark.parametrize("text", ["9" * 5000, "1" + "0" * 12, "1,2,…,999999999999", "1,3,…,3001"])
def test_numbers_that_no_data_fill_and_rows_without_an_end_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--batches") as raised:
        parse_batches(text)
    assert len(raised.value.message) < 300


def test_a_prime_batch_is_refused_with_those_beside_it() -> None:
    with raises("batches.uneven-microbatches", match=r"\b128\b", fits=64):
        count_microbatches(127, fits=64)
