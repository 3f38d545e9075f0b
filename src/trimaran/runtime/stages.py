"""A segment of the network on one rank, as the interpreter of a program sees it.

`replica.Replica` and `bucketed.BucketedReplica` are the user's own model, `segments.SegmentStage` is a part of it that
was cut out by capture. What a stage does not know: messages, microbatch schedules, the loss.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from trimaran.graph.segments import Segment
from trimaran.runtime.deferral import Deferred

ReduceBucket = Callable[[int, torch.Tensor, Sequence[torch.Tensor]], None]
"""Starts to add up, over the replicas, the flat gradients of the bucket of that number (-1 is the last one), which are
those of these parameters, in order."""


class Stage(Protocol):
    """Forward and backward of one segment.

    Attributes:
        module: has its parameters and buffers, under the names of the user's model
        is_last: its output is the model's, of which the loss is computed
    """

    module: nn.Module
    is_last: bool

    def forward(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int, *, completing: bool
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch.

        Args:
            batch: the microbatch, None where the stage reads nothing of it
            received: tensors of other segments, by name
            samples: of the microbatch
            completing: its backward will complete the gradients of the step

        Returns:
            The tensors that other segments read, by name; and the model's output on the last stage, else None.
        """

    def backward(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], *, completing: bool
    ) -> None:
        """Backward of one microbatch; adds to the gradients of the parameters, and sets those of what was received.

        Args:
            roots: the scaled loss, or tensors that other segments read; may be empty
            gradients: one a root
            completing: it completes the gradients of the step: reduce each bucket as soon as it is complete
        """

    def evaluate(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch for evaluation; arguments and result as of `forward`."""

    def close(self) -> None:
        """Take off what was put on the user's model, and let go of process groups."""


@runtime_checkable
class Divided(Stage, Protocol):
    """A stage whose backward may be divided: the gradients of some weights after those of the inputs.

    Attributes:
        divides: its forward may run under `Deferred.recording`
    """

    divides: bool

    def backward_weights(self, deferred: Deferred, *, completing: bool) -> None:
        """What a backward has put off; adds to the gradients of the parameters.

        Args:
            deferred: under which the forward ran
            completing: it completes the gradients of the step
        """


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Evaluation mode, and no gradients; afterwards every module is in the mode in which it was.

    A user may keep a part of the model in evaluation mode all the time, such as a frozen batch norm. A segment has the
    mode of the user's whole model.
    """
    whole = module.whole if isinstance(module, Segment) else module
    modes = [(part, part.training) for part in {*module.modules(), *whole.modules()}]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training
