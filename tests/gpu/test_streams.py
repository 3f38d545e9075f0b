"""Time and waiting on a GPU: events on the stream that computes."""

import time

import pytest
import torch
from tests.gpu.running import DEVICE

from trimaran.runtime import streams
from trimaran.runtime.streams import CudaStreams, fetch

pytestmark = pytest.mark.cuda_only

NEAR_NS = 1_000_000


def _work(times: int = 40) -> None:
    """Some 100 ms of an H200, several seconds of a small GPU, issued in well under a millisecond."""
    square = torch.ones(4096, 4096, device=DEVICE)
    for _ in range(times):
        square @ square


def test_stamps_are_those_of_the_device_not_of_the_host() -> None:
    """The host has issued everything long before the device has done it."""
    clock = CudaStreams(DEVICE)
    _work(2)
    clock.synchronize()
    before_ns = time.perf_counter_ns()
    start = clock.stamp()
    _work()
    end = clock.stamp()
    issued_ns = time.perf_counter_ns()
    clock.synchronize()
    done_ns = time.perf_counter_ns()
    seconds = (clock.nanoseconds(end) - clock.nanoseconds(start)) * 1e-9
    assert (issued_ns - before_ns) * 1e-9 < seconds < (done_ns - before_ns) * 1e-9 + 1e-3


def test_stamps_are_on_the_clock_of_the_host() -> None:
    clock = CudaStreams(DEVICE)
    clock.synchronize()
    before_ns = time.perf_counter_ns()
    stamp = clock.stamp()
    clock.synchronize()
    assert before_ns - NEAR_NS < clock.nanoseconds(stamp) < time.perf_counter_ns() + NEAR_NS


def test_moments_before_the_one_that_times_are_counted_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """The origin moves along with what is read; a moment that lies before it is read as well."""
    monkeypatch.setattr(streams, "_FARTHEST_MS", 0.0)
    clock = CudaStreams(DEVICE)
    early = clock.stamp()
    _work(2)
    late = clock.stamp()
    clock.synchronize()
    late_ns = clock.nanoseconds(late)
    early_ns = clock.nanoseconds(early)
    assert early_ns < late_ns
    assert clock.nanoseconds(late) - early_ns == pytest.approx(late_ns - early_ns, abs=2_000)


def test_what_is_fetched_waits_for_nothing_issued_later() -> None:
    _work(1)
    torch.cuda.synchronize()
    values = fetch(torch.tensor([1.5, 2.5], device=DEVICE))
    _work()
    assert values() == [1.5, 2.5]
    assert not torch.cuda.current_stream().query(), "the device should still be busy with what came later"
    torch.cuda.synchronize()
