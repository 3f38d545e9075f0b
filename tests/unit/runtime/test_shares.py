"""Who gets which samples."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.raising import raises

from trimaran.runtime.data.batch_shares import first_sample, microbatch_sizes, partition_batch, split_evenly


@given(st.integers(0, 200), st.integers(1, 20))
def test_an_even_split_loses_nothing_and_differs_by_one_at_most(count: int, parts: int) -> None:
    sizes = split_evenly(count, parts)
    assert sum(sizes) == count
    assert max(sizes) - min(sizes) <= 1
    assert list(sizes) == sorted(sizes, reverse=True)


@given(st.integers(1, 200), st.integers(1, 8), st.integers(1, 16))
def test_every_sample_is_in_one_microbatch_that_counts(samples: int, replicas: int, microbatches: int) -> None:
    """Of fewer samples than replicas the others run the last one too, which does not count there."""
    degrees = {"replicas": replicas, "microbatches": microbatches}
    sizes = microbatch_sizes(samples, **degrees)
    starts = [first_sample(samples, **degrees, replica=replica) for replica in range(replicas)]
    counted = [
        start + number
        for start, share in list(zip(starts, sizes, strict=True))[:samples]
        for number in range(sum(share))
    ]
    assert counted == list(range(samples))
    assert all(
        (start, sum(share)) == (samples - 1, 1) for start, share in list(zip(starts, sizes, strict=True))[samples:]
    )
    assert [len(share) for share in sizes] == [microbatches] * replicas


@given(st.integers(1, 8), st.integers(1, 16), st.integers(0, 200))
def test_all_replicas_leave_out_the_same_microbatches(replicas: int, microbatches: int, more: int) -> None:
    """Otherwise their collectives would not match."""
    sizes = microbatch_sizes(1 + more, replicas=replicas, microbatches=microbatches)
    assert len({tuple(size > 0 for size in share) for share in sizes}) == 1
    assert all(share[0] > 0 for share in sizes)


def test_a_batch_is_cut_along_its_first_dims() -> None:
    batch = ((torch.arange(10.0).view(5, 2), torch.arange(5)), torch.arange(5))
    parts = partition_batch(batch, (2, 2, 1, 0))
    assert [part[1].tolist() for part in parts] == [[0, 1], [2, 3], [4], []]
    assert torch.equal(torch.cat([part[0][0] for part in parts]), batch[0][0])


def test_a_share_of_another_size_is_refused_with_both_numbers() -> None:
    with raises("share.wrong-size", samples=5, expected=4) as caught:
        partition_batch((torch.zeros(5, 1), torch.zeros(5)), (2, 2))
    assert caught.value.figures == {"samples": 5, "expected": 4}


NAMED = {"values": torch.zeros(7, 2), "edges": torch.zeros(2, 9), "names": ["a", "b", "c"]}


def test_a_batch_in_which_samples_cannot_be_seen_is_used_whole_or_refused() -> None:
    """Strings would stay whole where tensors are cut."""
    assert partition_batch(NAMED, (3, 0), known=True) == [NAMED, None]
    with raises("share.cannot-split", match=r"session\.feed\.shares", microbatches=2):
        partition_batch(NAMED, (2, 1), known=True)
    with raises("share.size-unknown", match=r"\b7\b.*\b2\b", expected=3):
        partition_batch(NAMED, (3, 0))
    with raises("share.cannot-split", microbatches=2):
        partition_batch((torch.zeros(3, 2), ["a", "b", "c"]), (2, 1))


def test_a_first_dim_that_is_as_long_as_a_share_by_chance_is_not_cut() -> None:
    """Four steps in time of four samples."""
    batch = torch.zeros(4, 4, 2), torch.zeros(4)
    assert partition_batch(batch, (4,), counts=False) == [batch]
    with raises("share.cannot-split", microbatches=2):
        partition_batch(batch, (2, 2), counts=False)
