"""Homes of tensors: where each is summed and updated when replicas exchange by copies to one place and back.

The largest tensors are dealt out first, each to the place with the least so far. What is left out: that some places are
nearer than others, and that small tensors cost a call each.
"""

from collections.abc import Mapping, Sequence
from typing import TypeVar

from trimaran.program.buckets import Bucket

Home = TypeVar("Home")


def homes_by_size(nbytes: Sequence[float], homes: Sequence[Home]) -> tuple[Home, ...]:
    """A home for each tensor: by size, each goes to the home with the least so far, the first of those that tie.

    Args:
        nbytes: of each tensor [bytes]
        homes: to choose from, different ones

    Source:
        apache/mxnet src/kvstore/comm.h, CommDevice::InitMergeBuffer.

    Example:
        >>> homes_by_size([1, 8, 4, 3], ["gpu0", "gpu1"])
        ('gpu1', 'gpu0', 'gpu1', 'gpu1')
    """
    loads = [0.0] * len(homes)
    chosen = [0] * len(nbytes)
    for place in sorted(range(len(nbytes)), key=lambda place: -nbytes[place]):
        home = loads.index(min(loads))
        chosen[place] = home
        loads[home] += nbytes[place]
    return tuple(homes[home] for home in chosen)


def bucket_homes(buckets: Sequence[Bucket], ranks: Sequence[int]) -> Mapping[str, int]:
    """The home of each bucket of gradients, by its label.

    Args:
        buckets: of one segment
        ranks: the replicas of the segment

    Returns:
        A rank for each label.
    """
    homes = homes_by_size([bucket.nbytes for bucket in buckets], ranks)
    return {bucket.label: home for bucket, home in zip(buckets, homes, strict=True)}
