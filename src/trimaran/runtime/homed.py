"""A replica of the user's own model whose buckets of gradients have homes.

Every rank runs the whole model. A bucket that is complete goes to its home, by a reduce; the home updates its weights
and hands them out, by a broadcast after the update:

    rank 0    backward ████ b0 ████ b1 ████        U (b0) ██   BC b0 ──▶      BC b1 ◀──
    rank 1    backward ████ b0 ████ b1 ████        U (b1) ██   BC b0 ◀──      BC b1 ──▶
    to 0                    ═══════
    to 1                            ═══════

Buckets are those of the program, filled by `reducer`, not by DDP: DDP has one bucket in its first step, and a home is
for all steps. What is given up: parameters that the captured forward does not use must get no gradient.
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


class HomedReplica:
    """The user's model on one rank.

    Args:
        model: on its device
        own_loss: the model computes its loss (`Job.loss` is None)
        execution: "compiled" runs it through torch.compile
        buckets: parameters of each bucket, in order of readiness
        reduce_bucket: starts the reduce of a bucket
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
    ) -> None:
        self.module = model
        self._own_loss = own_loss
        self._run: nn.Module = torch.compile(model) if execution == "compiled" else model  # type: ignore[assignment]
        self._reducer = BucketReducer(buckets, reduce_bucket)
        homed = {id(parameter) for bucket in buckets for parameter in bucket}
        self._homeless = {
            name: parameter
            for name, parameter in model.named_parameters()
            if parameter.requires_grad and id(parameter) not in homed
        }

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
            self._reducer.finish()
            self._refuse_homeless()

    def evaluate(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch for evaluation; see `stages.Stage`."""
        arguments, keywords, _ = split_batch(batch, own_loss=self._own_loss, model=self.module)
        return {}, self._run(*arguments, **keywords)

    def close(self) -> None:
        """Take the hooks off the parameters; see `stages.Stage`."""
        self._reducer.close()

    def _refuse_homeless(self) -> None:
        for name, parameter in self._homeless.items():
            if parameter.grad is not None:
                raise ExecutionError(
                    f"the parameter {name} has a gradient, and took no part in the forward that was captured, so it "
                    'has no home: use Strategy(sync="all-reduce") for a model whose forward differs from step to step',
                    parameter=name,
                )
