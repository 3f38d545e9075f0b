"""How fast the copy lanes of this device move bytes to the host and back.

A large copy gives the rate, a small one what a copy takes beside its bytes. Copies run through the engine that memory
plans use, one at a time, while the operations' thread waits; both directions at once may share a link, and are not
looked at.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from trimaran.runtime.memory.arena import HostArena
from trimaran.runtime.memory.cuda import CudaEngine
from trimaran.runtime.memory.engine import Copy, CopyEngine
from trimaran.runtime.memory.host import HostEngine
from trimaran.runtime.memory.locking import page_lock

_LARGE_BYTES = 2**24
_SMALL_BYTES = 2**12
_TIMES = 9
MEASURED_BYTES = 2 * _LARGE_BYTES
"""Room on the host that measuring takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRates:
    """What copies cost.

    Attributes:
        to_host_bytes_per_s: of a large copy to the host [bytes/s]
        to_device_bytes_per_s: of a large copy back [bytes/s]
        latency_s: of a small copy [s]
    """

    to_host_bytes_per_s: float
    to_device_bytes_per_s: float
    latency_s: float


def copy_rates(device: str) -> CopyRates:
    """Measure the copies of a device that nobody uses yet.

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
