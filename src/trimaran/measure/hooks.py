"""What the hooks of a memory plan take of a rank's time: steps that take turns.

    plain     a step as it is
    keeping   the same under hooks that keep everything     − plain:   packs and unpacks
    moving    each large storage goes to the host and back  − keeping: bytes that were moved

What changes over seconds falls on all three alike, and the median of the differences counts. Clocks are those of
threads: waiting for a copy is the plan's to count. Runs inside a rank; imports torch.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from statistics import median

import torch

from trimaran.cluster.detect import detect_processor
from trimaran.costs.traced import HookCosts
from trimaran.graph.trace.calls import Recording
from trimaran.program.memory import KEEP_ALL
from trimaran.runtime.memory.arena import PAGE_BYTES, HostArena
from trimaran.runtime.memory.executor import MemoryExecutor
from trimaran.runtime.memory.host import HostEngine
from trimaran.runtime.memory.schedule import staying

SMALLEST_BYTES = 256 * 1024
"""Smaller storages stay, as under plans."""

BOX_S = 2.0
"""Time for all turns together [s]; a few are taken in any case."""

_WARM_UP_TURNS = 2
_LEAST_TURNS, _MOST_TURNS = 3, 20

_Spent = tuple[float, float]
"""What one step takes of the thread that computes, and of the other threads of its process [s]."""


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
            turns, moved_bytes = _take_turns(step, keeping, moving)
    finally:
        engine.close()
    return HookCosts(
        tick_s=_share([kept[0] - plain[0] for plain, kept, _ in turns], len(recording.trace.packs)),
        moving_s_per_byte=_share([moved[0] - kept[0] for _, kept, moved in turns], moved_bytes),
        copying_s_per_byte=_share([moved[1] - kept[1] for _, kept, moved in turns], moved_bytes),
        cores=detect_processor().cores,
    )


def _share(differences_s: Sequence[float], parts: int) -> float:
    """What falls on one of so many parts; nothing where there is none."""
    return max(0.0, median(differences_s)) / parts if parts else 0.0


def _take_turns(
    step: Callable[[], None], keeping: MemoryExecutor, moving: MemoryExecutor
) -> tuple[list[tuple[_Spent, _Spent, _Spent]], int]:
    """What each step of each turn took, and the bytes that one step moves."""
    turns: list[tuple[_Spent, _Spent, _Spent]] = []
    moved_bytes = 0
    started_s = time.perf_counter()
    for number in range(_WARM_UP_TURNS + _MOST_TURNS):
        plain = _spent(step, nullcontext())
        kept = _spent(step, _flying(keeping))
        moved = _spent(step, _flying(moving))
        keeping.finish_step()
        moved_bytes = moving.finish_step().to_host_bytes
        if number >= _WARM_UP_TURNS:
            turns.append((plain, kept, moved))
        if len(turns) >= _LEAST_TURNS and time.perf_counter() - started_s > BOX_S:
            break
    return turns, moved_bytes


def _flying(executor: MemoryExecutor) -> AbstractContextManager[object]:
    executor.flight()
    return executor.hooks()


def _spent(step: Callable[[], None], hooks: AbstractContextManager[object]) -> _Spent:
    with hooks:
        process_s, thread_s = time.process_time(), time.thread_time()
        step()
        thread_s = time.thread_time() - thread_s
        return thread_s, max(0.0, time.process_time() - process_s - thread_s)
