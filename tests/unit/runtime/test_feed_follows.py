"""Workers load what the data set holds now, not what it held when they were forked.

Of globals that it reads they have copies: that these are old is noticed when a microbatch is loaded again.
"""

import multiprocessing
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.raising import raises
from torch.utils.data import Dataset

from trimaran.base.job import Job
from trimaran.program.strategy import Feeding
from trimaran.runtime.data.cache import share_cache
from trimaran.runtime.data.pipeline import Feed

STAGE = {"factor": 1.0}


class Staged(Dataset[Any]):
    """What a curriculum changes."""

    def __init__(self) -> None:
        self.stage = {"factor": 1.0}
        self.shared = multiprocessing.Value("d", 1.0)
        self.array = multiprocessing.RawArray("d", [1.0])

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> Any:
        return torch.ones(1) * STAGE["factor"] * self.stage["factor"] * self.shared.value * self.array[0], number


SETS: dict[str, Callable[[Staged, float], object]] = {
    "in a dict": lambda data, factor: data.stage.update(factor=factor),
    "in a number that processes share": lambda data, factor: setattr(data.shared, "value", factor),
    "in an array that they share": lambda data, factor: data.array.__setitem__(0, factor),
    "in a global": lambda _, factor: STAGE.update(factor=factor),
}


def open_feed(feeding: Feeding, data: Staged, **options: Any) -> Feed:
    STAGE["factor"] = 1.0
    job = Job(
        model=lambda: torch.nn.Linear(1, 1),
        loss=None,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: data,
        global_batch_size=2,
        on_step=lambda *_: None,
    )
    return Feed(job, replicas=1, microbatches=1, replica=0, reads=True, feeding=feeding, dataset=data, **options)


def change(feed: Feed, data: Staged, factor: float, where: str) -> None:
    feed.watch()
    SETS[where](data, factor)
    feed.follow()


def factors(feed: Feed, data: Staged, where: str) -> list[float]:
    """Of the batches of an epoch, where each step doubles it."""
    found = []
    try:
        for share in feed.shares():
            found.append(float(share.whole()[0][0]))
            change(feed, data, 2.0 * found[-1], where)
    finally:
        feed.close()
    return found


@pytest.mark.parametrize("where", list(SETS)[:-1])
@pytest.mark.parametrize("feeding", [Feeding(), Feeding(workers=1, ahead=3)], ids=["in line", "a worker"])
def test_a_change_is_in_the_next_batch(feeding: Feeding, where: str) -> None:
    """Also of what workers see at once: they are ahead of it."""
    data = Staged()
    assert factors(open_feed(feeding, data), data, where) == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def test_a_global_is_followed_in_line() -> None:
    data = Staged()
    assert factors(open_feed(Feeding(), data), data, "in a global") == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def test_workers_copies_of_a_global_are_noticed() -> None:
    data = Staged()
    with raises("feed.copied-data-changed", batch=1):
        factors(open_feed(Feeding(workers=1, ahead=3), data), data, "in a global")


def test_samples_that_differ_each_time_are_no_change() -> None:
    class Noisy(Staged):
        def __getitem__(self, number: int) -> Any:
            return torch.rand(1, generator=torch.Generator().manual_seed(time.perf_counter_ns())), number

    data = Noisy()
    assert len(factors(open_feed(Feeding(workers=1), data), data, "in a global")) == 6


@pytest.mark.parametrize(
    ("where", "code"),
    [("in a dict", "feed.cached-data-changed"), ("in a global", "feed.copied-data-changed")],
)
def test_a_change_of_what_is_kept_is_refused(where: str, code: str) -> None:
    data = Staged()
    shared = share_cache(data, 12, rank=0, exchange=lambda said: [said])
    feed = open_feed(Feeding(cached=True), data, cache=shared.cache)
    try:
        next(feed.shares()).whole()
        change(feed, data, 1.0, where)
        with raises(code):
            change(feed, data, 2.0, where)
            # Of the epoch of before: what is kept is taken again.
            feed.go_to(0)
            next(feed.shares()).whole()
    finally:
        feed.close()
        shared.close()
