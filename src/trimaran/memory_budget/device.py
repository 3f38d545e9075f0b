"""The device of a loop: its copy engine, the host memory for what is offloaded, and how fast copies are.

Rates are measured once in a process, while nothing else runs.
"""

from dataclasses import replace

import torch

from trimaran.base.errors import InputError
from trimaran.graph.trace.types import StepTrace
from trimaran.machine.detect import spare_host_bytes
from trimaran.measure.offload import MEASURED_BYTES, CopyRates, coding_rate, measure_copies
from trimaran.memory.blocks import AllocatorRoom
from trimaran.memory_hooks.arena import PAGE_BYTES, HostArena, page_lock
from trimaran.memory_hooks.coding import CodecTraffic
from trimaran.memory_hooks.copies import CopyEngine, CudaEngine, HostEngine
from trimaran.memory_hooks.recompute_check import CHUNK_BYTES
from trimaran.pricing.copy_codecs import copy_codec
from trimaran.pricing.offload_costs import MemoryCosts, measured_costs
from trimaran.program.memory import CodecChoice, check_codec_runs
from trimaran.simulator.allocator import Settings


class LoopDevice:
    """The device of a loop.

    Args:
        kind: "cpu" or "cuda"
        host_bytes: most that may lie on the host [bytes]; None: what it has to spare
        codec: may code what is offloaded; None: bytes go as they are

    Raises:
        InputError: a codec on a GPU, whose copy engine does not code
    """

    def __init__(self, kind: str, host_bytes: int | None, codec: CodecChoice | None = None) -> None:
        check_codec_runs(codec, on_gpu=kind == "cuda")
        self.kind = kind
        self.codec = codec
        self.host_bytes = spare_host_bytes() if host_bytes is None else host_bytes
        self.engine: CopyEngine = CudaEngine() if kind == "cuda" else HostEngine()
        self._lock = page_lock(self.engine.device) if kind == "cuda" else None
        self._arena = HostArena(0)

    def costs(self, trace: StepTrace) -> MemoryCosts:
        """Measured durations of a recorded step, and measured rates of copies."""
        if self.kind not in _known:
            with HostArena(MEASURED_BYTES, lock=self._lock) as arena:
                _known[self.kind] = measure_copies(self.engine, arena)
        rates = _known[self.kind]
        costs = measured_costs(
            trace,
            to_host_bytes_per_s=rates.to_host_bytes_per_s,
            to_device_bytes_per_s=rates.to_device_bytes_per_s,
            copy_latency_s=rates.latency_s,
            source="measured on this machine",
            host_bytes=max(0, self.host_bytes),
        )
        if self.codec is None:
            return costs
        rate = coding_rate(self.codec.name)
        return replace(costs, codec=copy_codec(self.codec, trace, coding_bytes_per_s=rate))

    def room(self, limit_bytes: int | None, *, outside_bytes: int) -> AllocatorRoom | None:
        """What torch's allocator has on a GPU; None on a CPU, and where it is another one or has unknown settings.

        Args:
            limit_bytes: that it will be limited to; None: to what it is now [bytes]
            outside_bytes: held by what is no part of a step [bytes]
        """
        if self.kind != "cuda" or torch.cuda.get_allocator_backend() != "native":
            return None
        try:
            settings = Settings.parse(Settings.text_of_environment())
        except InputError:  # torch has taken them, so that they are of a newer one
            return None
        free_bytes, total_bytes = torch.cuda.mem_get_info(self.engine.device)
        share = torch.cuda.get_per_process_memory_fraction(self.engine.device)
        most = min(int(share * total_bytes), free_bytes + torch.cuda.memory_reserved(self.engine.device))
        return AllocatorRoom(
            nbytes=most if limit_bytes is None else min(most, limit_bytes),
            settings=replace(settings, memory_share=1.0),  # it is in the room
            outside_bytes=outside_bytes + 4 * CHUNK_BYTES,  # of recipes that are compared with the real bytes
        )

    @property
    def traffic(self) -> CodecTraffic | None:
        """What was coded so far; None where nothing may be."""
        if self.codec is None or not isinstance(self.engine, HostEngine):
            return None
        return self.engine.traffic(self.codec.name)

    def arena(self, nbytes: int) -> HostArena:
        """Host memory with room for so much.

        A smaller one that is there is left to those who still have slots in it; it goes with them.
        """
        room = min(nbytes + nbytes // 16 + PAGE_BYTES, self.host_bytes)
        if self._arena.use().cap_bytes < room:
            self._arena = HostArena(room, lock=self._lock)
        return self._arena

    def own_arena(self, nbytes: int) -> HostArena:
        """Host memory for what stays there, apart from what plans use."""
        return HostArena(nbytes, lock=self._lock)

    def close(self) -> None:
        """End the copies."""
        self.engine.close()


_known: dict[str, CopyRates] = {}
"""Rates by kind of device, once they were measured."""
