"""Gradient buckets of a segment: filled by the last backward of a step, each handed over when it is complete.

The same buckets, in the same order on every replica, as the program has them (`program.buckets`). Autograd tells when
a parameter's gradient is there; a bucket whose last gradient has come is copied into one flat buffer, of which its
gradients become views, so that the sum over the replicas need not be copied back.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from trimaran.errors import ExecutionError, InputError
from trimaran.runtime.stages import ReduceBucket


class BucketReducer:
    """Watches the parameters of a segment.

    Args:
        buckets: parameters of each bucket, in order of readiness
        reduce_bucket: starts an all-reduce
    """

    def __init__(self, buckets: Sequence[Sequence[nn.Parameter]], reduce_bucket: ReduceBucket) -> None:
        self._buckets = [list(bucket) for bucket in buckets]
        self._reduce_bucket = reduce_bucket
        self._bucket_of = {id(parameter): number for number, bucket in enumerate(buckets) for parameter in bucket}
        self._missing: list[int] = []
        self._next = 0
        self._armed = False
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self.arrived) for bucket in buckets for parameter in bucket
        ]

    def arm(self, among: Iterable[torch.Tensor] | None = None) -> None:
        """What comes next completes the gradients.

        Args:
            among: parameters of which a gradient is still to come; None: all
        """
        coming = None if among is None else {id(parameter) for parameter in among}
        self._missing = [
            sum(coming is None or id(parameter) in coming for parameter in bucket) for bucket in self._buckets
        ]
        self._next = 0
        self._armed = True
        self._hand_over_complete()

    def finish(self) -> None:
        """The backward has ended: what it did not reach has no gradient of this step, and its bucket goes now."""
        while self._next < len(self._buckets):
            self._hand_over()
        self._armed = False

    def close(self) -> None:
        """Take the hooks off the parameters."""
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()

    def arrived(self, parameter: torch.Tensor) -> None:
        """A gradient is there: autograd tells, or whoever has computed it.

        Args:
            parameter: whose

        Raises:
            ExecutionError: it had been reduced already
        """
        if not self._armed:
            return
        number = self._bucket_of.get(id(parameter), len(self._buckets))
        if number < self._next:
            raise ExecutionError(
                f"a parameter of shape {tuple(parameter.shape)} got a gradient twice in one backward, the second time "
                "after it had been reduced: reentrant activation checkpointing does that; use use_reentrant=False"
            )
        if number == len(self._buckets):
            return
        self._missing[number] -= 1
        self._hand_over_complete()

    def _hand_over_complete(self) -> None:
        # In order, though a later bucket may be complete before: collectives must match on all replicas.
        while self._next < len(self._buckets) and self._missing[self._next] == 0:
            self._hand_over()

    def _hand_over(self) -> None:
        number = self._next
        self._next += 1
        self._reduce_bucket(number, _flatten(self._buckets[number]), self._buckets[number])


def _flatten(parameters: Sequence[nn.Parameter]) -> torch.Tensor:
    gradients = list(_gradients(parameters))
    if len(gradients) == 1 and gradients[0].is_contiguous():
        parameters[0].grad = gradients[0]
        return gradients[0].view(-1)
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    start = 0
    for parameter in parameters:
        parameter.grad = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
    return flat


def _gradients(parameters: Sequence[nn.Parameter]) -> Iterator[torch.Tensor]:
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is None:
            yield torch.zeros_like(parameter)
        elif gradient.is_sparse:
            raise InputError(
                f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient, which pipelines do not reduce: "
                "make its layer with sparse=False"
            )
        else:
            yield gradient
