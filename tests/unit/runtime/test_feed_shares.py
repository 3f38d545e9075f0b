"""A rank's parts of global batches: taken once, in any order, also after one that failed."""

import time
from contextlib import closing
from typing import Any

import pytest
import torch
from tests.raising import raises
from tests.unit.runtime.test_feed import feed, job, targets
from torch.utils.data import Dataset

from trimaran.program.strategy import Feeding
from trimaran.runtime.data.orders import sample_order
from trimaran.runtime.data.pipeline import Feed
from trimaran.runtime.data.prefetch import LoadingTimes


def test_shares_may_be_left_out_and_taken_later() -> None:
    own = feed(job(12, 4), microbatches=2)
    expected = targets(feed(job(12, 4), microbatches=2))
    first, second, third = own.shares()
    assert third.whole()[1].tolist() == expected[2]
    assert first.whole()[1].tolist() == expected[0]
    assert second.microbatch(1)[1].tolist() == expected[1][2:]


class FailsOnce(Dataset[Any]):
    """Its second read fails."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> tuple[int, int]:
        self.reads += 1
        if self.reads == 2:
            raise OSError("not now")
        return index, index


def test_a_microbatch_that_could_not_be_read_may_be_asked_for_again() -> None:
    """And is not the one after it."""
    own = feed(job(12, 4, dataset=FailsOnce), microbatches=2)
    first, second, _ = own.shares()
    with raises("feed.bad-samples"):
        first.microbatch(0)
    order = sample_order(12, seed=3, epoch=0).tolist()
    assert first.whole()[1].tolist() == order[:4]
    assert second.whole()[1].tolist() == order[4:8]


def test_a_microbatch_can_be_had_once_and_not_where_it_is_empty() -> None:
    own = feed(job(7, 6), microbatches=2)
    first, last = own.shares()
    first.microbatch(1)
    first.microbatch(0)
    with raises("share.microbatch-taken", number=1):
        first.microbatch(1)
    assert last.sizes == (1, 0)
    with raises("share.microbatch-empty", number=1):
        last.microbatch(1)
    assert len(last.whole()[1]) == 1


def test_what_a_microbatch_took_is_told() -> None:
    own = feed(job(7, 7), microbatches=3)
    seen: list[LoadingTimes] = []
    own.observe = seen.append
    (share,) = own.shares()
    with raises("share.not-loaded", number=0):
        share.loading(0)
    for number in range(3):
        share.microbatch(number)
    assert [share.loading(number) for number in range(3)] == seen
    assert [(one.samples, one.in_line) for one in seen] == [(3, True), (2, True), (2, True)]
    assert all(one.prepared_s > 0 for one in seen)


@pytest.mark.parametrize("copies", [0, 1])
def test_the_start_of_workers_is_time_of_the_batch_that_needs_them(
    copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one, and the first after a move; a clock around the opening of the feed says how long it took."""
    opened: list[float] = []
    opening = Feed._open

    def timed(own: Feed, epoch: int, number: int) -> Any:
        start_s = time.perf_counter()
        arrivals = opening(own, epoch, number)
        opened.append(time.perf_counter() - start_s)
        return arrivals

    monkeypatch.setattr(Feed, "_open", timed)
    with closing(feed(job(12, 4), microbatches=2, feeding=Feeding(workers=1, copies_ahead=copies))) as own:
        for index in (0, 1):
            own.go_to(0, index)
            share = next(own.shares())
            share.whole()
            assert share.loading(0).taken_s >= opened[index]
    assert len(opened) == 2


def padded(samples: list[Any]) -> Any:
    """As wide as the largest target of the batch, beside names that are no tensors."""
    targets = [int(target) for _, target in samples]
    rows = [torch.arange(max(targets) + 1) * (torch.arange(max(targets) + 1) <= target) for target in targets]
    return torch.stack(rows), {"targets": torch.tensor(targets), "names": [str(target) for target in targets]}


@pytest.mark.parametrize("workers", [0, 1])
def test_a_whole_share_is_one_batch_where_its_microbatches_are_padded_apart(workers: int) -> None:
    """Shares of 4 in microbatches of 2, taken whole and in parts by turns."""
    own = feed(job(8, 4, collate=padded), microbatches=2, feeding=Feeding(workers=workers))
    order = sample_order(8, seed=3, epoch=0).tolist()
    first, second = own.shares()
    inputs, others = first.whole()
    assert inputs.shape == (4, max(order[:4]) + 1)
    assert others["targets"].tolist() == order[:4]
    assert others["names"] == [str(number) for number in order[:4]]
    with raises("share.taken"):
        first.whole()
    with raises("share.microbatch-taken", number=1):
        first.microbatch(1)
    for number, part in enumerate((order[4:6], order[6:])):
        assert second.microbatch(number)[0].shape == (2, max(part) + 1)
    with raises("share.taken"):
        second.whole()
    own.close()
