"""Which parameters are updated together, and an optimizer whose groups have only those."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import Optimizer

Group = dict[str, Any]


@dataclass(slots=True, kw_only=True)
class Bucket:
    """Parameters that are updated together.

    Attributes:
        members: (group, its parameters in the bucket), in the order of the optimizer
        nbytes: of the parameters [bytes]
    """

    members: list[tuple[Group, list[torch.Tensor]]] = field(default_factory=list)
    nbytes: int = 0

    @property
    def parameters(self) -> list[torch.Tensor]:
        """All of them."""
        return [parameter for _, parameters in self.members for parameter in parameters]

    def add(self, group: Group, parameter: torch.Tensor) -> None:
        """Take one more."""
        if not self.members or self.members[-1][0] is not group:
            self.members.append((group, []))
        self.members[-1][1].append(parameter)
        self.nbytes += parameter.nbytes


def fill_buckets(groups: Sequence[Group], nbytes: int) -> list[Bucket]:
    """Parameters that have a gradient, in order, in buckets.

    Args:
        groups: of the optimizer
        nbytes: parameters of a bucket [bytes]; a larger parameter has a bucket of its own

    Example:
        >>> parameters = [torch.zeros(size, requires_grad=True) for size in (2, 2, 8, 1)]
        >>> for parameter in parameters:
        ...     parameter.grad = torch.zeros_like(parameter)
        >>> [len(bucket.parameters) for bucket in fill_buckets([{"params": parameters}], 16)]
        [2, 1, 1]
    """
    buckets: list[Bucket] = []
    for group in groups:
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            if not buckets or buckets[-1].nbytes + parameter.nbytes > nbytes:
                buckets.append(Bucket())
            buckets[-1].add(group, parameter)
    return buckets


@contextmanager
def narrowed(optimizer: Optimizer, bucket: Bucket) -> Iterator[None]:
    """The optimizer's groups have only the parameters of a bucket; their options are the same objects as before.

    Args:
        optimizer: whose groups are narrowed
        bucket: of its parameters
    """
    groups = optimizer.param_groups
    whole = [group["params"] for group, _ in bucket.members]
    try:
        for group, parameters in bucket.members:
            group["params"] = parameters
        optimizer.param_groups = [group for group, _ in bucket.members]
        yield
    finally:
        optimizer.param_groups = groups
        for (group, _), parameters in zip(bucket.members, whole, strict=True):
            group["params"] = parameters
