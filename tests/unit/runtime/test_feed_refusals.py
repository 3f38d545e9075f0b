"""Batches that cannot be handed over, workers that cannot be started, many requests, and batches begun in line."""

import errno
import multiprocessing
import os
import resource
import socket
import tempfile
import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.raising import raises
from tests.unit.runtime.test_feed_passing import no_more_files
from tests.unit.runtime.test_feed_workers import SAMPLES, Rows, drain, feed
from torch import nn

from trimaran.base.errors import EnvironmentProblem
from trimaran.base.job import Job
from trimaran.program.strategy import Feeding
from trimaran.runtime.data.cache import share_cache
from trimaran.runtime.data.pipeline import Feed


@pytest.fixture
def feeds() -> Iterator[list[Feed]]:
    made: list[Feed] = []
    yield made
    for one in made:
        one.close()


def with_lock(samples: list[Any]) -> Any:
    """A batch that cannot be pickled where it has sample 4."""
    inputs = torch.stack([sample[0] for sample in samples])
    return inputs, {"lock": threading.Lock()} if 4.0 in inputs[:, 0] else inputs


@pytest.mark.timeout(60)
@pytest.mark.parametrize("copies", [0, 1])
def test_a_batch_that_cannot_be_pickled_is_named_at_once(copies: int, feeds: list[Feed]) -> None:
    feeds.append(feed(Rows(), Feeding(workers=2, copies_ahead=copies), collate=with_lock, rank=3))
    with raises("feed.bad-samples", match=r'\b4\b.*"target.lock"', rank=3):
        drain(feeds[0])


class Foreign:
    """Pickles, but does not come back: with an error that a pipe might give too."""

    def __reduce__(self) -> Any:
        return os.stat, ("/no/such/file",)


def test_a_batch_that_does_not_come_back_is_named(feeds: list[Feed]) -> None:
    feeds.append(feed(Rows(), Feeding(workers=1), collate=lambda samples: (samples, Foreign()), rank=3))
    for _ in range(2):
        with raises("feed.cannot-take-over", match="FileNotFoundError", rank=3):
            drain(feeds[0])


def use_up_files(samples: list[Any]) -> Any:
    """A batch, from a process that may open no other file any more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    return torch.stack([sample[0] for sample in samples])


def test_a_worker_that_may_open_no_more_files_says_so(feeds: list[Feed]) -> None:
    feeds.append(feed(Rows(), Feeding(workers=1), collate=use_up_files, rank=3))
    with raises("feed.no-memory", EnvironmentProblem, match="worker.*Too many open files", rank=3):
        drain(feeds[0])


def test_a_rank_that_may_open_no_more_files_says_so(feeds: list[Feed]) -> None:
    """It keeps its first batch, so that the next one needs another block."""
    feeds.append(feed(Rows(), Feeding(workers=1), rank=3))
    shares = feeds[0].shares()
    kept = next(shares).microbatch(0)
    with no_more_files(0), raises("feed.no-memory", EnvironmentProblem, match="Too many open files", rank=3):
        next(shares).microbatch(0)
    assert len(kept[0]) == 3


NOBODY, AT_ONCE = 65534, 250  # Linux takes at most 253 files in one message
ON_THEIR_WAY: list[socket.socket] = []


def use_up_ways(samples: list[Any]) -> Any:
    """A batch, from a process whose user has as many open files on their way as the system allows."""
    ON_THEIR_WAY.extend(socket.socketpair())
    most = max(int(opened.name) for opened in Path("/proc/self/fd").iterdir()) + 64
    if os.geteuid() == 0:
        os.setuid(NOBODY)  # for root there is no limit
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    for sent in range(0, most + 1, AT_ONCE):
        socket.send_fds(ON_THEIR_WAY[0], [b"."], [0] * min(AT_ONCE, most + 1 - sent))
    return torch.stack([sample[0] for sample in samples])


def test_too_many_open_files_on_their_way_are_told(feeds: list[Feed]) -> None:
    feeds.append(feed(Rows(), Feeding(workers=1), collate=use_up_ways, rank=3))
    with raises("feed.no-memory", EnvironmentProblem, match="Too many open files", rank=3):
        drain(feeds[0])


def test_a_data_set_that_never_closes_its_files_is_told_so(feeds: list[Feed]) -> None:
    def open_one_too_many(index: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), "4.png")

    feeds.append(feed(Rows(open_one_too_many), Feeding(workers=1)))
    with raises("feed.bad-samples", match="4.png"):
        drain(feeds[0])


class Large(Rows):
    def __init__(self) -> None:
        super().__init__(abs)
        self.more = bytes(2**22)


class Exhausting(Rows):
    def __reduce__(self) -> Any:
        raise MemoryError


@pytest.mark.parametrize(("dataset", "said"), [(Large, "File too large"), (Exhausting, "Cannot allocate memory")])
def test_a_system_that_has_no_place_for_the_data_set_is_told(
    dataset: type[Rows], said: str, monkeypatch: pytest.MonkeyPatch, feeds: list[Feed]
) -> None:
    """A file may have 1 MiB."""
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "spawn")
    feeds.append(feed(dataset(), Feeding(workers=1)))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, hard))
    try:
        with raises("feed.no-process", EnvironmentProblem, match=said, worker=0):
            drain(feeds[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
def test_a_system_that_starts_no_process_is_told(
    number: int, monkeypatch: pytest.MonkeyPatch, feeds: list[Feed]
) -> None:
    """The second worker cannot be forked; the first one is ended."""
    fork, left = os.fork, iter([True])

    def refuse() -> int:
        if next(left, False):
            return fork()
        raise OSError(number, os.strerror(number))

    before = set(multiprocessing.active_children())
    feeds.append(feed(Rows(), Feeding(workers=2)))
    monkeypatch.setattr(os, "fork", refuse)
    with raises("feed.no-process", EnvironmentProblem, worker=1):
        drain(feeds[0])
    assert set(multiprocessing.active_children()) == before


def test_workers_leave_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, feeds: list[Feed]) -> None:
    """Not even when they are killed, as they are after Ctrl-C."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    settings: dict[str, Any] = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    monkeypatch.delitem(settings, "tempdir", raising=False)
    shared = share_cache(Rows(), SAMPLES, rank=0, exchange=lambda said: [said])
    before = set(multiprocessing.active_children())
    feeds.append(feed(Rows(), Feeding(workers=4, cached=True), cache=shared.cache))
    drain(feeds[0])
    shared.close()
    for worker in set(multiprocessing.active_children()) - before:
        worker.kill()
    feeds[0].close()
    assert list(tmp_path.iterdir()) == []


def test_requests_that_no_pipe_holds_are_answered(feeds: list[Feed]) -> None:
    """A microbatch of 30 000 numbers takes 90 kB or more, a pipe 64 KiB; nine of them are asked for at once."""
    rows = torch.utils.data.TensorDataset(torch.arange(60_000), torch.arange(60_000))
    job = Job(
        model=lambda: nn.Linear(1, 1),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: rows,
        global_batch_size=30_000,
    )
    own = Feed(job, replicas=1, microbatches=1, replica=0, reads=True, feeding=Feeding(workers=1, ahead=9))
    feeds.append(own)
    seen = torch.cat([share.whole()[0] for share in own.shares()])
    assert torch.equal(seen.sort()[0], torch.arange(60_000))


def test_in_line_the_next_batches_are_begun_before_the_one_that_is_taken(feeds: list[Feed]) -> None:
    """A count of copies ahead, beside the one that is taken, have been read."""
    read: list[int] = []

    class Noted(Rows):
        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            read.append(index)
            return super().__getitem__(index)

    feeds.append(feed(Noted(), Feeding(copies_ahead=2)))
    share = next(feeds[0].shares())
    share.microbatch(0)
    assert len(read) == 3 * 3
    share.microbatch(1)
    assert len(read) == 4 * 3


def test_what_cannot_be_loaded_ahead_is_told_when_it_is_asked_for(feeds: list[Feed]) -> None:
    """The first three microbatches of four come, though all are begun with the first one."""

    class Broken(Rows):
        left = 9

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            self.left -= 1
            if self.left < 0:
                raise ValueError("no such file")
            return super().__getitem__(index)

    feeds.append(feed(Broken(), Feeding(copies_ahead=3)))
    first, second = islice(feeds[0].shares(), 2)
    for share, number in ((first, 0), (first, 1), (second, 0)):
        assert len(share.microbatch(number)[0]) == 3
    with raises("feed.bad-samples"):
        second.microbatch(1)


class Growing(Rows):
    """Has a sample more than at first from then on that it is told."""

    more = 0

    def __len__(self) -> int:
        return super().__len__() + self.more


def test_data_that_grow_are_refused_when_the_next_epoch_begins(feeds: list[Feed]) -> None:
    data = Growing()
    feeds.append(feed(data, Feeding()))
    assert len(list(feeds[0].shares())) > 0
    assert len(list(feeds[0].shares())) > 0
    data.more = 1
    with raises("feed.length-changed", match="Job.sampler", before=SAMPLES, samples=SAMPLES + 1):
        next(feeds[0].shares())
