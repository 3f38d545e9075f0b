"""A replica of the user's own model, by torch's DistributedDataParallel.

DDP fills and orders the buckets of gradients, and says when one is complete; the interpreter does the rest. So DDP's
hook starts an all-reduce, hands back the bucket at once as if it were done, and nobody waits before the update:

    backward   ████████ b0 ████████ b1 ████ b2 ─▶ ends here: this is compute alone
    b0                  ═══════════════
    b1                              ═══════════════
    b2                                         ══════════
    wait                                       ▒▒▒▒▒▒▒▒▒▒ only what no compute hides

Gradients are views of the buckets, so what arrives in a bucket is in the gradients. They are summed, not averaged:
see `losses`.

DDP puts all gradients into one bucket in the first step, when it does not know their order yet; the first step has
one all-reduce.

It is for models of which every parameter has a gradient in every step. DDP can look for those that the forward has not
used, but it waits for ever for one that the forward has used and the loss has not; other models have a
`bucketed.BucketedReplica`. A parameter that lacks its gradient all the same is told at the end of the backward.
"""

import inspect
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimaran.graph.batches import split_batch
from trimaran.program.buckets import DEFAULT_BUCKET_BYTES, FIRST_BUCKET_BYTES
from trimaran.program.types import Execution
from trimaran.runtime.bucketed import without_gradient
from trimaran.runtime.stages import ReduceBucket


class Replica:
    """The user's model on one rank.

    Args:
        model: on its device
        own_loss: the model computes its loss (`Job.loss` is None)
        execution: "compiled" runs it through torch.compile
        group: the replicas; None: there is one
        bucket_bytes: size at which a bucket is reduced [bytes]
        reduce_bucket: starts an all-reduce
    """

    is_last = True

    def __init__(
        self,
        model: nn.Module,
        *,
        own_loss: bool,
        execution: Execution,
        group: dist.ProcessGroup | None,
        bucket_bytes: int,
        reduce_bucket: ReduceBucket,
    ) -> None:
        self.module = model
        self._own_loss = own_loss
        self._single: nn.Module = torch.compile(model) if execution == "compiled" else model  # type: ignore[assignment]
        self._replicated: DistributedDataParallel | None = None
        self._trained = sum(parameter.requires_grad for parameter in model.parameters())
        self._hook = _Hook(reduce_bucket)
        if group is None or not any(parameter.requires_grad for parameter in model.parameters()):
            return
        self._replicated = DistributedDataParallel(
            self._single,
            process_group=group,
            # The interpreter broadcasts buffers, and has made the weights equal.
            init_sync=False,
            **_without_buffers(),
            bucket_cap_mb=_bucket_cap_mb(bucket_bytes, execution),
            gradient_as_bucket_view=True,
        )
        self._replicated.register_comm_hook(self._hook, _start_reduction)

    def forward(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int, *, completing: bool
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch; see `stages.Stage`."""
        arguments, keywords, _ = split_batch(batch, own_loss=self._own_loss, model=self.module)
        if self._replicated is None:
            return {}, self._single(*arguments, **keywords)
        with nullcontext() if completing else self._replicated.no_sync():
            return {}, self._replicated(*arguments, **keywords)

    def backward(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], *, completing: bool
    ) -> None:
        """Backward of one microbatch; see `stages.Stage`."""
        if roots:
            # Whether DDP reduces was decided in the forward.
            torch.autograd.backward(list(roots), list(gradients))
        if completing and self._replicated is not None:
            self._check_all_reduced()

    def evaluate(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch for evaluation; see `stages.Stage`."""
        arguments, keywords, _ = split_batch(batch, own_loss=self._own_loss, model=self.module)
        return {}, self._single(*arguments, **keywords)

    def close(self) -> None:
        """Let go of DDP, which takes its hooks off; see `stages.Stage`."""
        self._replicated = None

    def _check_all_reduced(self) -> None:
        """DDP keeps back a bucket that lacks a gradient, and says so in the next forward only."""
        reduced = self._hook.take()
        if len(reduced) < self._trained:
            known = {id(parameter) for parameter in reduced}
            trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
            missing = [parameter for parameter in trained if id(parameter) not in known]
            # All of a bucket are kept back; those that lack a gradient are the reason.
            raise without_gradient(self.module, [one for one in missing if one.grad is None] or missing)


class _Hook:
    """What DDP tells of its buckets.

    Args:
        reduce_bucket: starts an all-reduce
    """

    def __init__(self, reduce_bucket: ReduceBucket) -> None:
        self.reduce_bucket = reduce_bucket
        self.reduced: list[torch.Tensor] = []

    def take(self) -> list[torch.Tensor]:
        """The parameters whose buckets have gone since the last call."""
        reduced, self.reduced = self.reduced, []
        return reduced


def _bucket_cap_mb(bucket_bytes: int, execution: Execution) -> float | None:
    if bucket_bytes == DEFAULT_BUCKET_BYTES:
        # Only without a value does DDP make its first bucket a small one, as the program has it.
        return None
    if execution == "compiled":
        # The compiler cuts its graph at DDP's buckets, and refuses a limit below that of its first.
        bucket_bytes = max(bucket_bytes, FIRST_BUCKET_BYTES)
    return bucket_bytes / 2**20


def _without_buffers() -> dict[str, Any]:
    """The option by which DDP leaves buffers alone; torch 2.13 gave it another name, and warns of the old one."""
    options = inspect.signature(DistributedDataParallel).parameters
    return {"forward_sync_buffers" if "forward_sync_buffers" in options else "broadcast_buffers": False}


def _start_reduction(
    hook: _Hook,
    bucket: dist.GradBucket,  # type: ignore[name-defined]  # DDP checks that it is this, spelled so
) -> torch.futures.Future[torch.Tensor]:
    buffer = bucket.buffer()
    parameters = bucket.parameters()
    hook.reduced += parameters
    hook.reduce_bucket(-1 if bucket.is_last() else bucket.index(), buffer, parameters)
    devices = [buffer.device] if buffer.is_cuda else []
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future(devices=devices)
    done.set_result(buffer)
    return done
