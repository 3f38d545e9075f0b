"""Workers and copies ahead: the same batches, and what happens when a worker does not give any."""

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.raising import raises
from torch import nn
from torch.utils.data import Dataset, get_worker_info

from trimaran.base.errors import ExecutionError
from trimaran.base.job import Job
from trimaran.program.strategy import Feeding
from trimaran.runtime.data.batch_shares import Share
from trimaran.runtime.data.cache import share_cache
from trimaran.runtime.data.pipeline import Feed
from trimaran.runtime.data.prefetch import LoadingTimes

SAMPLES = 22


class Rows(Dataset[Any]):
    """Row `index` holds its number, and one that is drawn when `draws`; `also` is called in workers only."""

    def __init__(self, also: Any = lambda index: None, *, draws: bool = False) -> None:
        self.also, self.draws = also, draws

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if get_worker_info() is not None:
            self.also(index)
        drawn = torch.rand(()).item() if self.draws else 0.0
        return torch.tensor([float(index), drawn]), torch.tensor(os.getpid())


@pytest.fixture
def feeds() -> Iterator[list[Feed]]:
    made: list[Feed] = []
    yield made
    for one in made:
        one.close()


def feed(dataset: Any, feeding: Feeding, *, precision: str = "fp32", collate: Any = None, **options: Any) -> Feed:
    job = Job(
        model=lambda: nn.Linear(1, 1),
        loss=nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: dataset,
        collate=collate,
        global_batch_size=6,
        precision=precision,  # type: ignore[arg-type]
    )
    return Feed(job, replicas=1, microbatches=2, replica=0, reads=True, feeding=feeding, **options)


def endless(own: Feed) -> Iterator[Share]:
    return chain.from_iterable(own.shares() for _ in repeat(None))


FEEDINGS = (
    Feeding(workers=1),
    Feeding(workers=2, ahead=3),
    Feeding(workers=2, ahead=1, copies_ahead=2),
    Feeding(workers=1, copies_ahead=1, cached=True),
    Feeding(copies_ahead=1),
    Feeding(copies_ahead=3, cached=True),
)


@pytest.mark.parametrize("feeding", FEEDINGS, ids=repr)
@pytest.mark.parametrize("draws", [False, True], ids=["fixed", "drawn"])
def test_batches_do_not_depend_on_how_they_are_fed(feeding: Feeding, draws: bool, feeds: list[Feed]) -> None:
    """Over two epochs of four batches, the last one of four samples."""
    shared = share_cache(Rows(draws=draws), SAMPLES, rank=0, exchange=lambda said: [said])
    assert (shared.cache is None) == draws
    cache = shared.cache if feeding.cached else None
    feeds += [feed(Rows(draws=draws), Feeding()), feed(Rows(draws=draws), feeding, cache=cache)]
    plain, other = ([share.whole()[0] for share in islice(endless(own), 8)] for own in feeds)
    shared.close()
    assert [len(batch) for batch in plain] == [6, 6, 6, 4] * 2
    assert all(torch.equal(one, two) for one, two in zip(plain, other, strict=True))


def test_workers_go_on_through_the_epochs(feeds: list[Feed]) -> None:
    feeds.append(feed(Rows(), Feeding(workers=2)))
    seen = {pid for share in islice(endless(feeds[0]), 13) for pid in share.whole()[1].tolist()}
    assert len(seen) == 2
    assert os.getpid() not in seen


def test_workers_end_with_their_feed() -> None:
    before = set(multiprocessing.active_children())
    own = feed(Rows(), Feeding(workers=2, copies_ahead=1))
    next(own.shares()).whole()
    workers = set(multiprocessing.active_children()) - before
    assert len(workers) == 2
    own.close()
    assert not any(worker.is_alive() for worker in workers)
    assert not [thread for thread in threading.enumerate() if thread.name == "trimaran-feed"]


SCRIPT = """
import multiprocessing, os, signal, sys, threading
from tests.unit.runtime.test_feed_workers import Rows, feed
from trimaran.program.strategy import Feeding

signal.signal(signal.SIGTERM, lambda *_: None)
share = next(feed(Rows(), Feeding(workers=2)).shares())
thread = threading.Thread(target=share.microbatch, args=(0,))
thread.start()
thread.join()
print(*(process.pid for process in multiprocessing.active_children()), flush=True)
os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == "killed" else sys.exit("an error")
"""


@pytest.mark.parametrize("how", ["killed", pytest.param("an error", marks=pytest.mark.sweep)])
def test_workers_end_with_a_rank_that_loads_in_another_thread_and_has_a_handler(how: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT, how], cwd=Path(__file__).parents[3], capture_output=True, text=True, timeout=60
    )
    pids = [int(pid) for pid in ended.stdout.split()]
    assert len(pids) == 2, ended.stderr
    deadline = time.monotonic() + 10.0
    while any(Path(f"/proc/{pid}").exists() for pid in pids):
        assert time.monotonic() < deadline, "a worker is still there"
        time.sleep(0.05)


def test_a_place_in_the_middle_is_found_with_workers_too(feeds: list[Feed]) -> None:
    feeds += [feed(Rows(), Feeding()), feed(Rows(), Feeding(workers=2, copies_ahead=1))]
    expected = [share.whole()[0] for share in islice(endless(feeds[0]), 6)]
    other = endless(feeds[1])
    next(other).whole()
    state = feeds[1].state_dict()
    next(other).whole()
    feeds[1].load_state_dict(state)
    again = [share.whole()[0] for share in islice(endless(feeds[1]), 5)]
    assert all(torch.equal(one, two) for one, two in zip(expected[1:], again, strict=True))


def test_batches_are_in_the_precision_of_the_job(feeds: list[Feed]) -> None:
    feeds += [feed(Rows(), Feeding(workers=1, copies_ahead=count), precision="fp64") for count in (0, 1)]
    for own in feeds:
        inputs, target = next(own.shares()).microbatch(0)
        assert (inputs.dtype, target.dtype) == (torch.float64, torch.int64)


@pytest.mark.alone
@pytest.mark.parametrize("copies", [0, 1])
def test_what_workers_took_comes_with_the_batch(copies: int, feeds: list[Feed]) -> None:
    """Each sample sleeps 5 ms, so a microbatch of three stands still for 15 ms; nothing is ready for the first one.

    It begins while its worker's start, which is taken for it, is still under way.
    """
    feeds.append(feed(Rows(lambda index: time.sleep(0.005)), Feeding(workers=1, copies_ahead=copies)))
    seen: list[LoadingTimes] = []
    feeds[0].observe = seen.append
    start_s = time.perf_counter()
    (share,) = islice(feeds[0].shares(), 1)
    for number in range(2):
        share.microbatch(number)
    taken_s = time.perf_counter() - start_s
    assert [(one.samples, one.in_line) for one in seen] == [(3, False), (3, False)]
    assert all(one.read_s >= 0.0149 for one in seen)
    assert seen[0].waited_s + seen[0].taken_s >= 0.0149
    assert seen[0].waited_s > 0.0
    assert sum(one.waited_s + one.taken_s + one.copied_s for one in seen) <= taken_s


def fail(index: int) -> None:
    if index == 4:
        raise ValueError("a sample that is none")


def die(index: int) -> None:
    if index == 4:
        os.kill(os.getpid(), signal.SIGKILL)


def leave(index: int) -> None:
    if index == 4:
        os._exit(3)


def hang(index: int) -> None:
    if index == 4:
        threading.Event().wait()


def drain(own: Feed) -> None:
    for share in own.shares():
        share.whole()


@pytest.mark.parametrize("copies", [0, 1])
def test_a_sample_that_a_worker_cannot_read_is_named(copies: int, feeds: list[Feed]) -> None:
    feeds.append(feed(Rows(fail), Feeding(workers=2, copies_ahead=copies), rank=3))
    with raises("feed.bad-samples", match=r"\b4\b.*ValueError", rank=3) as caught:
        drain(feeds[0])
    assert caught.value.figures == {"rank": 3, "samples": (4,)}
    assert "Traceback" not in caught.value.message


@pytest.mark.parametrize("copies", [0, 1])
def test_batches_after_one_that_cannot_be_read_come_all_the_same(copies: int, feeds: list[Feed]) -> None:
    """Two epochs of four batches, one of which has sample 4 in each."""
    feeds += [feed(Rows(), Feeding()), feed(Rows(fail), Feeding(workers=1, copies_ahead=copies))]
    failed = 0
    for plain, other in islice(zip(endless(feeds[0]), endless(feeds[1]), strict=True), 8):
        expected = plain.whole()[0]
        if 4.0 in expected[:, 0]:
            failed += 1
            with raises("feed.bad-samples", match=r"\b4\b"):
                other.whole()
        else:
            assert torch.equal(other.whole()[0], expected)
    assert failed == 2


@pytest.mark.parametrize(("also", "said", "exit_code"), [(die, "SIGKILL", -signal.SIGKILL), (leave, r"\b3\b", 3)])
@pytest.mark.parametrize("copies", [0, 1])
def test_a_worker_that_dies_is_told(also: Any, said: str, exit_code: int, copies: int, feeds: list[Feed]) -> None:
    feeds.append(feed(Rows(also), Feeding(workers=2, copies_ahead=copies), rank=3))
    with raises("feed.worker-died", ExecutionError, match=rf"{said}.*\b4\b", rank=3, exit_code=exit_code):
        drain(feeds[0])


def test_a_worker_that_hangs_is_told(feeds: list[Feed]) -> None:
    feeds.append(feed(Rows(hang), Feeding(workers=1), timeout_s=0.5))
    with raises("feed.worker-hangs", ExecutionError, match=r"\b4\b", rank=0, timeout_s=0.5):
        drain(feeds[0])


def test_the_handler_of_ended_children_stays_the_programs_own(feeds: list[Feed]) -> None:
    before = signal.getsignal(signal.SIGCHLD)
    feeds.append(feed(Rows(), Feeding(workers=1)))
    next(feeds[0].shares()).whole()
    assert signal.getsignal(signal.SIGCHLD) is before


def test_dropout_goes_on_as_if_nothing_had_been_loaded(feeds: list[Feed]) -> None:
    feeds += [feed(Rows(draws=True), one) for one in (Feeding(), Feeding(workers=1, copies_ahead=1))]
    for own in feeds:
        torch.manual_seed(1)
        expected = torch.rand(3)
        torch.manual_seed(1)
        drain(own)
        assert torch.equal(torch.rand(3), expected)


def test_a_data_set_that_cannot_be_sent_is_told(monkeypatch: pytest.MonkeyPatch, feeds: list[Feed]) -> None:
    """A lambda cannot be pickled, and workers that are spawned need it."""
    monkeypatch.setattr(multiprocessing, "get_start_method", lambda allow_none=False: "spawn")
    feeds.append(feed(Rows(lambda index: None), Feeding(workers=1)))
    with raises("feed.cannot-send-data-set", method="spawn"):
        drain(feeds[0])
