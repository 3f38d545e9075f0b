"""A segment of the network as a stage: a part of the captured graph, with autograd across segments.

A tensor from another segment is a leaf of this rank's autograd graph, and a tensor for another segment is a root of it:
the gradients that come back for a root are given to the backward, and the gradient of a leaf is sent back.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from trimaran.graph.capture.capture import Capture
from trimaran.graph.capture.segments import Segment, build_part
from trimaran.graph.types import Graph
from trimaran.program.layout import strategy_layout
from trimaran.program.lowering.partition import segment_ops, tied_segments
from trimaran.program.lowering.rows import buckets_of_rank
from trimaran.program.rules.fits_graph import check_parts
from trimaran.program.strategy import Execution
from trimaran.runtime.parts.part import Making, RankPart, ReduceBucket
from trimaran.runtime.parts.replica import BucketReducer
from trimaran.runtime.step.dgrad_wgrad import Deferred
from trimaran.user_code.batches import name_tensors


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
        # A compiled segment cannot run under `Deferred.recording`.
        self.splits = execution == "eager"
        self._inputs = segment.inputs
        self._segment = segment
        if execution == "compiled":
            segment.compile()
        self._reducer = BucketReducer(buckets, reduce_bucket)

    def forward(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int, *, completing: bool
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch; see `Stage`."""
        result: tuple[dict[str, torch.Tensor], Any] = self._segment(self._values(batch, received), samples)
        return result

    def backward(
        self, roots: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor | None], *, completing: bool
    ) -> None:
        """Backward of one microbatch; see `Stage`."""
        if completing:
            self._reducer.arm()
        if roots:
            torch.autograd.backward(list(roots), list(gradients))
        if completing:
            self._reducer.finish()

    def backward_weights(self, deferred: Deferred, *, completing: bool) -> None:
        """The deferred gradients of weights; see `Splittable`."""
        if completing:
            self._reducer.arm(among=deferred.parameters)
        deferred.run(self._reducer.arrived)
        if completing:
            self._reducer.finish()

    def evaluate(
        self, batch: Any, received: Mapping[str, torch.Tensor], samples: int
    ) -> tuple[dict[str, torch.Tensor], Any]:
        """Forward of one microbatch for evaluation; see `Stage`."""
        result: tuple[dict[str, torch.Tensor], Any] = self._segment(self._values(batch, received), samples)
        return result

    def close(self) -> None:
        """Take the hooks off the parameters; see `Stage`."""
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


# ---------------------------------------------------------------------------------------------------------------------
# The part of a rank that has some segments of the network: stages of a pipeline, or parts of a placement


def segmented_part(making: Making, capture: Capture) -> RankPart:
    """The segments of one row of a replica.

    A weight that several of them use is one parameter here, with one gradient.

    Args:
        making: what it is made of
        capture: of the job, or what was made of that

    Raises:
        InputError: the graph cannot be partitioned like that
    """
    strategy = making.strategy
    if strategy.parts:
        check_parts(capture.graph, strategy)
    row = strategy_layout(strategy).place_of(making.world.rank)[1]
    graph, parts = capture.graph, segment_ops(capture.graph, strategy)
    own = [segment for segment, of in enumerate(strategy.rows) if of == row]
    segments = {number: build_part(capture, parts, number) for number in own}
    named = {number: parameters_by_name(graph, segment) for number, segment in segments.items()}
    tied = tied_segments(graph, parts)
    buckets = buckets_of_rank(graph, strategy, making.instructions) if strategy.dp > 1 else {}
    stages = {
        number: SegmentStage(
            segment,
            execution=strategy.execution,
            buckets=[[named[number][name] for name in bucket.parameters] for bucket in buckets.get(number, ())],
            reduce_bucket=partial(making.reduce_bucket, number),
        )
        for number, segment in segments.items()
    }
    trained: dict[str, nn.Parameter] = {}
    for found in named.values():
        trained.update((name, parameter) for name, parameter in found.items() if parameter.requires_grad)
    first = {name: strategy.rows[users[0]] for name, users in tied.items()}
    return RankPart(
        stages=stages,
        parameters=tuple(trained.values()),
        counted=tuple(parameter for name, parameter in trained.items() if first.get(name, row) == row),
        tied={f"tie{number}": trained[name] for number, name in enumerate(tied) if name in trained},
        never=tuple(parameter for name, parameter in trained.items() if name in making.never),
        reads=any(segment.inputs or segment.is_last for segment in segments.values()),
    )
