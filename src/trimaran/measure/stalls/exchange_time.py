"""What adding up over all ranks takes while nothing else goes on.

Runs inside the ranks; imports torch.
"""

import time
from dataclasses import dataclass

import torch
import torch.distributed as dist

from trimaran.runtime.world import World

_SMALL_BYTES = 1024
_MEDIUM_BYTES = 64 << 10
_LARGE_BYTES = 4 << 20
_LARGE_S = 0.2
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeTime:
    """What adding up over all ranks takes here while nothing else goes on: a time, and a time a byte.

    Attributes:
        latency_s: of a small one [s]
        bytes_per_s: of the tensor, beyond that [bytes/s]
    """

    latency_s: float
    bytes_per_s: float

    def seconds(self, nbytes: float) -> float:
        """Time of an exchange [s].

        Example:
            >>> ExchangeTime(latency_s=0.5, bytes_per_s=100.0).seconds(50)
            1.0
        """
        return self.latency_s + nbytes / self.bytes_per_s


def agree_on_longest(world: World, seconds: float) -> float:
    """The longest of a time that each rank gives [s]; every rank takes part."""
    longest = torch.tensor([seconds], dtype=torch.float64, device=world.device)
    if world.size > 1:
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
    return float(longest)


def measure_exchange(world: World, nbytes: int, dtype: torch.dtype = torch.float32) -> ExchangeTime:
    """What adding up over all ranks takes while they do nothing else; every rank takes part.

    Args:
        world: this rank
        nbytes: a size that is of interest [bytes]
        dtype: of what is added up
    """
    small_s = _time_exchange(world, _SMALL_BYTES, dtype)
    medium_s = agree_on_longest(world, _time_exchange(world, _MEDIUM_BYTES, dtype))
    # On a slow link no more than takes a moment.
    large = max(_MEDIUM_BYTES, min(nbytes, _LARGE_BYTES, int(_MEDIUM_BYTES * _LARGE_S / medium_s)) // 4 * 4)
    large_s = _time_exchange(world, large, dtype)
    return ExchangeTime(latency_s=small_s, bytes_per_s=(large - _SMALL_BYTES) / max(large_s - small_s, 1e-9))


def _time_exchange(world: World, nbytes: int, dtype: torch.dtype) -> float:
    tensor = torch.zeros(nbytes // dtype.itemsize, dtype=dtype, device=world.device)
    durations = []
    for _ in range(_TRIES + 1):
        started = time.perf_counter()
        dist.all_reduce(tensor)
        if world.device != "cpu":
            torch.cuda.synchronize()
        durations.append(time.perf_counter() - started)
    # The first one waits for whoever comes last; what other programs do only lengthens the others.
    return min(durations[1:])
