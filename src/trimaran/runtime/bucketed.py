"""A replica of the user's own model whose buckets of gradients are those of the program.

They are filled by `reducer`, not by DDP, which has one bucket in its first step, and needs a gradient of every
parameter that the forward has used. So this is for

- buckets that have homes, which are the same in all steps. A bucket that is complete goes to its home, by a reduce; the
  home updates its weights and hands them out, by a broadcast after the update:

    rank 0    backward ████ b0 ████ b1 ████        U (b0) ██   BC b0 ──▶      BC b1 ◀──
    rank 1    backward ████ b0 ████ b1 ████        U (b1) ██   BC b0 ◀──      BC b1 ──▶
    to 0                    ═══════
    to 1                            ═══════

- parameters that may have no gradient (`used`): a bucket that lacks one goes at the end of the backward, with zeros in
  its place.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trimaran.errors import ExecutionError
from trimaran.graph.batches import split_batch
from trimaran.program.types import Execution
from trimaran.runtime.reducer import BucketReducer
from trimaran.runtime.stages import ReduceBucket
from trimaran.runtime.used import Used


class BucketedReplica:
    """The user's model on one rank.

    Args:
        model: on its device
        own_loss: the model computes its loss (`Job.loss` is None)
        execution: "compiled" runs it through torch.compile
        buckets: parameters of each bucket, in order of readiness; together all that are trained
        reduce_bucket: starts the sum of a bucket
        used: is told which parameters have a gradient here; None: all always have
    """

    is_last = True

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
        self.module = model
        self._own_loss = own_loss
        self._run: nn.Module = torch.compile(model) if execution == "compiled" else model  # type: ignore[assignment]
        self._reducer = BucketReducer(buckets, reduce_bucket, used=used)
        self._all_used = used is None

    def forward(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int, *, completing: bool
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch; see `stages.Stage`."""
        arguments, keywords, _ = split_batch(batch, own_loss=self._own_loss, model=self.module)
        return {}, self._run(*arguments, **keywords)

    def backward(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], *, completing: bool
    ) -> None:
        """Backward of one microbatch; see `stages.Stage`."""
        if completing:
            self._reducer.arm()
        if roots:
            torch.autograd.backward(list(roots), list(gradients))
        if completing:
            missing = self._reducer.finish()
            if missing and self._all_used:
                raise without_gradient(self.module, missing)

    def evaluate(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch for evaluation; see `stages.Stage`."""
        arguments, keywords, _ = split_batch(batch, own_loss=self._own_loss, model=self.module)
        return {}, self._run(*arguments, **keywords)

    def close(self) -> None:
        """Take the hooks off the parameters; see `stages.Stage`."""
        self._reducer.close()


def without_gradient(model: nn.Module, missing: Sequence[torch.Tensor]) -> ExecutionError:
    """The error where parameters have no gradient in a step that were taken to have one in every step.

    Args:
        model: the user's
        missing: some of its parameters
    """
    lacking = {id(parameter) for parameter in missing}
    names = [name for name, parameter in model.named_parameters() if id(parameter) in lacking]
    some = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return ExecutionError(
        f"{some} got no gradient in this step, and replicas took every parameter to get one, as in the forward that "
        "was captured. Let the forward choose its way by values of tensors, such as torch.rand, not by those of "
        "Python, so that its choice is seen when it is captured; or train on one device",
        parameters=tuple(names),
    )
