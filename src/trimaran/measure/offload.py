"""How fast the copy lanes of this device move bytes to the host and back.

A large copy gives the rate, a small one the time of a copy without its bytes. Copies run through the engine that memory
plans use, one at a time, while the operations' thread waits; both directions at once may share a link, and are not
looked at.

The time that the hooks of a memory plan take of a rank: steps of three kinds in turn.

    plain     a step as it is
    keeping   the same under hooks that move nothing        − plain:   packs and unpacks
    moving    each large storage goes to the host and back  − keeping: bytes that were moved

Changes over seconds affect all three alike, and the median of the differences counts. Clocks are those of
threads: waiting for a copy is the plan's to count. Runs inside a rank; imports torch.
"""

import functools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median

import numpy as np
import torch

from trimaran.graph.trace.calls import Recording
from trimaran.machine.detect import detect_processor
from trimaran.memory_hooks.arena import PAGE_BYTES, HostArena, page_lock
from trimaran.memory_hooks.coding import CODECS, Coding
from trimaran.memory_hooks.copies import Copy, CopyEngine, CudaEngine, HostEngine
from trimaran.memory_hooks.executor import MemoryExecutor
from trimaran.memory_hooks.schedule import staying
from trimaran.pricing.offload_costs import HookCosts
from trimaran.program.memory import KEEP_ALL

_LARGE_BYTES = 2**24
_SMALL_BYTES = 2**12
_TIMES = 9
MEASURED_BYTES = 2 * _LARGE_BYTES
"""Room on the host that measuring takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRates:
    """Costs of copies.

    Attributes:
        to_host_bytes_per_s: of a large copy to the host [bytes/s]
        to_device_bytes_per_s: of a large copy back [bytes/s]
        latency_s: of a small copy [s]
    """

    to_host_bytes_per_s: float
    to_device_bytes_per_s: float
    latency_s: float


def copy_rates(device: str) -> CopyRates:
    """Measure the copies of a device that is not in use.

    Args:
        device: "cpu" or "cuda:<n>"

    Raises:
        ExecutionError: a copy failed
    """
    on_gpu = device.startswith("cuda")
    engine: CopyEngine = CudaEngine(device) if on_gpu else HostEngine()
    try:
        with HostArena(MEASURED_BYTES, lock=page_lock(device) if on_gpu else None) as arena:
            return measure_copies(engine, arena)
    finally:
        engine.close()


def measure_copies(engine: CopyEngine, arena: HostArena) -> CopyRates:
    """Measure the lanes of an engine.

    Args:
        engine: whose copies are timed; nothing else uses it meanwhile
        arena: on the host, page-locked as it will be; what does not fit is pageable and slower

    Raises:
        ExecutionError: a copy failed
    """
    times: dict[tuple[str, int], float] = {}
    for nbytes in (_SMALL_BYTES, _LARGE_BYTES):
        slot, storage = arena.allocate(nbytes), engine.allocate(nbytes)
        times["to host", nbytes] = _median_s(engine, partial(engine.save, storage, slot))
        times["to device", nbytes] = _median_s(engine, partial(engine.load, slot, storage))
        slot.free()
    latency_s = min(times["to host", _SMALL_BYTES], times["to device", _SMALL_BYTES])

    def rate(lane: str) -> float:
        return _LARGE_BYTES / max(times[lane, _LARGE_BYTES] - latency_s, 1e-9)

    return CopyRates(to_host_bytes_per_s=rate("to host"), to_device_bytes_per_s=rate("to device"), latency_s=latency_s)


def _median_s(engine: CopyEngine, start: Callable[[], Copy]) -> float:
    """Median time of a copy, the first one left out: it touches the pages [s]."""
    seconds = []
    for _ in range(_TIMES + 1):
        _settle(engine)
        begin = time.perf_counter()
        start().wait()
        _settle(engine)
        seconds.append(time.perf_counter() - begin)
    return median(seconds[1:])


def _settle(engine: CopyEngine) -> None:
    """On a GPU a wait is put in the stream of the device; here the host waits for it too."""
    if engine.device.type == "cuda":
        torch.cuda.synchronize(engine.device)


@functools.cache
def coding_rate(name: str) -> float:
    """Rate at which a codec codes, or undoes it, on this CPU [bytes/s].

    Measured once, on 4 MiB with half of all words zero.

    Args:
        name: of the codec
    """
    values = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
    values[::2] = 0.0
    device = values.view(np.uint8)
    host, coding = np.empty_like(device), Coding(CODECS[name]())
    times_s = []
    for _ in range(_TIMES):
        begin_s = time.perf_counter()
        coding.save(device, host)
        coding.load(host, device)
        times_s.append(time.perf_counter() - begin_s)
    return 2 * len(device) / median(times_s)


SMALLEST_BYTES = 256 * 1024
"""Smaller storages stay, as under plans."""

BOX_S = 2.0
"""Time for all rounds together [s]; a few are run in any case."""

_WARM_UP_ROUNDS = 2
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 20

_Spent = tuple[float, float]
"""Time of one step on the thread that computes, and on the other threads of its process [s]."""


def measure_hooks(step: Callable[[], None], recording: Recording) -> HookCosts:
    """Measure what hooks add to a step on a CPU.

    Args:
        step: runs one; each is like the one that was recorded
        recording: of that step

    Returns:
        The costs; 0 where a difference is lost in what steps differ anyway.
    """
    packed_bytes = sum(storage.nbytes for storage in recording.trace.storages if storage.packs)
    engine = HostEngine()
    try:
        with HostArena(packed_bytes + packed_bytes // 16 + PAGE_BYTES) as arena:
            keep = [torch.empty(0, device=one.device).set_(one) for one in staying(recording)]
            keeping = MemoryExecutor(recording, KEEP_ALL, engine, arena)
            moving = MemoryExecutor.without_plan(engine, arena, keep=keep, smallest_bytes=SMALLEST_BYTES)
            rounds, moved_bytes = _run_rounds(step, keeping, moving)
    finally:
        engine.close()
    return HookCosts(
        tick_s=_share([kept[0] - plain[0] for plain, kept, _ in rounds], len(recording.trace.packs)),
        moving_s_per_byte=_share([moved[0] - kept[0] for _, kept, moved in rounds], moved_bytes),
        copying_s_per_byte=_share([moved[1] - kept[1] for _, kept, moved in rounds], moved_bytes),
        cores=detect_processor().cores,
    )


def _share(differences_s: Sequence[float], parts: int) -> float:
    """The share of one part; 0 where there is none."""
    return max(0.0, median(differences_s)) / parts if parts else 0.0


def _run_rounds(
    step: Callable[[], None], keeping: MemoryExecutor, moving: MemoryExecutor
) -> tuple[list[tuple[_Spent, _Spent, _Spent]], int]:
    """Times of the three steps of each round, and the bytes that one step moves."""
    rounds: list[tuple[_Spent, _Spent, _Spent]] = []
    moved_bytes = 0
    started_s = time.perf_counter()
    for number in range(_WARM_UP_ROUNDS + _MOST_ROUNDS):
        plain = _spent(step, nullcontext())
        kept = _spent(step, _flying(keeping))
        moved = _spent(step, _flying(moving))
        keeping.finish_step()
        moved_bytes = moving.finish_step().to_host_bytes
        if number >= _WARM_UP_ROUNDS:
            rounds.append((plain, kept, moved))
        if len(rounds) >= _LEAST_ROUNDS and time.perf_counter() - started_s > BOX_S:
            break
    return rounds, moved_bytes


def _flying(executor: MemoryExecutor) -> AbstractContextManager[object]:
    executor.begin_forward()
    return executor.hooks()


def _spent(step: Callable[[], None], hooks: AbstractContextManager[object]) -> _Spent:
    with hooks:
        process_s, thread_s = time.process_time(), time.thread_time()
        step()
        thread_s = time.thread_time() - thread_s
        return thread_s, max(0.0, time.process_time() - process_s - thread_s)
