"""Which samples of a global batch go to which replica and microbatch, and batches cut accordingly.

A global batch of N samples is cut into contiguous shares, one a replica, as even as possible, and each share into
contiguous microbatches, as even as possible. So any plan trains on the same global batches in the same order.

Every replica uses the same number of microbatches, `min(microbatches, N // replicas)`, also in a small last batch:
collectives are issued in the same order everywhere, and the microbatches that are empty are empty on all ranks.
"""

from collections.abc import Sequence
from typing import Any

from trimaran.errors import InputError
from trimaran.graph.batches import count_samples, is_sliceable, slice_batch


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


def cut_batch(batch: Any, sizes: Sequence[int], *, known: bool = False) -> list[Any]:
    """Cut a rank's share of a global batch into microbatches.

    Args:
        batch: the share
        sizes: samples of each microbatch
        known: it is known to have so many samples, whether they can be seen in it or not

    Returns:
        One batch a microbatch; None in the place of an empty one, where there is only one that is not.

    Raises:
        InputError: the batch has another number of samples than the sizes add up to, or that cannot be seen; or it
            holds something that cannot be cut
    """
    samples = sum(sizes)
    used = [number for number, size in enumerate(sizes) if size]
    sliceable = is_sliceable(batch, samples)
    if not sliceable and not known:
        _check_visible(batch, samples)
    if len(used) == 1:
        return [batch if number in used else None for number in range(len(sizes))]
    if not sliceable:
        raise InputError(
            f"this batch cannot be cut into {len(used)} microbatches: it holds something else than tensors whose first "
            "dim counts its samples. Let the feed make each microbatch by itself, with "
            "`for share in session.feed.shares(): session.step(share)`; or take a plan with one microbatch",
            code="share.cannot-split",
            microbatches=len(used),
        )
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return [slice_batch(batch, end - size, end) for end, size in zip(ends, sizes, strict=True)]


def _check_visible(batch: Any, expected: int) -> None:
    """Refuse a batch of one's own that shows another number of samples, or none."""
    advice = "pass what session.batches() gave, or split your own batches evenly over the replicas"
    try:
        samples = count_samples(batch)
    except InputError as error:
        raise InputError(
            f"this rank's share of the global batch must have {expected} samples, and it cannot be seen how many the "
            f"batch has ({error.message}): {advice}",
            code="share.size-unknown",
            expected=expected,
        ) from error
    if samples != expected:
        raise InputError(
            f"this rank's share of the global batch must have {expected} samples, the batch has {samples}: {advice}",
            code="share.wrong-size",
            samples=samples,
            expected=expected,
        )
