"""Order and distribution of the data."""

import random
from itertools import chain
from typing import Any

import numpy
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from trimaran.errors import InputError
from trimaran.job import Job
from trimaran.runtime.feed import Feed, sample_order


def job(samples: int, batch: int, **fields: Any) -> Job:
    fields.setdefault("dataset", lambda: TensorDataset(torch.arange(float(samples)), torch.arange(samples)))
    return Job(
        model=lambda: nn.Linear(1, 1),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        global_batch_size=batch,
        seed=3,
        **fields,
    )


def feed(own: Job, *, replicas: int = 1, microbatches: int = 1, replica: int = 0, **fields: Any) -> Feed:
    return Feed(own, replicas=replicas, microbatches=microbatches, replica=replica, reads=True, **fields)


def targets(own: Feed) -> list[list[int]]:
    return [share.whole()[1].tolist() for share in own.shares()]


def test_an_epoch_visits_every_sample_once_and_each_epoch_otherwise() -> None:
    own = feed(job(12, 4))
    first, second = list(chain(*targets(own))), list(chain(*targets(own)))
    assert sorted(first) == sorted(second) == list(range(12))
    assert first != second
    assert first == sample_order(12, seed=3, epoch=0).tolist()


@pytest.mark.parametrize(("replicas", "microbatches"), [(2, 1), (2, 3), (4, 2)])
def test_any_plan_trains_on_the_same_global_batches(replicas: int, microbatches: int) -> None:
    """14 samples in batches of 4, the last one of 2: replicas of 4 leave that one out."""
    alone = targets(feed(job(14, 4)))
    shares = [
        targets(feed(job(14, 4), replicas=replicas, microbatches=microbatches, replica=replica))
        for replica in range(replicas)
    ]
    joined = [list(chain(*parts)) for parts in zip(*shares, strict=True)]
    assert joined == (alone[:-1] if replicas == 4 else alone)


def test_microbatches_are_contiguous_parts_of_the_share() -> None:
    (share,) = feed(job(7, 7), microbatches=3).shares()
    assert share.sizes == (3, 2, 2)
    order = sample_order(7, seed=3, epoch=0).tolist()
    assert [share.microbatch(number)[1].tolist() for number in range(3)] == [order[:3], order[3:5], order[5:]]


def test_a_run_goes_on_where_it_was() -> None:
    whole = feed(job(12, 4))
    expected = targets(whole) + targets(whole)
    again = feed(job(12, 4))
    again.go_to(0, 2)
    assert targets(again) + targets(again) == expected[2:]


def test_a_feed_knows_where_it_is() -> None:
    own = feed(job(12, 4))
    seen = [(own.epoch, own.index) for _ in own.shares()]
    assert seen == [(0, 1), (0, 2), (0, 3)]
    assert (own.epoch, own.index) == (1, 0)


def test_the_small_last_batch_can_be_left_out() -> None:
    assert feed(job(10, 4, drop_last=True)).batches == 2
    assert feed(job(10, 4)).batches == 3


def test_a_last_batch_smaller_than_the_replicas_is_left_out_with_a_note() -> None:
    own = feed(job(9, 4), replicas=2)
    assert own.batches == 2
    assert own.notes == ("the last 1 samples of each epoch are left out: they are fewer than the 2 replicas",)


def test_a_rank_that_reads_nothing_gets_shares_without_data() -> None:
    def never() -> Dataset[Any]:
        raise AssertionError("it must not be made")

    own = Feed(job(8, 4, dataset=never), replicas=1, microbatches=2, replica=0, reads=False, samples=8)
    assert [(share.sizes, share.whole(), share.microbatch(0)) for share in own.shares()] == [((2, 2), (), None)] * 2


def test_a_data_set_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(InputError, match="3 samples, fewer than one global batch of 4"):
        feed(job(3, 4))


def test_a_data_set_without_a_length_is_refused() -> None:
    with pytest.raises(InputError, match="has no length"):
        feed(job(3, 4, dataset=lambda: iter([])))


class Drawing(Dataset[Any]):
    """Draws from every global generator, as an augmentation does."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        drawn = float(torch.rand(())), random.random(), float(numpy.random.rand())  # noqa: NPY002
        return torch.tensor(drawn), index


def test_two_ranks_that_load_the_same_samples_draw_the_same_numbers() -> None:
    """As the first and the last stage of a pipeline do; and dropout goes on as if nothing had been drawn."""
    own = job(8, 4, dataset=Drawing)
    torch.manual_seed(1)
    first = [share.whole()[0] for share in feed(own).shares()]
    left = torch.rand(3)
    torch.manual_seed(2)
    random.random()
    second = [share.whole()[0] for share in feed(own).shares()]
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))
    assert not torch.equal(first[0], first[1])
    torch.manual_seed(1)
    assert torch.equal(left, torch.rand(3))
