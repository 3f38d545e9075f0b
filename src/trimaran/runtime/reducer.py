"""Gradient buckets of a segment: filled by the last backward of a step, each handed over when it is complete.

The same buckets, in the same order on every replica, as the program has them (`program.buckets`). Autograd tells when
a parameter's gradient is there; a bucket whose last gradient has come is copied into one flat buffer, of which its
gradients become views, so that the sum over the replicas need not be copied back.

Where a parameter has no gradient when the backward has ended, zeros stand for it in the sum. Whether it has one
afterwards is a question of who else may have used it. Where all replicas use the same parameters, nobody has, and it
stays without. Where that depends on the data it has the sum, and `used` tells the others who has used what.
"""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from trimaran.errors import ExecutionError, InputError
from trimaran.runtime.stages import ReduceBucket
from trimaran.runtime.used import Used


class BucketReducer:
    """Watches the parameters of a segment.

    Args:
        buckets: parameters of each bucket, in order of readiness
        reduce_bucket: starts an all-reduce
        used: is told which parameters have a gradient here; None: all replicas use the same ones
    """

    def __init__(
        self, buckets: Sequence[Sequence[nn.Parameter]], reduce_bucket: ReduceBucket, *, used: Used | None = None
    ) -> None:
        self._buckets = [list(bucket) for bucket in buckets]
        self._reduce_bucket = reduce_bucket
        self._used = used
        self._bucket_of = {id(parameter): number for number, bucket in enumerate(buckets) for parameter in bucket}
        self._missing: list[set[int]] = []
        self._unused: list[nn.Parameter] = []
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
            {id(parameter) for parameter in bucket if coming is None or id(parameter) in coming}
            for bucket in self._buckets
        ]
        self._unused = []
        self._next = 0
        self._armed = True
        self._hand_over_complete()

    def finish(self) -> list[nn.Parameter]:
        """The backward has ended: what it did not reach has no gradient of it, and its bucket goes now.

        Returns:
            The parameters that have no gradient here in this step.
        """
        while self._next < len(self._buckets):
            self._hand_over()
        self._armed = False
        return self._unused

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
                "after it had been reduced: reentrant activation checkpointing does that; use use_reentrant=False",
                code="reducer.gradient-twice",
            )
        if number == len(self._buckets):
            return
        self._missing[number].discard(id(parameter))
        self._hand_over_complete()

    def _hand_over_complete(self) -> None:
        # In order, though a later bucket may be complete before: collectives must match on all replicas.
        while self._next < len(self._buckets) and not self._missing[self._next]:
            self._hand_over()

    def _hand_over(self) -> None:
        number = self._next
        bucket = self._buckets[number]
        self._next += 1
        for parameter in bucket:
            if parameter.grad is None:
                self._unused.append(parameter)
            elif self._used is not None:
                self._used.note(parameter)
        self._reduce_bucket(number, _flatten(bucket, keep_none=self._used is None), bucket)


def _flatten(parameters: Sequence[nn.Parameter], *, keep_none: bool) -> torch.Tensor:
    """The gradients one after another, and each a view of that; with `keep_none`, what has none stays so."""
    gradients = list(_gradients(parameters))
    if len(gradients) == 1 and gradients[0].is_contiguous():
        if not (keep_none and parameters[0].grad is None):
            parameters[0].grad = gradients[0]
        return gradients[0].view(-1)
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    start = 0
    for parameter in parameters:
        if not (keep_none and parameter.grad is None):
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
                f"a parameter of shape {tuple(parameter.shape)} has a sparse gradient, which buckets cannot have: make "
                "its layer with sparse=False"
            )
        else:
            yield gradient
