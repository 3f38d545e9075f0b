"""The best rates of a device: matrix products, memory traffic, and the host's time for an operator.

All ranks measure the same thing at the same moment, so that what they share (memory, caches, the power of the chip) is
shared. A sample is as many calls as take a few milliseconds, by the clock of the device. Samples are taken in rounds,
spread over the measuring time; the median is a cost, and becomes a rate:

    product    2 n^3 FLOP for matrices of n rows and columns, float32
    copy       each byte read once and written once
    axpy       y += a * x: both vectors read, one written
    operator   the sum of two tensors of one element: all of it is Python, dispatch and allocation

None of these figures enters a price, because prices are measured operation by operation. They describe the machine.
Runs inside the ranks; imports torch.

The clock of compute. On a CPU it counts only while the rank's thread computes, so that costs of a job do not contain
other programs: predictions are for a machine that is otherwise idle. Where there are more ranks than cores, waiting for
a core is part of the cost, and the clock is the wall clock. On a GPU it is the device's clock.

Runs inside the ranks; imports torch.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from trimaran.launch.world import World
from trimaran.machine.detect import detect_processor
from trimaran.measure.calibration.results import DeviceFigures, Estimate, ProductRate, duration, reciprocal
from trimaran.measure.findings import Rounds, pool, summarize
from trimaran.measure.rounds import meet
from trimaran.runtime.streams import CudaStreams, HostStreams, Stamp, Streams


class ThreadStreams(HostStreams):
    """A CPU whose clock stops while another program has its core."""

    def stamp(self) -> int:
        """How long this thread has computed [ns]."""
        return time.thread_time_ns()

    def watch(self, work: Any, channel: str, done: Callable[[Stamp], None]) -> None:
        """Nothing: this clock stops while communication runs, so it cannot tell when that ends."""


def open_clock(world: World) -> Streams:
    """The clock by which this rank's compute is measured.

    Args:
        world: says which device it is, and how many ranks share the machine
    """
    if world.device != "cpu":
        return CudaStreams(world.device)
    return ThreadStreams() if world.local_size <= detect_processor().cores else HostStreams()


WIDTHS = (128, 512, 1024)
"""Rows and columns of the matrices that are multiplied."""

VECTOR_BYTES = 64 * 2**20
"""Size of the vectors that are copied and added, beyond what caches hold [bytes]."""

ROUNDS = 7
_SAMPLES = 3
_SAMPLE_S = 0.004
_MOST_CALLS = 10_000

Call = Callable[[], object]


class TimedWork(NamedTuple):
    """The work that a duration is of.

    Attributes:
        what: "product", "copy", "axpy" or "operator"
        size: rows of a matrix; else 0
    """

    what: str
    size: int = 0


def measure_device(world: World) -> dict[TimedWork, Rounds]:
    """Durations of one call of each kind on this rank [s].

    Args:
        world: this rank; all ranks call this
    """
    calls = dict(_calls(world.device))
    repeats = {timed: _repeats(call, world) for timed, call in calls.items()}
    rounds: dict[TimedWork, Rounds] = {}
    for _ in range(ROUNDS):
        for timed, call in calls.items():
            meet(world)
            samples = [_sample(timed, call, repeats[timed], world) for _ in range(_SAMPLES)]
            rounds.setdefault(timed, []).append(samples)
    return rounds


def device_figures(ranks: Sequence[Mapping[TimedWork, Rounds]], *, name: str, kind: str, how: str) -> DeviceFigures:
    """The figures of a device.

    Args:
        ranks: what each rank found, all on devices alike
        name: of the device
        kind: "cpu" or "cuda"
        how: a word on how they were taken

    Example:
        >>> call = {TimedWork("product", 10): [[1.0]], TimedWork("copy"): [[2.0]], TimedWork("axpy"): [[3.0]]}
        >>> call[TimedWork("operator")] = [[1e-6]]
        >>> figures = device_figures([call], name="a core", kind="cpu", how="by hand")
        >>> figures.products[0].flops_per_s.value, figures.copy_bytes_per_s.value / VECTOR_BYTES
        (2000.0, 1.0)
    """
    costs = {timed: summarize(rounds, how=how) for timed, rounds in pool(ranks).items()}

    def traffic(what: str, times: int) -> Estimate:
        return reciprocal(costs[TimedWork(what)], times * VECTOR_BYTES)

    return DeviceFigures(
        name=name,
        kind=kind,
        count=len(ranks),
        products=tuple(
            ProductRate(width=timed.size, flops_per_s=reciprocal(cost, 2.0 * timed.size**3))
            for timed, cost in costs.items()
            if timed.what == "product"
        ),
        copy_bytes_per_s=traffic("copy", 2),
        axpy_bytes_per_s=traffic("axpy", 3),
        operator_s=duration(costs[TimedWork("operator")]),
    )


def _calls(device: str) -> Iterator[tuple[TimedWork, Call]]:
    for width in WIDTHS:
        yield TimedWork("product", width), _product(width, device)
    x, y = (torch.ones(VECTOR_BYTES // 4, device=device) for _ in range(2))
    yield TimedWork("copy"), lambda: y.copy_(x)
    # A small factor: sums of many calls stay finite.
    yield TimedWork("axpy"), lambda: y.add_(x, alpha=1e-6)
    one = torch.ones(1, device=device)
    yield TimedWork("operator"), lambda: one + one


def _product(width: int, device: str) -> Call:
    a = torch.ones(width, width, device=device)
    out = torch.empty_like(a)
    return lambda: torch.mm(a, a, out=out)


def _repeats(call: Call, world: World) -> int:
    """Calls that take long enough to be timed."""
    clock = open_clock(world)
    for _ in range(3):
        call()
    clock.synchronize()
    start_s = time.perf_counter()
    call()
    clock.synchronize()
    seconds = time.perf_counter() - start_s
    return max(1, min(_MOST_CALLS, int(_SAMPLE_S / max(seconds, 1e-9))))


def _sample(timed: TimedWork, call: Call, repeats: int, world: World) -> float:
    """Seconds of one call."""
    clock = open_clock(world)
    if timed.what == "operator" and not clock.host_blocks:
        return _host_sample(call, repeats)
    started = clock.stamp()
    for _ in range(repeats):
        call()
    ended = clock.stamp()
    clock.synchronize()
    return (clock.nanoseconds(ended) - clock.nanoseconds(started)) * 1e-9 / repeats


def _host_sample(call: Call, repeats: int) -> float:
    """Seconds that the host takes to issue one call; the device may still be busy with earlier ones."""
    start_s = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start_s) / repeats
