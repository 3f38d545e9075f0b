"""Order and distribution of the data."""

import json
import random
from itertools import chain, islice
from typing import Any

import numpy
import pytest
import torch
from tests.raising import raises
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from trimaran.base.job import Job
from trimaran.runtime.data.orders import sample_order
from trimaran.runtime.data.pipeline import Feed


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
    """14 samples in batches of 4, the last one of 2: two replicas of 4 run one that is not theirs."""
    alone = targets(feed(job(14, 4)))
    shares = [
        targets(feed(job(14, 4), replicas=replicas, microbatches=microbatches, replica=replica))
        for replica in range(replicas)
    ]
    joined = [list(chain(*parts)) for parts in zip(*shares, strict=True)]
    assert [one[: len(batch)] for one, batch in zip(joined, alone, strict=True)] == alone
    assert joined[-1][2:] == [alone[-1][-1]] * (2 if replicas == 4 else 0)


def test_microbatches_are_contiguous_parts_of_the_share() -> None:
    (share,) = feed(job(7, 7), microbatches=3).shares()
    assert share.sizes == (3, 2, 2)
    order = sample_order(7, seed=3, epoch=0).tolist()
    assert [share.microbatch(number)[1].tolist() for number in range(3)] == [order[:3], order[3:5], order[5:]]


def test_a_run_goes_on_where_it_was() -> None:
    whole = feed(job(12, 4))
    expected = targets(whole) + targets(whole)
    other = feed(job(12, 4))
    shares = other.shares()
    next(shares), next(shares)
    again = feed(job(12, 4))
    again.load_state_dict(other.state_dict())
    assert targets(again) + targets(again) == expected[2:]


def test_a_feed_knows_where_it_is() -> None:
    own = feed(job(12, 4))
    seen = [(own.epoch, own.index) for _ in own.shares()]
    assert seen == [(0, 1), (0, 2), (0, 3)]
    assert (own.epoch, own.index) == (1, 0)


def test_the_small_last_batch_can_be_left_out() -> None:
    assert feed(job(10, 4, drop_last=True)).batches == 2
    assert feed(job(10, 4)).batches == 3


def test_in_a_last_batch_smaller_than_the_replicas_the_others_have_a_sample_that_does_not_count() -> None:
    lasts = []
    for replica in range(3):
        own = Feed(job(10, 4), replicas=3, microbatches=2, replica=replica, reads=True)
        assert (own.batches, own.notes) == (3, ())
        share = list(own.shares())[-1]
        lasts.append((share.samples, share.sizes, share.counts))
    assert lasts == [(2, (1, 0), True), (2, (1, 0), True), (2, (1, 0), False)]
    assert [
        targets(Feed(job(10, 4), replicas=3, microbatches=2, replica=replica, reads=True))[-1] for replica in (1, 2)
    ] == [targets(feed(job(10, 4)))[-1][1:]] * 2


def test_a_rank_that_reads_nothing_gets_shares_without_data() -> None:
    def never() -> Dataset[Any]:
        raise AssertionError("it must not be made")

    own = Feed(job(8, 4, dataset=never), replicas=1, microbatches=2, replica=0, reads=False, samples=8)
    assert [(share.sizes, share.whole(), share.microbatch(0)) for share in own.shares()] == [((2, 2), (), None)] * 2


def test_a_data_set_smaller_than_a_batch_is_refused() -> None:
    with raises("feed.fewer-than-one-batch", samples=3, batch=4):
        feed(job(3, 4))


class Unmeasured(Dataset[Any]):
    def __getitem__(self, index: int) -> int:
        return index


class Unsure(Unmeasured):
    def __len__(self) -> int:
        raise OSError("no such index file")


class Fractional(Unmeasured):
    def __len__(self) -> int:
        return 8.0  # type: ignore[return-value]


class Wrapper(Unmeasured):
    """Has what the data set inside has, but no length that `len` would find."""

    def __getattr__(self, name: str) -> Any:
        return getattr([1, 2], name)


@pytest.mark.parametrize(
    ("dataset", "code", "figures"),
    [
        (Wrapper, "dataset.no-length", {"match": "__len__", "type": "Wrapper"}),
        (Unsure, "dataset.length-fails", {"match": "Unsure.__len__", "type": "Unsure"}),
        (Fractional, "dataset.length-fails", {"match": "Fractional.__len__.*TypeError.*'float'", "type": "Fractional"}),
        (lambda: iter([]), "dataset.is-iterator", {"type": "list_iterator"}),
        (lambda: DataLoader([1, 2]), "dataset.is-data-loader", {"match": "Job.dataset", "type": "DataLoader"}),  # type: ignore[arg-type]
        (Unmeasured, "dataset.no-length", {"match": "__len__", "type": "Unmeasured"}),
        (lambda: 7, "dataset.no-index", {"type": "int"}),
        (list, "feed.empty-data-set", {}),
        (lambda: 1 // 0, "user.raised", {"match": "Job.dataset.*ZeroDivisionError"}),
    ],
)
def test_data_that_are_not_map_style_are_refused(dataset: Any, code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        feed(job(3, 4, dataset=dataset))


def test_a_global_batch_smaller_than_the_replicas_is_refused() -> None:
    with raises("feed.batch-too-small", batch=3, replicas=4):
        feed(job(12, 3), replicas=4)


@pytest.mark.parametrize("stages", [(2, 4, 1), (4, 2, 2), (1, 3, 2)])
def test_a_run_that_changes_its_ranks_in_the_middle_of_an_epoch_sees_each_sample_once(stages: tuple[int, ...]) -> None:
    """30 samples in batches of 7, two batches by each number of ranks, the rest of two epochs by one."""
    whole = feed(job(30, 7))
    expected = targets(whole) + targets(whole)
    state: dict[str, Any] = feed(job(30, 7)).state_dict()
    seen: list[list[int]] = []
    for replicas in stages:
        own = [feed(job(30, 7), replicas=replicas, replica=replica) for replica in range(replicas)]
        parts = []
        for one in own:
            one.load_state_dict(state)
            parts.append([share.whole()[1].tolist() for share in islice(one.shares(), 2)])
        seen += [list(chain(*batch)) for batch in zip(*parts, strict=True)]
        (place,) = {tuple(sorted(one.state_dict().items())) for one in own}
        state = dict(place)
    last = feed(job(30, 7))
    last.load_state_dict(state)
    while last.epoch < 2:
        seen += targets(last)
    assert seen == expected


def test_a_state_is_plain_figures() -> None:
    own = feed(job(12, 4), replicas=2)
    next(own.shares())
    state = own.state_dict()
    assert state == {"version": 1, "epoch": 0, "index": 1, "samples": 12, "global_batch_size": 4, "seed": 3}
    assert json.loads(json.dumps(state)) == state


@pytest.mark.parametrize(
    ("change", "code", "figures"),
    [
        ({"samples": 13}, "feed-state.other-job", {"saved": "samples 13", "now": "samples 12"}),
        ({"global_batch_size": 6}, "feed-state.other-job", {"saved": "global batch 6", "now": "global batch 4"}),
        ({"seed": 4}, "feed-state.other-job", {"saved": "seed 4", "now": "seed 3"}),
        ({"index": 4}, "feed-state.beyond-epoch", {"index": 4, "batches": 3}),
        ({"index": -1}, "feed-state.bad-value", {"match": '"index"', "value": -1}),
        ({"epoch": "1"}, "feed-state.bad-value", {"match": '"epoch"', "value": "1"}),
        ({"version": 2}, "feed-state.malformed", {}),
    ],
)
def test_a_state_that_contradicts_the_job_is_refused(
    change: dict[str, Any], code: str, figures: dict[str, Any]
) -> None:
    own = feed(job(12, 4))
    with raises(code, **figures):
        own.load_state_dict(own.state_dict() | change)
    assert (own.epoch, own.index) == (0, 0)


def test_an_epoch_that_is_over_for_more_ranks_has_a_last_batch_for_fewer() -> None:
    """9 samples in batches of 4: the last one leaves a replica of two without any."""
    two, one = feed(job(9, 4), replicas=2), feed(job(9, 4))
    list(islice(two.shares(), 2))
    one.load_state_dict(two.state_dict())
    assert targets(one) == [sample_order(9, seed=3, epoch=0).tolist()[8:]]


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


@pytest.mark.parametrize("replicas", [2, 4])
def test_what_a_sample_draws_does_not_depend_on_how_a_batch_is_cut(replicas: int) -> None:
    alone = [share.whole()[0] for share in feed(job(8, 8, dataset=Drawing)).shares()]
    parts = [
        [share.whole()[0] for share in feed(job(8, 8, dataset=Drawing), replicas=replicas, replica=replica).shares()]
        for replica in range(replicas)
    ]
    assert all(torch.equal(torch.cat(cut), one) for cut, one in zip(zip(*parts, strict=True), alone, strict=True))
