"""A segment of the network as a stage: cut out by capture, with autograd that goes on in the segments around it.

What comes from other segments is a leaf of this rank's autograd graph, and what goes to others is a root of it: the
gradients that come back for a root are given to the backward, and the gradient of a leaf is what goes back.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from trimaran.graph.batches import name_tensors
from trimaran.graph.segments import Segment
from trimaran.graph.types import Graph
from trimaran.program.types import Execution
from trimaran.runtime.deferral import Deferred
from trimaran.runtime.reducer import BucketReducer
from trimaran.runtime.stages import ReduceBucket


class SegmentStage:
    """One segment on one rank.

    Args:
        segment: on its device
        execution: "compiled" runs it through torch.compile
        buckets: its parameters, bucket by bucket; none where there is one replica
        reduce_bucket: starts an all-reduce
    """

    def __init__(
        self,
        segment: Segment,
        *,
        execution: Execution,
        buckets: Sequence[Sequence[nn.Parameter]],
        reduce_bucket: ReduceBucket,
    ) -> None:
        self.module: nn.Module = segment
        self.is_last = segment.is_last
        # What is compiled has no place for a backward of our own.
        self.divides = execution == "eager"
        self._inputs = segment.inputs
        self._segment = segment
        if execution == "compiled":
            segment.compile()
        self._reducer = BucketReducer(buckets, reduce_bucket)

    def forward(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int, *, completing: bool
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch; see `stages.Stage`."""
        result: tuple[dict[str, torch.Tensor], Any] = self._segment(self._values(batch, received), samples)
        return result

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

    def backward_weights(self, deferred: Deferred, *, completing: bool) -> None:
        """What a backward has put off; see `stages.Divided`."""
        if completing:
            self._reducer.arm(among=deferred.parameters)
        deferred.run(self._reducer.arrived)
        if completing:
            self._reducer.finish()

    def evaluate(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch for evaluation; see `stages.Stage`."""
        result: tuple[dict[str, torch.Tensor], Any] = self._segment(self._values(batch, received), samples)
        return result

    def close(self) -> None:
        """Take the hooks off the parameters; see `stages.Stage`."""
        self._reducer.close()

    def _values(self, batch: Any, received: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        values = dict(received)
        if self._inputs:
            fed = name_tensors(batch)
            values.update((name, fed[name]) for name in self._inputs)
        return values


def parameters_by_name(graph: Graph, module: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters of a module under the names that the graph has for them.

    A segment may hold a tied weight under one of its other names only.

    Args:
        graph: names each parameter once
        module: the user's model, or a segment of it
    """
    held = dict(module.named_parameters(remove_duplicate=False))
    found = {}
    for parameter in graph.parameters:
        for name in (parameter.name, *parameter.aliases):
            if name in held:
                found[parameter.name] = held[name]
                break
    return found
