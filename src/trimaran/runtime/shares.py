"""Which samples of a global batch go to which replica and microbatch, and batches cut and joined accordingly.

A global batch of N samples is cut into contiguous shares, one a replica, as even as possible, and each share into
contiguous microbatches, as even as possible. So any plan trains on the same global batches in the same order.

Every replica uses the same number of microbatches, `min(microbatches, N // replicas)`, also in a small last batch:
collectives are issued in the same order everywhere, and the microbatches that are empty are empty on all ranks.
"""

from collections.abc import Sequence
from typing import Any

import torch

from trimaran.errors import InputError
from trimaran.graph.batches import count_samples, name_tensors, rebuild_batch, slice_batch


def split_evenly(count: int, parts: int) -> tuple[int, ...]:
    """Sizes of parts that differ by at most one, the larger ones first.

    Example:
        >>> split_evenly(7, 3)
        (3, 2, 2)
    """
    size, left = divmod(count, parts)
    return tuple(size + (part < left) for part in range(parts))


def microbatch_sizes(samples: int, *, replicas: int, microbatches: int) -> tuple[tuple[int, ...], ...]:
    """Samples of each microbatch of each replica.

    Args:
        samples: of the global batch
        replicas: data-parallel replicas
        microbatches: of each replica; the last ones are empty where there are not enough samples

    Returns:
        For each replica, one size a microbatch.

    Example:
        >>> microbatch_sizes(10, replicas=2, microbatches=4)
        ((2, 1, 1, 1), (2, 1, 1, 1))
        >>> microbatch_sizes(5, replicas=2, microbatches=4)
        ((2, 1, 0, 0), (1, 1, 0, 0))
    """
    used = max(1, min(microbatches, samples // replicas))
    empty = (0,) * (microbatches - used)
    return tuple(split_evenly(share, used) + empty for share in split_evenly(samples, replicas))


def cut_batch(batch: Any, sizes: Sequence[int]) -> list[Any]:
    """Cut a rank's share of a global batch into microbatches.

    Args:
        batch: the share
        sizes: samples of each microbatch

    Returns:
        One batch a microbatch.

    Raises:
        InputError: the batch has another number of samples than the sizes add up to
    """
    used = [number for number, size in enumerate(sizes) if size]
    samples = _visible_samples(batch, sizes, alone=len(used) == 1)
    if samples != sum(sizes):
        raise InputError(
            f"this rank's share of the global batch must have {sum(sizes)} samples, the batch has {samples}: pass what "
            "session.batches() gave, or split your own batches evenly over the replicas",
            samples=samples,
            expected=sum(sizes),
        )
    if len(used) == 1:
        return [batch if number in used else None for number in range(len(sizes))]
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [slice_batch(batch, end - size, end) for end, size in zip(ends, sizes, strict=True)]
