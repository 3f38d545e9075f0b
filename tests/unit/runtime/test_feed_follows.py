"""Workers load what the data set holds now, not what it held when they were forked."""

import multiprocessing
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
SHARED, SHARED_ARRAY = multiprocessing.Value("d", 1.0), multiprocessing.RawArray("d", [1.0])
SETS: dict[str, Callable[[float], object]] = {
    "in a dict": lambda factor: STAGE.update(factor=factor),
    "in a number that processes share": lambda factor: setattr(SHARED, "value", factor),
    "in an array that they share": lambda factor: SHARED_ARRAY.__setitem__(0, factor),
}


class Staged(Dataset[Any]):
    """What a curriculum changes."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, number: int) -> Any:
        return torch.ones(1) * STAGE["factor"] * SHARED.value * SHARED_ARRAY[0], number


def open_feed(feeding: Feeding, **options: Any) -> Feed:
    job = Job(
        model=lambda: torch.nn.Linear(1, 1),
        loss=None,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=Staged,
        global_batch_size=2,
    )
    return Feed(job, replicas=1, microbatches=1, replica=0, reads=True, feeding=feeding, **options)


def change(feed: Feed, factor: float, where: str = "in a dict") -> None:
    feed.watch()
    SETS[where](factor)
    feed.follow()


@pytest.mark.parametrize("where", SETS)
@pytest.mark.parametrize("feeding", [Feeding(), Feeding(workers=1, ahead=3)], ids=["in line", "a worker"])
def test_a_change_is_in_the_next_batch(feeding: Feeding, where: str) -> None:
    """Also of what workers see at once: they are ahead of it."""
    for set_ in SETS.values():
        set_(1.0)
    feed = open_feed(feeding)
    found = []
    try:
        for share in feed.shares():
            found.append(float(share.whole()[0][0]))
            change(feed, 2.0 * found[-1], where)
    finally:
        feed.close()
    assert found == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def test_a_change_of_what_is_kept_is_refused() -> None:
    STAGE["factor"] = 1.0
    shared = share_cache(Staged(), 12, rank=0, exchange=lambda said: [said])
    feed = open_feed(Feeding(cached=True), cache=shared.cache)
    try:
        next(feed.shares()).whole()
        change(feed, 1.0)
        with raises("feed.cached-data-changed"):
            change(feed, 2.0)
    finally:
        feed.close()
        shared.close()
