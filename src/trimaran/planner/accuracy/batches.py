"""Which batches and device counts are looked at, where the user does not say."""

from collections.abc import Sequence

MOST_MICROBATCHES = 4096
"""Gradients of no more microbatches are added up."""

MOST_BATCHES = 12
"""So many batches are looked at by default."""


def default_batches(base: int, known: tuple[int, int], measured: Sequence[int], *, devices: int = 1) -> tuple[int, ...]:
    """Powers of two times the job's batch for which a curve has data.

    Where they have no equal shares for all devices, the nearest batches that have are there too.

    Args:
        base: the job's batch
        known: smallest and largest batch of the curve
        measured: the batches of the curve, for a curve that no such product falls into
        devices: that there are

    Example:
        >>> default_batches(64, (100, 600), [100, 600]), default_batches(64, (70, 100), [70, 100])
        ((128, 256, 512), (70, 100))
        >>> default_batches(64, (64, 128), [64, 128], devices=6)
        (64, 66, 126, 128)
    """
    low, high = known
    batch = base
    while batch > low and batch % 2 == 0:
        batch //= 2
    found = []
    while batch <= high:
        if batch >= low:
            found.append(batch)
        batch *= 2
    # Of too many, the largest ones: what small batches need is nearly the same.
    chosen = (found or sorted(measured))[-MOST_BATCHES:]
    shared = [devices * max(1, round(batch / devices)) for batch in chosen if batch >= devices and batch % devices]
    return tuple(sorted({*chosen, *(batch for batch in shared if low <= batch <= high)}))


def device_counts(devices: int, *, most: int = 8) -> tuple[int, ...]:
    """Numbers of devices that are tried.

    Args:
        devices: that there are
        most: of so many, each number is tried; of more, powers of two and all of them

    Example:
        >>> device_counts(3), device_counts(12, most=4)
        ((1, 2, 3), (1, 2, 4, 8, 12))
    """
    if devices <= most:
        return tuple(range(1, devices + 1))
    counts = [1]
    while 2 * counts[-1] <= devices:
        counts.append(2 * counts[-1])
    return tuple(dict.fromkeys([*counts, devices]))


def accumulations(local: int, *, most: int = MOST_MICROBATCHES) -> tuple[int, ...]:
    """Numbers of equal microbatches of a replica's share that are tried: divisors, each at least twice the one before.

    Args:
        local: samples of a replica in one update
        most: no more of them

    Example:
        >>> accumulations(16), accumulations(375)
        ((1, 2, 4, 8, 16), (1, 3, 15, 75, 375))
    """
    found = [1]
    for number in range(2, min(local, most) + 1):
        if local % number == 0 and number >= 2 * found[-1]:
            found.append(number)
    return tuple(found)
