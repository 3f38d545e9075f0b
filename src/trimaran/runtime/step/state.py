"""The state of a rank in the middle of a step.

Tensors that cross from segment to segment are in one pool for each microbatch, by name, whether another rank has sent
them or a segment of this rank has made them. So are the gradients that come back, several for a name where there are
several readers. The segment or message that needs one next takes it from there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from trimaran.program.types import Instruction
from trimaran.runtime.step.dgrad_wgrad import Deferred


@dataclass(frozen=True, slots=True, kw_only=True)
class LossTerm:
    """What one microbatch adds to the loss of the global batch.

    Attributes:
        total: its part of the sum, detached, fp64
        weight: its part of the divisor of the loss, fp64
        weighted: gradients are divided by the sum of the weights, where `Job.loss_weight` gives them by that over the
            samples; False: they are scaled already
    """

    total: torch.Tensor
    weight: torch.Tensor
    weighted: bool


@dataclass(slots=True, kw_only=True)
class Passage:
    """The forward of one segment for one microbatch, until its backward.

    Attributes:
        read: tensors of other segments, by name: leaves of autograd here
        made: tensors for other segments, by name, with their history
        root: the loss, where the segment has it
        deferred: gradients of weights; None: the backward is in one piece
        roots: from which the backward starts, with their gradients, where all of it is deferred
    """

    read: dict[str, torch.Tensor]
    made: dict[str, torch.Tensor] = field(default_factory=dict)
    root: torch.Tensor | None = None
    deferred: Deferred | None = None
    roots: tuple[Sequence[torch.Tensor], Sequence[torch.Tensor | None]] = ((), ())

    @property
    def is_awaited(self) -> bool:
        """Whether a gradient goes back from it to another segment."""
        return any(leaf.requires_grad for leaf in self.read.values())


@dataclass(slots=True, kw_only=True)
class State:
    """One step, or the evaluation of one batch, under way on one rank.

    Attributes:
        number: of the step
        samples: of the global batch
        sizes: samples of each microbatch of this replica; 0: it is left out, by all ranks
        counts: False: the one sample of this replica is that of another, and adds nothing
        source: gives a microbatch, on the device and in the job's precision
        completing: for each segment, the microbatch whose backward completes its gradients
        batches: microbatches that were loaded
        values: for each microbatch, tensors that segments or messages here still read, by name
        gradients: for each microbatch, gradients of tensors that crossed, by name; one a reader
        passages: forwards that wait for their backwards, by segment and microbatch
        terms: what the microbatches add to the loss, where it is computed
        metrics: metric and samples of each microbatch, where they are computed
        outputs: output and target of each, where the metric is computed over all evaluation data at once
        mean: sum and weight of losses or metrics over all ranks, and how many ranks have a request (`REQUESTS`), when
            they are known
        fetched: gives `mean` to the host, where it is on its way there
        loss: of the global batch, where a check has found it on the host already
        norm: global norm of the gradients, squared, when it is known
        gradients_ready: the gradients are those of the global batch
        late_loss: the all-reduce of the losses, where it waits for the gradients and also counts used parameters
        used: how many replicas have used each trained parameter, where that was asked and is known
        skipped: the loss is not a finite number, and the update is left out
    """

    number: int
    samples: int
    sizes: tuple[int, ...]
    source: Callable[[int], Any]
    counts: bool = True
    completing: dict[int, int] = field(default_factory=dict)
    batches: dict[int, Any] = field(default_factory=dict)
    values: dict[int, dict[str, torch.Tensor]] = field(default_factory=dict)
    gradients: dict[int, dict[str, list[torch.Tensor]]] = field(default_factory=dict)
    passages: dict[tuple[int, int], Passage] = field(default_factory=dict)
    terms: list[LossTerm] = field(default_factory=list)
    metrics: list[tuple[float, int]] = field(default_factory=list)
    outputs: dict[int, tuple[Any, Any]] = field(default_factory=dict)
    mean: torch.Tensor | None = None
    fetched: Callable[[], list[float]] | None = None
    loss: float | None = None
    norm: torch.Tensor | None = None
    gradients_ready: bool = False
    late_loss: Instruction | None = None
    used: torch.Tensor | None = None
    skipped: bool = False

    def counted(self, microbatch: int) -> int:
        """Samples of a microbatch that count in the loss, the gradients and the metric.

        Args:
            microbatch: number of the microbatch
        """
        return self.sizes[microbatch] if self.counts else 0

    def take_gradient(self, microbatch: int, name: str) -> torch.Tensor | None:
        """The sum of the gradients of a tensor that are there, which are then gone; None: there are none.

        Args:
            microbatch: number of the microbatch
            name: of the tensor
        """
        parts = self.gradients.get(microbatch, {}).pop(name, ())
        total = None
        for part in parts:
            total = part if total is None else total + part
        return total

    def add_gradient(self, microbatch: int, name: str, gradient: torch.Tensor) -> None:
        """Keep a gradient of a tensor that crossed, until a segment or message takes it.

        Args:
            microbatch: number of the microbatch
            name: of the tensor
            gradient: from one of its readers
        """
        self.gradients.setdefault(microbatch, {}).setdefault(name, []).append(gradient)
