"""What it costs a script to take a batch from a loader's worker that has it ready."""

import time
from collections.abc import Iterator
from statistics import median

_BATCHES = 40
_APART_S = 3e-3


def measure_handover(nbytes: int) -> float | None:
    """Time that a ready batch takes to arrive from a worker [s]; None where no worker can be had.

    Args:
        nbytes: of the batch [bytes]
    """
    try:
        return _measured(nbytes)
    except (OSError, RuntimeError, ValueError):
        # No shared memory, no fork: the report is worth more than this figure.
        return None


def _measured(nbytes: int) -> float:
    import torch
    from torch.utils.data import DataLoader, IterableDataset

    class Ready(IterableDataset[torch.Tensor]):
        def __iter__(self) -> Iterator[torch.Tensor]:
            return (torch.ones(max(1, nbytes // 4)) for _ in range(_BATCHES))

    durations = []
    iterator = iter(DataLoader(Ready(), batch_size=None, num_workers=1, multiprocessing_context="fork"))
    for _ in range(_BATCHES):
        # Busy meanwhile, as a script is, so that the worker is ahead.
        until = time.perf_counter() + _APART_S
        while time.perf_counter() < until:
            pass
        start = time.perf_counter()
        float(next(iterator).sum())
        durations.append(time.perf_counter() - start)
    whole = median(durations[5:])
    batch = torch.ones(max(1, nbytes // 4))
    start = time.perf_counter()
    float(batch.sum())
    return max(0.0, whole - (time.perf_counter() - start))
