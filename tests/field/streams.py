"""Jobs whose data are streams, as people write them, each beside its plain loop."""

import itertools
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from tests.field.entry import Family
from tests.field.strangers import BATCH, SAMPLES, WORDS, job, mlp, named, of, per_token, points, word_model
from torch.utils.data import ChainDataset, DataLoader, IterableDataset, get_worker_info

from trimaran.base.job import Job

STREAMS = Family("streams")
stream = STREAMS.entry


def rows(numbers: Any = range(SAMPLES)) -> Iterator[Any]:
    data = points()
    return (data[number % SAMPLES] for number in numbers)


class Of(IterableDataset[Any]):
    """A stream of what a function gives when it is gone through.

    Args:
        make: gives the samples; called with the stream
        kept: attributes of the stream
    """

    def __init__(self, make: Callable[[Any], Any], **kept: Any) -> None:
        self.make = make
        for name, value in kept.items():
            setattr(self, name, value)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.make(self))


class Sized(Of):
    def __len__(self) -> int:
        return self.length  # type: ignore[no-any-return, attr-defined]


class WithEpoch(Of):
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


class Counted(IterableDataset[Any]):
    """Shuffles anew each time that it is gone through, by a counter."""

    passes = 0

    def __iter__(self) -> Iterator[Any]:
        order = random.Random(self.passes).sample(range(SAMPLES), SAMPLES)
        self.passes += 1
        return rows(order)


class Placed(IterableDataset[Any]):
    """Says where it is: sample and epoch."""

    def __init__(self) -> None:
        self.epoch = self.next = 0

    def __iter__(self) -> Iterator[Any]:
        order = random.Random(self.epoch).sample(range(SAMPLES), SAMPLES)
        while self.next < SAMPLES:
            self.next += 1
            yield points()[order[self.next - 1]]
        self.next, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, int]:
        return {"epoch": self.epoch, "next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.epoch, self.next = state["epoch"], state["next"]


class Itself(IterableDataset[Any]):
    """Is its own iterator, which begins anew."""

    at = 0

    def __iter__(self) -> Any:
        self.at = 0
        return self

    def __next__(self) -> Any:
        if self.at == SAMPLES:
            raise StopIteration
        self.at += 1
        return points()[self.at - 1]


class Lines:
    """No class of torch's: it can be gone through."""

    def __iter__(self) -> Iterator[Any]:
        return rows()


def buffered(samples: Iterator[Any], drawn: Any, size: int = 6) -> Iterator[Any]:
    """Shuffled in a buffer."""
    kept: list[Any] = []
    for sample in samples:
        kept.append(sample)
        if len(kept) == size:
            yield kept.pop(drawn.randrange(size))
    drawn.shuffle(kept)
    yield from kept


def by_worker(_: Any) -> Iterator[Any]:
    info = get_worker_info()
    return rows(range(SAMPLES) if info is None else range(info.id, SAMPLES, info.num_workers))


def by_rank(_: Any) -> Iterator[Any]:
    rank, size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    return rows(range(rank, SAMPLES, size))


def by_environment(_: Any) -> Iterator[Any]:
    return rows(range(int(os.environ.get("RANK", "0")), SAMPLES, int(os.environ.get("WORLD_SIZE", "1"))))


def fails(_: Any) -> Iterator[Any]:
    yield from rows(range(20))
    raise OSError("the shard ends early")


def stops(_: Any) -> Iterator[Any]:
    source = rows(range(20))
    while True:
        yield next(source)


def shards(_: Any) -> Iterator[Any]:
    """Shards of 1, 3, 5 samples and so on, in an order that is drawn, through a buffer."""
    parts = [range(number * number, (number + 1) ** 2) for number in range(5)]
    random.shuffle(parts)
    return buffered(rows(itertools.chain(*parts)), random)


def blocks(_: Any) -> Iterator[Any]:
    """Documents of any length, cut into blocks of six tokens."""
    kept: deque[int] = deque()
    for number in range(40):
        kept.extend((number * 7 + place * 3) % WORDS for place in range(3 + number % 5))
        while len(kept) > 6:
            block = torch.tensor(list(itertools.islice(kept, 7)))
            for _place in range(6):
                kept.popleft()
            yield block[:-1], block[1:]


def mixed(_: Any) -> Iterator[Any]:
    """Two sources, by chance, until one is empty."""
    sources = [rows(range(20)), rows(range(20, 60))]
    while True:
        try:
            yield next(sources[random.random() < 0.7])
        except StopIteration:
            return


def batches(_: Any) -> Iterator[Any]:
    """Batches of unequal sizes."""
    data = points()
    for start in range(0, SAMPLES, 8):
        yield data[start : start + 8 - start // 16]


def endless(_: Any) -> Iterator[Any]:
    return rows(itertools.count())


def limited(one: Any) -> Iterator[Any]:
    """So many of an endless source, which goes on where it was."""
    return itertools.islice(one.source, 21)


def reseeded(one: Any) -> Iterator[Any]:
    return buffered(rows(), random.Random(7 + one.epoch))


def dicts(_: Any) -> Iterator[Any]:
    return ({"x": x, "y": y, "name": str(int(y))} for x, y in rows())


def other_lengths(one: Any) -> Iterator[Any]:
    one.passes += 1
    return rows(range(20 + one.passes))


def unordered(_: Any) -> Iterator[Any]:
    return rows(int(name) for name in {str(number) for number in range(SAMPLES)})


def loaded(_: Any) -> Iterator[Any]:
    return iter(DataLoader(points(), batch_size=None, shuffle=True))


KEPT = Counted()

for _name, _note, _make in (
    ("plain", "no length", lambda: Of(lambda _: rows())),
    ("sized", "with a length", lambda: Sized(lambda _: rows(), length=SAMPLES)),
    ("long_said", "says more samples than it gives", lambda: Sized(lambda _: rows(), length=SAMPLES + 9)),
    ("short_said", "says fewer samples than it gives", lambda: Sized(lambda _: rows(), length=SAMPLES - 9)),
    ("by_worker", "shares itself out by worker", lambda: Of(by_worker)),
    ("by_rank", "shares itself out by rank", lambda: Of(by_rank)),
    ("by_environment", "shares itself out by RANK of the environment", lambda: Of(by_environment)),
    ("limited", "a part of an endless source, which goes on", lambda: Of(limited, source=rows(itertools.count()))),
    ("buffer", "a shuffle buffer, by the global generator", lambda: Of(lambda _: buffered(rows(), random))),
    ("buffer_seeded", "a shuffle buffer, seeded anew", lambda: Of(lambda _: buffered(rows(), random.Random(3)))),
    ("buffer_kept", "a shuffle buffer whose generator goes on",
     lambda: Of(lambda one: buffered(rows(), one.drawn), drawn=random.Random(3))),
    ("counted", "another order in each pass, by a counter", Counted),
    ("counted_kept", "the same, of an object of the file", lambda: KEPT),
    ("epochs", "another order by set_epoch", lambda: WithEpoch(reseeded)),
    ("placed", "has a state, with its epoch", Placed),
    ("shards", "shards of unequal sizes, shuffled", lambda: Of(shards)),
    ("chained", "two streams, one after the other", lambda: ChainDataset([Of(lambda _: rows(range(13))), Of(shards)])),
    ("mixed", "two sources by chance", lambda: Of(mixed)),
    ("fails", "raises in the middle", lambda: Of(fails)),
    ("stops", "StopIteration inside of a generator", lambda: Of(stops)),
    ("itself", "is its own iterator, and begins anew", lambda: Itself()),
    ("generator", "a generator", rows),
    ("lines", "an object that can be gone through", Lines),
    ("odd_end", "a last batch of one sample", lambda: Of(lambda _: rows(range(2 * BATCH + 1)))),
    ("even_end", "no last batch", lambda: Of(lambda _: rows(range(2 * BATCH)))),
    ("too_few", "fewer samples than a batch", lambda: Of(lambda _: rows(range(BATCH - 3)))),
    ("empty", "no sample", lambda: Of(lambda _: rows(range(0)))),
    ("other_lengths", "longer in each pass", lambda: Of(other_lengths, passes=0)),
    ("unordered", "in the order of a set of strings", lambda: Of(unordered)),
    ("loaded", "a loader inside of it", lambda: Of(loaded)),
    ("endless", "endless", lambda: Of(endless)),
):  # fmt: skip
    STREAMS.entry(_note)(named(_name, partial(job, mlp, dataset=_make)))


@stream("blocks of tokens, cut from documents as they come")
def blocks_of_tokens() -> Job:
    return job(word_model, per_token, dataset=lambda: Of(blocks))


@stream("gives batches", weight=lambda batch: float(len(batch[1])))
def gives_batches() -> Job:
    return job(mlp, dataset=lambda: Of(batches), collate=lambda samples: samples[0], global_batch_size=1)


@stream("gives batches, two of them are one", weight=lambda batch: float(len(batch[1])))
def gives_batches_joined() -> Job:
    def collate(samples: list[Any]) -> Any:
        return tuple(torch.cat(one) for one in zip(*samples, strict=True))

    return job(mlp, dataset=lambda: Of(batches), collate=collate, global_batch_size=2)


@stream("dicts with a string")
def dicts_with_strings() -> Job:
    return job(of(lambda self, batch: self.net(batch["x"]), net=mlp),
               lambda output, batch: torch.nn.functional.cross_entropy(output, batch["y"]),
               dataset=lambda: Of(dicts))  # fmt: skip


@stream("the last batch is left out")
def last_left_out() -> Job:
    return job(mlp, dataset=lambda: Of(lambda _: rows()), drop_last=True)


@stream("batch norm on a stream", by_microbatch=True)
def with_batch_norm() -> Job:
    return job(lambda: mlp(torch.nn.BatchNorm1d(16)), dataset=lambda: Of(lambda _: rows(range(2 * BATCH + 1))))


@stream("a stream of evaluation, with a metric that is no mean")
def evaluated_stream() -> Job:
    return job(mlp, dataset=lambda: Of(lambda _: rows()), evaluation_dataset=lambda: Of(lambda _: rows(range(11))),
               metric=lambda o, t: -float((o.argmax(1) == t).double().mean().sqrt()))  # fmt: skip
