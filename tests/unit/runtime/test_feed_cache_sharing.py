"""A cache of samples that several processes have: marks, memory, and what is left of it."""

import fcntl
import gc
import multiprocessing
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from tests import builders
from tests.raising import raises
from tests.unit.runtime.test_feed_cache import Counted, row

from trimaran.base.job import Job
from trimaran.base.units import format_bytes
from trimaran.launch.world import World
from trimaran.program.strategy import Feeding
from trimaran.runtime.data import cache as sharing
from trimaran.runtime.data.cache import SampleCache, cache_bytes, make_memory, offer_cache, packed, slot_of
from trimaran.runtime.data.pipeline import open_feed


def holding(path: str, number: int, ready: Any, done: Any) -> None:
    with Path(path).open("r+b", buffering=0) as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 1, number)
        ready.set()
        done.wait()


@pytest.mark.parametrize("what", ["get", "put"])
def test_a_mark_is_seen_after_what_was_written_before_it(what: str) -> None:
    """Whoever looks at it, or sets it, waits for its lock; those of other samples do not."""
    slot_bytes, context = slot_of([packed(row(0))]), multiprocessing.get_context("fork")
    descriptor, path = make_memory(cache_bytes(slot_bytes, 10))
    cache = SampleCache(slot_bytes, 10, path)
    ready, done = context.Event(), context.Event()
    other = context.Process(target=holding, args=(path, 3, ready, done))
    other.start()
    assert ready.wait(20.0)
    os.close(descriptor)
    call = (lambda: cache.get(3, copy=True)) if what == "get" else (lambda: cache.put(3, row(3)))
    thread = threading.Thread(target=call)
    thread.start()
    thread.join(0.2)
    assert thread.is_alive()
    cache.put(4, row(4))
    assert cache.get(4, copy=True) is not None
    done.set()
    thread.join(20.0)
    assert not thread.is_alive()
    other.join()


def test_a_control_group_limits_what_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four fifths of the free memory may be taken."""
    nbytes = cache_bytes(slot_of([packed(row(0))]), 10)
    free = nbytes * 5 // 4
    monkeypatch.setattr(sharing, "free_memory_bytes", lambda: free)
    offer, descriptor = offer_cache(Counted(row), 10)
    os.close(descriptor)
    assert offer.path
    monkeypatch.setattr(sharing, "free_memory_bytes", lambda: free - 1)
    offer, descriptor = offer_cache(Counted(row), 10)
    assert (offer.path, descriptor) == ("", -1)
    assert f"take {format_bytes(nbytes)}, and {format_bytes(free - 1)} of memory are free" in offer.note


def test_a_feed_that_is_refused_leaves_no_memory_open() -> None:
    """Global batches of 2 leave one of 3 replicas without samples."""
    job = Job(
        model=lambda: torch.nn.Linear(1, 1),
        loss=torch.nn.functional.mse_loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        dataset=lambda: Counted(row),
        global_batch_size=2,
    )

    def opened() -> int:
        return sum(1 for _ in Path("/proc/self/fd").iterdir())

    before = opened()
    with raises("feed.batch-too-small", replicas=3):
        open_feed(
            job,
            builders.strategy(dp=3),
            Feeding(cached=True),
            World(),
            replica=0,
            reads=True,
        )
    gc.collect()
    assert opened() == before
