"""The device of a loop: its copy engine, the host memory for what is offloaded, and how fast copies are.

Rates are measured once in a process, with copies of 16 MiB while nothing else runs.
"""

import contextlib
import functools
import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from trimaran.costs.memory_costs import MemoryCosts, measured_costs
from trimaran.graph.trace.types import StepTrace
from trimaran.runtime.memory.arena import HostArena
from trimaran.runtime.memory.cuda import CudaEngine, page_lock
from trimaran.runtime.memory.engine import Copy, CopyEngine
from trimaran.runtime.memory.host import HostEngine

_LARGE_BYTES = 16 << 20
_SMALL_BYTES = 4096
_ROUNDS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRates:
    """How fast copies between device and host are.

    Attributes:
        to_host_bytes_per_s: rate to the host [bytes/s]
        to_device_bytes_per_s: rate back [bytes/s]
        latency_s: what a copy takes beside its bytes [s]
    """

    to_host_bytes_per_s: float
    to_device_bytes_per_s: float
    latency_s: float


def measure_copies(engine: CopyEngine, arena: HostArena) -> CopyRates:
    """Time copies both ways, large ones and small ones; medians.

    Args:
        engine: copies
        arena: host memory, as plans will use it
    """
    times_s: dict[tuple[str, int], float] = {}
    for nbytes in (_LARGE_BYTES, _SMALL_BYTES):
        storage, slot = engine.allocate(nbytes), arena.allocate(nbytes)
        try:
            for way, start in (
                ("to host", functools.partial(engine.save, storage, slot)),
                ("to device", functools.partial(engine.load, slot, storage)),
            ):
                times_s[way, nbytes] = statistics.median(_time(start) for _ in range(_ROUNDS))
        finally:
            slot.free()
    latency_s = min(times_s["to host", _SMALL_BYTES], times_s["to device", _SMALL_BYTES])
    rates = [_LARGE_BYTES / max(times_s[way, _LARGE_BYTES] - latency_s, 1e-9) for way in ("to host", "to device")]
    return CopyRates(to_host_bytes_per_s=rates[0], to_device_bytes_per_s=rates[1], latency_s=latency_s)


def _time(start: "functools.partial[Copy]") -> float:
    begin_s = time.perf_counter()
    copy = start()
    copy.wait()
    if not copy.done():
        torch.cuda.current_stream().synchronize()
    return time.perf_counter() - begin_s


class Device:
    """The device of a loop.

    Args:
        kind: "cpu" or "cuda"
        host_bytes: most that may lie on the host [bytes]; None: what it has to spare
    """

    def __init__(self, kind: str, host_bytes: int | None) -> None:
        self.kind = kind
        self.host_bytes = spare_host_bytes() if host_bytes is None else host_bytes
        self.engine: CopyEngine = CudaEngine() if kind == "cuda" else HostEngine()
        self._lock = page_lock() if kind == "cuda" else None
        self._arena = HostArena(0)

    def costs(self, trace: StepTrace) -> MemoryCosts:
        """Measured durations of a recorded step, and measured rates of copies."""
        if self.kind not in _known:
            with HostArena(2 * _LARGE_BYTES, lock=self._lock) as arena:
                _known[self.kind] = measure_copies(self.engine, arena)
        rates = _known[self.kind]
        return measured_costs(
            trace,
            to_host_bytes_per_s=rates.to_host_bytes_per_s,
            to_device_bytes_per_s=rates.to_device_bytes_per_s,
            copy_latency_s=rates.latency_s,
            source="measured on this machine",
        )

    def arena(self, nbytes: int) -> HostArena:
        """Host memory with room for so much.

        A smaller one that is there is left to those who still have slots in it; it goes with them.
        """
        room = min(nbytes + nbytes // 16 + _SMALL_BYTES, self.host_bytes)
        if self._arena.use().cap_bytes < room:
            self._arena = HostArena(room, lock=self._lock)
        return self._arena

    def close(self) -> None:
        """End the copies."""
        self.engine.close()


def spare_host_bytes() -> int:
    """What this process may take of the host's memory: its part of four fifths of what is available [bytes]."""
    available = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with contextlib.suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        available = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    ranks = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(available * 0.8) // (int(ranks) if ranks.isdecimal() and int(ranks) else 1)


_known: dict[str, CopyRates] = {}
"""Rates by kind of device, once they were measured."""
