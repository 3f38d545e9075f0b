"""Runs one operation of a recorded step: how long it takes, and what memory it uses only while it runs.

On a GPU the time is that between two events on its stream, and the memory is what its allocator had at most beyond what
was there before and after: the workspace of a library, which belongs to no tensor. What a library takes once and keeps
is not in it. On a CPU and on meta tensors nothing of the kind can be seen.

The allocator's peak statistics are set back at each operation.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from trimaran.graph.trace.calls import tensors_in
from trimaran.graph.trace.tape import Tape

Interval = tuple[torch.cuda.Event, torch.cuda.Event]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """An operation that has run.

    Attributes:
        out: what it gave
        duration_s: on the host's clock [s]; None: no clock knows, or the interval does
        interval: events before and after it, on a GPU
        scratch_bytes: memory that was there only while it ran [bytes]
    """

    out: Any
    duration_s: float | None = None
    interval: Interval | None = None
    scratch_bytes: int = 0


def run_timed(tape: Tape, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ran:
    """Run an operation; the tape learns the devices of its tensors.

    Args:
        tape: of the step
        func: the operation
        args: by place
        kwargs: by name
    """
    for tensor in tensors_in((args, kwargs)):
        tape.see(tensor.device)
    if kwargs.get("device") is not None:
        tape.see(_whole(torch.device(kwargs["device"])))
    if tape.device == "cuda":
        return _run_on_gpu(tape, func, args, kwargs)
    started = time.perf_counter()
    out = func(*args, **kwargs)
    duration_s = time.perf_counter() - started
    for tensor in tensors_in(out):
        tape.see(tensor.device)
    return Ran(out=out, duration_s=None if tape.device == "meta" else duration_s)


def _whole(device: torch.device) -> torch.device:
    """The device with its number, as tensors have it."""
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device


def _run_on_gpu(tape: Tape, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ran:
    before = torch.cuda.memory_allocated(tape.place)
    torch.cuda.reset_peak_memory_stats(tape.place)
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    out = func(*args, **kwargs)
    end.record()
    most, after = torch.cuda.max_memory_allocated(tape.place), torch.cuda.memory_allocated(tape.place)
    return Ran(out=out, interval=(start, end), scratch_bytes=max(0, most - max(before, after)))
