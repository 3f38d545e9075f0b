"""Samplers that will not do, and states that do not fit them; worked by hand."""

import itertools
import random
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from tests.unit.runtime.test_feed import feed, job, targets
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

from trimaran.errors import InputError
from trimaran.program.feeding import Feeding
from trimaran.runtime.seeds import mark_host
from trimaran.session.preparing import epoch_data


def broken(data: Any, epoch: int) -> Iterator[int]:
    yield from (0, 1)
    raise OSError("no such list")


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (lambda data, epoch: [0, 12], "gave the index 12 at position 1, and the data set has 12 samples: give 0 to 11"),
        (lambda data, epoch: torch.tensor([3, -1]), "gave the index -1 at position 1"),
        (lambda data, epoch: [0, 1.0], r"gave '1.0' \(a float\) at position 1"),
        (lambda data, epoch: [True], r"gave 'True' \(a bool\) at position 0"),
        (lambda data, epoch: BatchSampler(SequentialSampler(data), 2, False), r"a list\) at position 0.* it groups"),
        (lambda data, epoch: numpy.zeros(3), r"an array of shape \(3,\) and type float64"),
        (lambda data, epoch: torch.zeros(2, 2).long(), r"an array of shape \(2, 2\)"),
        (lambda data, epoch: [], "gave no index"),
        (lambda data, epoch: itertools.cycle([1]), "more than 1000000 indices for 12 samples"),
        (lambda data, epoch: 7, "made a int, which cannot be gone through"),
        (broken, r"failed after 2 indices: OSError: no such list \(.*test_feed_orders.py:\d+\)"),
        (lambda data, epoch: data.nothing, "failed: AttributeError"),
        (lambda data, epoch: range(3), "3 samples, fewer than one global batch of 4"),
    ],
)
def test_a_sampler_that_will_not_do_is_refused(sampler: Any, said: str) -> None:
    for refuse in (feed, epoch_data):
        with pytest.raises(InputError, match=said):
            refuse(job(12, 4, sampler=sampler))


def test_a_sampler_decides_order_and_length_of_each_epoch() -> None:
    own = feed(job(12, 4, sampler=lambda data, epoch: [*range(5 + epoch), 0]), microbatches=2)
    assert (own.batches, own.samples, own.epoch_samples) == (2, 12, 6)
    assert targets(own) == [[0, 1, 2, 3], [4, 0]]
    assert targets(own) == [[0, 1, 2, 3], [4, 5, 0]]


def test_planning_knows_the_length_and_moves_no_generator() -> None:
    def draws(data: Any, epoch: int) -> list[int]:
        random.random(), numpy.random.rand(), torch.rand(1)  # noqa: NPY002
        return list(range(7))

    before = mark_host()
    assert epoch_data(job(12, 4, sampler=draws)).samples == 7
    assert mark_host() == before


def test_a_state_goes_on_only_in_its_own_order() -> None:
    def sampler(turn: int) -> Any:
        return lambda data, epoch: [(number + turn) % 12 for number in range(12)]

    own = feed(job(12, 4, sampler=sampler(0)))
    next(own.shares())
    state = own.state_dict()
    same = feed(job(12, 4, sampler=sampler(0)))
    same.load_state_dict(state)
    assert targets(same) == [[4, 5, 6, 7], [8, 9, 10, 11]]
    other = feed(job(12, 4, sampler=sampler(1)))
    other.load_state_dict(state)
    with pytest.raises(InputError, match="another order than when the state was saved"):
        targets(other)
    with pytest.raises(InputError, match="saved with a sampler, this job has no sampler"):
        feed(job(12, 4)).load_state_dict(state)


class Numbers(IterableDataset[Any]):
    """Other numbers each time that it is gone through, if it is told so."""

    def __init__(self, more: int = 0) -> None:
        self.more = more

    def __iter__(self) -> Iterator[int]:
        self.more *= 2
        return iter(range(self.more, self.more + 10))


class Sized(Numbers):
    def __len__(self) -> int:
        return 12


def streamed(samples: list[int]) -> Any:
    return torch.tensor(samples), torch.tensor(samples)


def stream(dataset: Any, **fields: Any) -> Any:
    return job(0, 4, dataset=lambda: dataset, collate=streamed, **fields)


def test_a_stream_is_cut_as_it_comes() -> None:
    own = feed(stream(Numbers()), replicas=2, microbatches=2)
    assert (own.batches, own.samples, own.streams) == (None, None, True)
    assert targets(own) == [[0, 1], [4, 5], [8]]
    assert targets(feed(stream(Numbers(), drop_last=True))) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    few = feed(stream(Numbers()), replicas=3)
    assert targets(few) == [[0, 1], [4, 5]]
    assert few.notes == ("the last 2 samples of the stream are left out: they are fewer than the 3 replicas",)
    data = epoch_data(stream(Numbers()))
    assert (data.samples, data.numbered) == (None, False)
    with pytest.raises(InputError, match="not known how many samples an epoch has"):
        data.steps(batch=4)


def test_the_length_of_a_stream_is_for_predictions_alone() -> None:
    own = feed(stream(Sized()))
    assert (own.batches, epoch_data(stream(Sized())).samples) == (3, 12)
    assert len(targets(own)) == 3
    assert own.notes == (
        "the stream says that it has 12 samples, and gave 10 in epoch 0: steps were foretold by what it says",
    )


def test_a_stream_that_gives_other_samples_now_is_not_gone_on_in() -> None:
    own = feed(stream(Numbers()))
    shares = own.shares()
    next(shares), next(shares)
    again = feed(stream(Numbers(3)))
    again.load_state_dict(own.state_dict())
    with pytest.raises(InputError, match="gives other samples for batch 1 of epoch 0 than when the state was saved"):
        targets(again)
    short = feed(stream(iter_of(3)))
    short.load_state_dict(own.state_dict())
    with pytest.raises(InputError, match="ends after 3"):
        targets(short)


def iter_of(samples: int) -> Any:
    class Short(Numbers):
        def __iter__(self) -> Iterator[int]:
            return iter(range(samples))

    return Short()


def test_workers_cannot_read_a_stream() -> None:
    with pytest.raises(InputError, match="2 workers a rank cannot read a stream"):
        feed(stream(Numbers()), feeding=Feeding(workers=2))
    with pytest.raises(InputError, match="gave no sample in epoch 0"):
        targets(feed(stream(iter_of(0))))
