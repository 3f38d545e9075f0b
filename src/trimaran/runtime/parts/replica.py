"""Replicas of the user's whole model: by torch's DistributedDataParallel, or with the program's own buckets.

`Replica` uses DDP, which fills and orders the buckets of gradients, and says when one is complete; the interpreter does
the rest. DDP's hook starts an all-reduce and returns the bucket at once as if it were done; the first wait is before
the update:

    backward   ████████ b0 ████████ b1 ████ b2 ─▶ ends here: this is compute alone
    b0                  ═══════════════
    b1                              ═══════════════
    b2                                         ══════════
    wait                                       ▒▒▒▒▒▒▒▒▒▒ exposed communication only

Gradients are views of the buckets, so the sum of a bucket is in the gradients. They are summed, not averaged: see
`step.losses`.

DDP puts all gradients into one bucket in the first step, when it does not know their order yet; the first step has
one all-reduce.

This is for models of which every parameter has a gradient in every step. DDP can look for those that the forward has
not used, but it waits for ever for one that the forward has used and the loss has not; other models have a
`BucketedReplica`. If a parameter lacks its gradient all the same, the end of the backward raises an error.

`BucketReducer` fills gradient buckets in the last backward of a step and starts the sum of each when it is complete.
They are the program's buckets (`program.gradients`), in the same order on every replica. Autograd tells when the
gradient of a parameter is complete. A bucket whose last gradient has come is copied into one flat buffer, of which its
gradients become views, so that the sum over the replicas need not be copied back.

Where a parameter has no gradient when the backward has ended, it has zeros in the sum. Where all replicas use the same
parameters, it has no gradient afterwards either. Where that depends on the data it has the sum, and `Used` says which
replicas have used it.

`BucketedReplica` has these buckets in place of DDP's. DDP has one bucket in its first step, and needs a gradient of
every parameter that the forward has used. So this is for

- buckets that have owners, which are the same in all steps. A bucket that is complete goes to its owner, by a reduce;
  the owner updates its weights and sends them to the others, by a broadcast after the update:

    rank 0    backward ████ b0 ████ b1 ████        U (b0) ██   BC b0 ──▶      BC b1 ◀──
    rank 1    backward ████ b0 ████ b1 ████        U (b1) ██   BC b0 ◀──      BC b1 ──▶
    to 0                    ═══════
    to 1                            ═══════

- parameters that may have no gradient (`used`): a bucket that lacks one goes at the end of the backward, with zeros in
  its place.
"""

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from trimaran.base.errors import ExecutionError, InputError
from trimaran.base.units import format_some
from trimaran.program.gradients import DEFAULT_BUCKET_BYTES, FIRST_BUCKET_BYTES
from trimaran.program.strategy import Execution
from trimaran.runtime.parts.part import ReduceBucket, Used
from trimaran.user_code.batches import split_batch


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
        """The next backward completes the gradients.

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
        """A gradient is complete; called by autograd, or by the code that has computed it.

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


class WholeModelStage:
    """The user's whole model as a stage; what its gradients need is in the classes below.

    Args:
        model: on its device
        own_loss: the model computes its loss (`Job.loss` is None)
        execution: "compiled" runs it through torch.compile
    """

    is_last = True

    def __init__(self, model: nn.Module, *, own_loss: bool, execution: Execution) -> None:
        self.module = model
        self._own_loss = own_loss
        self._single: nn.Module = torch.compile(model) if execution == "compiled" else model  # type: ignore[assignment]

    def forward(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int, *, completing: bool
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch; see `Stage`."""
        return {}, self._call(self._single, batch)

    def evaluate(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch for evaluation; see `Stage`."""
        return {}, self._call(self._single, batch)

    def _call(self, model: nn.Module, batch: Any) -> Any:
        arguments, keywords, _ = split_batch(batch, own_loss=self._own_loss, model=self.module)
        return model(*arguments, **keywords)


class BucketedReplica(WholeModelStage):
    """The user's model on one rank, with the program's buckets.

    Args:
        model: on its device
        own_loss: as for `WholeModelStage`
        execution: as for `WholeModelStage`
        buckets: parameters of each bucket, in order of readiness; together all that are trained, or may be later
        reduce_bucket: starts the sum of a bucket
        used: is told which parameters have a gradient here; None: all always have
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        own_loss: bool,
        execution: Execution,
        buckets: Sequence[Sequence[nn.Parameter]],
        reduce_bucket: ReduceBucket,
        used: Used | None,
    ) -> None:
        super().__init__(model, own_loss=own_loss, execution=execution)
        self._buckets, self._reduce_bucket, self._used = buckets, reduce_bucket, used
        self._reducer = self._watch()

    def backward(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], *, completing: bool
    ) -> None:
        """Backward of one microbatch; see `Stage`."""
        if completing:
            self._reducer.arm()
        if roots:
            torch.autograd.backward(list(roots), list(gradients))
        if completing:
            missing = self._reducer.finish()
            if missing and self._used is None:
                raise without_gradient(self.module, missing)

    def refit(self) -> None:
        """Sum the gradients of the parameters that require one now."""
        self._reducer.close()
        self._reducer = self._watch()

    def _watch(self) -> BucketReducer:
        buckets = [[one for one in bucket if one.requires_grad] for bucket in self._buckets]
        return BucketReducer([bucket for bucket in buckets if bucket], self._reduce_bucket, used=self._used)

    def close(self) -> None:
        """Take the hooks off the parameters; see `Stage`."""
        self._reducer.close()


def without_gradient(model: nn.Module, missing: Sequence[torch.Tensor]) -> ExecutionError:
    """The error where parameters have no gradient in a step that were taken to have one in every step.

    Args:
        model: the user's
        missing: some of its parameters
    """
    lacking = {id(parameter) for parameter in missing}
    names = [name for name, parameter in model.named_parameters() if id(parameter) in lacking]
    some = format_some(names)
    return ExecutionError(
        f"{some} got no gradient in this step, and replicas took every parameter to get one, as in the forward that "
        "was captured. Let the forward choose its way by values of tensors, such as torch.rand, not by those of "
        "Python, so that its choice is seen when it is captured; or train on one device",
        parameters=tuple(names),
    )


class Replica(WholeModelStage):
    """The user's model on one rank, replicated by DDP where there are several replicas.

    Args:
        model: on its device
        own_loss: as for `WholeModelStage`
        execution: as for `WholeModelStage`
        group: the replicas; None: there is one
        bucket_bytes: size at which a bucket is reduced [bytes]
        reduce_bucket: starts an all-reduce

    Attributes:
        learned: DDP has seen in which order gradients come, and has its buckets
    """

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
        super().__init__(model, own_loss=own_loss, execution=execution)
        self._trained = 0
        self.learned = False
        self._hook = _Hook(reduce_bucket)
        self._group = group
        self._bucket_cap_mb = _bucket_cap_mb(bucket_bytes, execution)
        self._replicated = self._replicate()

    def forward(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int, *, completing: bool
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch; see `Stage`."""
        if self._replicated is None:
            return super().forward(batch, received, samples, completing=completing)
        with nullcontext() if completing else self._replicated.no_sync():
            return {}, self._call(self._replicated, batch)

    def backward(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], *, completing: bool
    ) -> None:
        """Backward of one microbatch; see `Stage`."""
        if roots:
            # Whether DDP reduces was decided in the forward.
            torch.autograd.backward(list(roots), list(gradients))
        if completing and self._replicated is not None:
            self._check_all_reduced()
            self.learned = True

    def refit(self) -> None:
        """Replicate the parameters that require gradients now: DDP reduces those that did when it was made."""
        self._replicated = None
        self._replicated = self._replicate()

    def _replicate(self) -> DistributedDataParallel | None:
        self.learned = False
        self._trained = sum(parameter.requires_grad for parameter in self.module.parameters())
        if self._group is None or not self._trained:
            return None
        replicated = DistributedDataParallel(
            self._single,
            process_group=self._group,
            # The interpreter broadcasts buffers, and has made the weights equal.
            init_sync=False,
            **_without_buffers(),
            bucket_cap_mb=self._bucket_cap_mb,
            gradient_as_bucket_view=True,
        )
        replicated.register_comm_hook(self._hook, _start_reduction)
        return replicated

    def close(self) -> None:
        """Drop DDP, which removes its hooks; see `Stage`."""
        self._replicated = self._group = None

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
    """State of the hook that DDP calls for its buckets.

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
        # The compiler splits its graph at DDP's buckets, and refuses a size below that of its first.
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
