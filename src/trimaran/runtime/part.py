"""What one rank has of a job, whichever way it was divided: `setup` chooses who makes it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import nn

from trimaran.runtime.record import Recorder
from trimaran.runtime.stages import Stage
from trimaran.runtime.updates import Updater
from trimaran.runtime.used import Used


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
        whole: from a tensor laid out like this rank's share, on its device, the whole one; all of `ranks` call it
    """

    ranks: tuple[int, ...]
    shape: torch.Size
    whole: Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one rank has of a job.

    Attributes:
        stages: compute, by number of the segment; a rank with the whole model has segment 0
        parameters: trained here
        counted: those that count in the global norm here
        tied: for each label of the all-reduce of a shared weight, the weight, where it is held here
        reads: a stage reads data of the batch
        buckets: parameters that a broadcast hands out after the update, by its label
        elsewhere: parameters that other ranks are home to: their gradients are dropped after the update
        updater: updates; None: the job's optimizer over `parameters`
        sharing: parameters of which this rank has a share only, by a name in the user's model
        ready: called before state is read; puts shares back where they lie between steps; None: they are there
        load: puts the tensors of the whole model, by name, in their places; None: the user's model takes them
        shapes: whole shapes of what the user's model has shares of now, by name
        close: gives back what was done to the user's model, without communicating
        record: is given the record, where a library communicates inside the stages
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
    record: Callable[[Recorder], None] | None = None
    used: Used | None = None
    refit: Callable[[], None] | None = None
    never: tuple[nn.Parameter, ...] = ()
