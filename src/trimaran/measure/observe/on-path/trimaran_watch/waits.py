"""Reads of single values and collectives write into the ledger.

A read such as `.item()` waits, on a GPU, for everything that the host has issued. A collective blocks, with gloo, until
all ranks have come; work that was started asynchronously blocks where it is waited for.
"""

import os
import sys
import time
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from trimaran_watch import hooks
from trimaran_watch.hooks import timed
from trimaran_watch.ledger import (
    COLLECTIVE,
    COLLECTIVES,
    COPY,
    FORWARD,
    IN_FORWARD,
    LEDGER,
    LOAD,
    NBYTES,
    START,
    SYNC,
    SYNCS,
    UPDATE,
    Place,
)
from trimaran_watch.roots import give_up

_READS = ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__")
_COLLECTIVES = (
    "all_reduce",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "recv",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "send",
)
# Within these a read is not of the script's making.
_INSIDE = (SYNC, UPDATE, COLLECTIVE, LOAD, START)
# Lines in these say nothing about the script.
_OWN = (__file__, hooks.__file__)
_TORCH = os.path.dirname(torch.__file__) + os.sep  # noqa: PTH120
_clock = time.perf_counter_ns


def install_waits() -> None:
    """Wrap reads of values and collectives."""
    for name in _READS:
        setattr(torch.Tensor, name, _read(getattr(torch.Tensor, name)))
    if dist.is_available():
        from torch.distributed import distributed_c10d

        for name in _COLLECTIVES:
            wrapped = _collective(getattr(distributed_c10d, name))
            setattr(distributed_c10d, name, wrapped)
            setattr(dist, name, wrapped)
        setattr(dist.Work, "wait", _collective(dist.Work.wait))  # noqa: B010  mypy refuses the plain form


def install_moves() -> None:
    """Wrap moves to the device, once a script has been seen to use CUDA: to ask earlier would initialise it."""
    for name in ("to", "cuda"):
        setattr(torch.Tensor, name, timed(getattr(torch.Tensor, name), COPY, skips=lambda args: args[0].is_cuda))


def _read(original: Callable[..., Any]) -> Callable[..., Any]:
    return timed(
        original,
        SYNC,
        counted=SYNCS,
        skips=lambda _: LEDGER.stack[-1] in _INSIDE,
        begins=lambda *_, **__: _clock(),
        ends=partial(_waited, SYNC),
    )


def _waited(kind: int, began: int) -> None:
    LEDGER.waited(_place(kind), _clock() - began)


def _collective(original: Callable[..., Any]) -> Callable[..., Any]:
    def begins(*args: Any, **_: Any) -> int:
        LEDGER.counts[NBYTES] += _all_nbytes(args)
        LEDGER.counts[IN_FORWARD] += FORWARD in LEDGER.stack
        return _clock()

    return timed(
        original,
        COLLECTIVE,
        counted=COLLECTIVES,
        skips=lambda _: COLLECTIVE in LEDGER.stack,
        begins=begins,
        ends=partial(_waited, COLLECTIVE),
    )


def _place(kind: int) -> Place:
    """The line outside of torch and of the watch that waits."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_back is not None:
        name = frame.f_code.co_filename
        if name not in _OWN and not name.startswith(_TORCH):
            break
        frame = frame.f_back
    if frame is None:
        return kind, "", 0, ""
    return kind, frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name


def _all_nbytes(args: tuple[Any, ...]) -> int:
    try:
        return sum(_nbytes(value) for value in args)
    except Exception as error:  # noqa: BLE001  the script must go on whatever it sends
        give_up(error)
        return 0


def _nbytes(value: object) -> int:
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()
    if isinstance(value, list | tuple):
        return sum(_nbytes(item) for item in value)
    return 0
