"""Durations and memory of steps: events on a GPU, the host's clock on a CPU."""

import statistics
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

LEAST_STEPS = 5
MOST_STEPS = 30
WARM_UP = 3
ENOUGH_S = 3.0
SLOW_S = 3.0
"""Steps that take longer are run fewer times [s]."""


def time_steps(step: Callable[[], object], *, device: str, quick: bool) -> dict[str, Any]:
    """Median duration of a step.

    Args:
        step: runs one, and may return before the device has done it
        device: "cuda" or "cpu"
        quick: two steps, to try the code

    Returns:
        `step_s`, its quartiles and the number of steps.
    """
    durations: list[float] = []
    first_s = _block(step, 1, device)[0]
    few = quick or first_s > SLOW_S
    if not few:
        _block(step, WARM_UP - 1, device)
    least = 2 if few else LEAST_STEPS
    start_s = time.monotonic()
    while len(durations) < least or (not few and len(durations) < MOST_STEPS and time.monotonic() - start_s < ENOUGH_S):
        durations += _block(step, least, device)
    low, middle, high = statistics.quantiles(durations, n=4)
    return {"step_s": statistics.median(durations), "quartiles_s": [low, middle, high], "steps": len(durations)}


def _block(step: Callable[[], object], count: int, device: str) -> list[float]:
    """Durations of steps in a row; on a GPU the host runs ahead of them [s]."""
    if device == "cpu":
        return [_by_host(step) for _ in range(count)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    torch.cuda.synchronize()
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize()
    return [one.elapsed_time(other) / 1e3 for one, other in pairwise(events)]


def _by_host(step: Callable[[], object]) -> float:
    start_s = time.perf_counter()
    step()
    return time.perf_counter() - start_s
