"""Samplers that will not do, and states that do not fit them; worked by hand."""

import itertools
import random
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
from tests.commands.planted_jobs import countless
from tests.raising import raises
from tests.unit.runtime.test_feed import feed, job, targets
from torch.utils.data import BatchSampler, IterableDataset, SequentialSampler

from trimaran.base.errors import InputError
from trimaran.planning.preparation import epoch_data
from trimaran.program.strategy import Feeding
from trimaran.runtime.data.streaming import StreamReader
from trimaran.user_code.randomness import host_states


def broken(data: Any, epoch: int) -> Iterator[int]:
    yield from (0, 1)
    raise OSError("no such list")


@pytest.mark.parametrize(
    ("sampler", "code", "values"),
    [
        (lambda data, epoch: [0, 12], "sampler.index-out-of-range", r"\b12\b.*\b1\b.*\b12\b.*\b11\b"),
        (lambda data, epoch: torch.tensor([3, -1]), "sampler.index-out-of-range", r"-1\b.*\b1\b"),
        (lambda data, epoch: [0, 1.0], "sampler.not-an-integer", r"'1.0'.*float.*\b1\b"),
        (lambda data, epoch: [True], "sampler.not-an-integer", r"'True'.*bool.*\b0\b"),
        (lambda data, epoch: BatchSampler(SequentialSampler(data), 2, False), "sampler.not-an-integer", r"list.*\b0\b"),
        (lambda data, epoch: numpy.zeros(3), "sampler.not-an-integer", r"0\.0.*float.*position 0"),
        (lambda data, epoch: torch.zeros(2, 2).long(), "sampler.not-an-integer", r"list.*one index after the other"),
        (lambda data, epoch: [], "sampler.empty", "index"),
        (lambda data, epoch: itertools.cycle([1]), "sampler.endless", r"\b1000000\b.*\b12\b"),
        (lambda data, epoch: 7, "sampler.not-iterable", "int"),
        (broken, "sampler.fails-midway", r"\b2\b.*OSError: no such list \(.*test_feed_orders.py:\d+\)"),
        (lambda data, epoch: data.nothing, "sampler.fails", "AttributeError"),
        (lambda data, epoch: range(3), "feed.fewer-than-one-batch", r"\b3\b.*\b4\b"),
    ],
)
def test_a_sampler_that_will_not_do_is_refused(sampler: Any, code: str, values: str) -> None:
    """The ranks of a feed tell each other the message only."""
    with pytest.raises(InputError, match=values) as caught:
        feed(job(12, 4, sampler=sampler))
    assert caught.value.code in (code, "sampler.fails-on-rank")
    with raises(code, match=values):
        epoch_data(job(12, 4, sampler=sampler))


def test_an_order_that_does_not_fit_the_machine_is_refused_before_it_is_drawn() -> None:
    endless = countless()
    assert epoch_data(endless).samples == 10**12
    with raises("order.no-room", match="1000000000000 samples takes 7.3 TiB", samples=10**12):
        targets(feed(endless))


def test_a_sampler_decides_order_and_length_of_each_epoch() -> None:
    own = feed(job(12, 4, sampler=lambda data, epoch: [*range(5 + epoch), 0]), microbatches=2)
    assert (own.batches, own.samples, own.epoch_samples) == (2, 12, 6)
    assert targets(own) == [[0, 1, 2, 3], [4, 0]]
    assert targets(own) == [[0, 1, 2, 3], [4, 5, 0]]


def test_planning_knows_the_length_and_moves_no_generator() -> None:
    def draws(data: Any, epoch: int) -> list[int]:
        random.random(), numpy.random.rand(), torch.rand(1)  # noqa: NPY002
        return list(range(7))

    before = host_states()
    assert epoch_data(job(12, 4, sampler=draws)).samples == 7
    assert host_states() == before


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
    with raises("sampler.other-order"):
        targets(other)
    with raises("feed-state.other-job", saved="a sampler", now="no sampler"):
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
    assert targets(few) == [[0, 1], [4, 5], [8]]
    assert few.notes == ()
    data = epoch_data(stream(Numbers()))
    assert (data.samples, data.numbered) == (None, False)
    with raises("plan.epoch-length-unknown"):
        data.steps(batch=4)


def test_the_length_of_a_stream_is_for_predictions_alone() -> None:
    own = feed(stream(Sized()))
    assert (own.batches, epoch_data(stream(Sized())).samples) == (3, 12)
    assert len(targets(own)) == 3
    assert own.notes == (
        "the stream says that it has 12 samples, and gave 10 in epoch 0: the number of steps was predicted from the "
        "former",
    )


class Counted(IterableDataset[Any]):
    """Other numbers in each pass, by a counter, of which its state may tell."""

    passes = 0

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter(range(self.passes * 100, self.passes * 100 + 6))


class Stated(Counted):
    """At the end of an epoch it says so; gone through then, it gives nothing more of that epoch."""

    ended = False

    def __iter__(self) -> Iterator[int]:
        if self.ended:
            self.ended = False
            return iter(())
        return super().__iter__()

    def state_dict(self) -> dict[str, int]:
        return {"passes": self.passes}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.passes, self.ended = state["passes"], True


def test_a_stream_that_tells_its_passes_goes_on_at_the_end_of_an_epoch() -> None:
    own = feed(stream(Stated()))
    targets(own)
    again = feed(stream(Stated()))
    again.load_state_dict(own.state_dict())
    assert targets(again) == targets(own) == [[200, 201, 202, 203], [204, 205]]
    later = feed(stream(Stated()))
    later.load_state_dict(own.state_dict())
    assert targets(later) == [[300, 301, 302, 303], [304, 305]]
    assert (again.notes, later.notes) == ((), ())


class Placed(IterableDataset[Any]):
    """Says where it is."""

    next = 0

    def __iter__(self) -> Iterator[int]:
        while self.next < 10:
            self.next += 1
            yield self.next - 1
        self.next = 0

    def state_dict(self) -> dict[str, int]:
        return {"next": self.next}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.next = state["next"]


def test_a_stream_without_a_state_begins_its_epoch_again_and_says_so() -> None:
    own = feed(stream(Numbers()))
    shares = own.shares()
    next(shares), next(shares)
    state = own.state_dict()
    # Nothing was read since.
    own.load_state_dict(state)
    assert (targets(own), own.notes) == ([[8, 9]], ())
    again = feed(stream(Numbers()))
    again.load_state_dict(state)
    assert targets(again) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    (note,) = again.notes
    assert note.startswith("epoch 0 of the stream began again, 8 samples before")
    assert (again.epoch, again.index) == (1, 0)


@pytest.mark.parametrize("epoch", [0, 1])
@pytest.mark.parametrize("kept", [Placed(), None])
def test_a_stream_goes_on_by_its_state(kept: Any, epoch: int) -> None:
    """Also one object that the job always gives, which is elsewhere by then."""
    own = feed(job(0, 4, dataset=lambda: kept or Placed(), collate=streamed))
    states, seen = [], []
    for _ in range(epoch + 1):
        states.append(own.state_dict())
        seen.append(targets(own))
    shares = own.shares()
    next(shares)
    middle = own.state_dict()
    left = [share.whole()[1].tolist() for share in shares]
    own.load_state_dict(states[epoch])
    assert targets(own) == seen[epoch]
    own.load_state_dict(middle)
    assert targets(own) == left
    assert own.notes == ()


def test_a_stream_that_failed_begins_again(tmp_path: Path) -> None:
    class Raising(Numbers):
        def __iter__(self) -> Iterator[int]:
            yield from range(6)
            if not tmp_path.exists():
                raise OSError("the disk is away")
            yield from range(6, 10)

    tmp_path.rmdir()
    own = feed(stream(Raising()))
    state = own.state_dict()
    with pytest.raises(InputError, match="the disk is away"):
        targets(own)
    tmp_path.mkdir()
    own.load_state_dict(state)
    assert targets(own) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]


def test_ranks_that_read_nothing_agree_as_often_as_those_that_read() -> None:
    """Three ranks, of which the second one reads nothing: two that are at unlike places say unlike things, or wait."""

    class Meeting:
        def __init__(self) -> None:
            self.barrier, self.said = threading.Barrier(3, timeout=20), [[0]] * 3

        def of(self, rank: int) -> Any:
            def gather(values: Any, what: str) -> list[Any]:
                self.said[rank] = values
                self.barrier.wait()
                heard = list(self.said)
                self.barrier.wait()
                assert len({len(one) for one in heard if isinstance(one, list)}) <= 1
                return heard

            return SimpleNamespace(gather_integers=gather, gather_objects=gather)

    meeting = Meeting()

    def read(rank: int) -> list[list[int]]:
        reader = StreamReader(None if rank == 1 else Placed(), batch=4, seed=3, agreement=meeting.of(rank))
        found: list[list[int]] = []

        def read_on() -> None:
            while samples := reader.read():
                found.append([samples, reader.digest])

        reader.begin(0)
        reader.read()
        found.append([4, reader.digest])
        state, digest = reader.state, reader.digest
        read_on()
        assert reader.go_on(0, 1, state=state, expected=digest)
        read_on()
        assert not reader.go_on(0, 1)
        read_on()
        return found

    with ThreadPoolExecutor(3) as pool:
        first, *others = pool.map(read, range(3))
    assert all(one == first for one in others)
    assert [one for one, _ in first] == [4, 4, 2, 4, 2, 4, 4, 2]
    assert first[1:3] == first[3:5] == first[6:]


def iter_of(samples: int) -> Any:
    class Short(Numbers):
        def __iter__(self) -> Iterator[int]:
            return iter(range(samples))

    return Short()


def test_workers_cannot_read_a_stream() -> None:
    with raises("feed.workers-on-stream", workers=2):
        feed(stream(Numbers()), feeding=Feeding(workers=2))
    with raises("feed.empty-epoch", epoch=0, samples=0):
        targets(feed(stream(iter_of(0))))
