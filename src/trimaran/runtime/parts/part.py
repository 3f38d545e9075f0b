"""The part of a job that one rank runs, for any strategy; `setup` makes it.

A `Stage` is a segment of the network on one rank, as the interpreter of a program sees it. The replicas of `replica`
and `zero.fsdp` are the user's whole model, `segments.SegmentStage` is a part of it, from capture. A stage does not
know messages, microbatch schedules, or the loss.

`Used` says which trained parameters got a gradient in a step, on any replica. A parameter that no sample of the global
batch used has no gradient in a plain loop, and an optimizer does not change it. In a sum over replicas it has zeros, by
which an optimizer would decay it, or apply its momentum. So each replica counts the parameters that it has used, the
counts are added up with the losses, and gradients of parameters that no replica has used are dropped first:

    rank 0    backward  a  b  -  ─▶  1 1 0 ┐
    rank 1    backward  a  -  -  ─▶  1 0 0 ┴▶  2 1 0  ─▶  the third has no gradient
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn

from trimaran.base.job import Job
from trimaran.graph.behaviour import OptimizerTraits
from trimaran.graph.capture.capture import Capture
from trimaran.graph.capture.segments import Segment
from trimaran.graph.types import ParameterUse
from trimaran.launch.world import World
from trimaran.program.strategy import Strategy
from trimaran.program.types import Instruction
from trimaran.runtime.communication.channels import Channels
from trimaran.runtime.record import RunRecorder
from trimaran.runtime.step.dgrad_wgrad import Deferred
from trimaran.runtime.step.updates import Updater

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
        """Remove hooks from the user's model, and drop references to process groups."""


@runtime_checkable
class Splittable(Stage, Protocol):
    """A stage whose backward may be split into dgrad and wgrad: the gradients of some weights come after the others.

    Attributes:
        splits: its forward may run under `Deferred.recording`
    """

    splits: bool

    def backward_weights(self, deferred: Deferred, *, completing: bool) -> None:
        """The deferred gradients of weights; adds to the gradients of the parameters.

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


class Used:
    """The parameters that got a gradient in this step, on this replica and on all.

    Args:
        parameters: all that are trained, in an order that is the same on every replica
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._numbers = {id(parameter): number for number, parameter in enumerate(self._parameters)}
        self._own = [0.0] * len(self._parameters)

    def note(self, parameter: torch.Tensor) -> None:
        """A parameter has a gradient here.

        Args:
            parameter: one of those that are trained
        """
        self._own[self._numbers[id(parameter)]] = 1.0

    def take(self, device: str) -> torch.Tensor:
        """What this replica has used since the last call: 1 or 0 a parameter, fp64.

        Args:
            device: where it is wanted
        """
        own, self._own = self._own, [0.0] * len(self._own)
        return torch.tensor(own, dtype=torch.float64, device=device)

    def unused(self, counts: torch.Tensor) -> list[nn.Parameter]:
        """The parameters that no replica has used.

        Args:
            counts: the sum over the replicas of what `take` gave
        """
        return [one for one, count in zip(self._parameters, counts.tolist(), strict=True) if not count]


class HasGradient(Protocol):
    """A parameter, or several that are summed as one."""

    grad: torch.Tensor | None


ReduceSegmentBucket = Callable[[int, int, torch.Tensor, Sequence[torch.Tensor]], None]
"""Starts to add up, over the replicas, flat gradients: segment, number of its bucket (-1: its last one), gradients,
parameters in the same order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharing:
    """How a parameter lies on several ranks, each of which has a share.

    Attributes:
        ranks: that share it, in order of their shares; together they have the whole
        shape: of the whole
        dim: along which it is split
        spans: of the whole along `dim`, from low to below high, that this rank's share has, in the order of the share
    """

    ranks: tuple[int, ...]
    shape: torch.Size
    dim: int
    spans: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What the part of a rank is made of.

    Attributes:
        job: the job
        strategy: how it runs
        capture: of the job, where `check_capture` wants one; says in which order gradients are ready. None: in the
            reverse order of the model
        model: the user's, whole, on its device, with the weights of rank 0; sharded parameters become shares
        traits: of the job's optimizer
        use: which parameters get a gradient; fits the strategy (`check_use`)
        never: names of those that never get one, where the network is partitioned
        world: this process's
        channels: communicate
        instructions: of this rank, in a training step
        reduce_bucket: starts the reduction of a bucket
    """

    job: Job
    strategy: Strategy
    capture: Capture | None
    model: nn.Module
    traits: OptimizerTraits
    use: ParameterUse
    never: Collection[str]
    world: World
    channels: Channels
    instructions: Sequence[Instruction]
    reduce_bucket: ReduceSegmentBucket

    @property
    def trained(self) -> list[nn.Parameter]:
        """The parameters of the model that are trained, in its order."""
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPart:
    """The part of a job that one rank runs.

    Attributes:
        stages: compute, by number of the segment; a rank with the whole model has segment 0
        parameters: trained here
        counted: those that count in the global norm here
        tied: for each label of the all-reduce of a shared weight, the weight, where it is held here
        reads: a stage reads data of the batch
        buckets: parameters that a broadcast hands out after the update, by its label
        elsewhere: parameters that other ranks own: their gradients are dropped after the update
        updater: updates; None: the job's optimizer over `parameters`
        sharing: parameters of which this rank has a share only, by a name in the user's model
        ready: called before state is read; puts shares back where they are between steps; None: they are there
        load: puts the tensors of the whole model, by name, in their places; None: the user's model takes them
        shapes: whole shapes of what the user's model has shares of now, by name
        close: undoes changes of the user's model, without communicating; None: there are none
        record: is given the recorder, where a library communicates inside the stages
        used: which parameters got a gradient, where that may differ between replicas; None: it does not
        refit: trains the parameters that require gradients now, where that has changed; None: it cannot
        never: parameters that get no gradient on any rank, and must have none: a message between segments that lacks a
            gradient holds zeros, from which others follow
    """

    stages: Mapping[int, Stage]
    parameters: tuple[nn.Parameter, ...]
    counted: tuple[nn.Parameter, ...]
    tied: Mapping[str, HasGradient]
    reads: bool
    buckets: Mapping[str, Sequence[nn.Parameter]] = field(default_factory=dict)
    elsewhere: tuple[nn.Parameter, ...] = ()
    updater: Updater | None = None
    sharing: Mapping[str, Sharing] = field(default_factory=dict)
    ready: Callable[[], None] | None = None
    load: Callable[[Mapping[str, torch.Tensor]], None] | None = None
    shapes: Mapping[str, torch.Size] = field(default_factory=dict)
    close: Callable[[], None] | None = None
    record: Callable[[RunRecorder], None] | None = None
    used: Used | None = None
    refit: Callable[[], None] | None = None
    never: tuple[nn.Parameter, ...] = ()
