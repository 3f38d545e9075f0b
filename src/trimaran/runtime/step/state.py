"""The state of a rank in the middle of a step, and the loss of a global batch from the losses of its microbatches.

Tensors that cross from segment to segment are in one pool for each microbatch, by name, whether another rank has sent
them or a segment of this rank has made them. So are the gradients that come back, several for a name where there are
several readers. The segment or message that needs one next takes it from there.

The gradient of a step must be that of the mean over the whole global batch, whatever the plan and however uneven the
shares. Write L for the mean loss of the N samples of a global batch, and L_m for that of the n_m samples of
microbatch m. Then L = sum over m of (n_m / N) L_m. So each microbatch's loss is multiplied by n_m / N before its
backward, and gradients are *summed* over microbatches and replicas, never averaged: an average over replicas is right
only when all have equally many samples.

A loss that returns `(sum, weight)`, such as a mean over tokens that are not padding, has L = (sum of sums) / (sum of
weights), and the divisor is known only when all ranks have been heard. Its sums are propagated as they are, and
gradients are divided once, before the update. A loss whose weight w `Job.loss_weight` gives is such a mean too: each
microbatch's is multiplied by w_m / (N t), with t the typical weight of a sample, and gradients are divided by
(sum of weights) / (N t). That is 1, and nothing is divided, where all samples weigh the same, as texts of one length.

A loss that is a sum over samples (`Job.loss_weight` is `SUMMED`) adds up as it is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from trimaran.base.errors import ExecutionError, InputError
from trimaran.base.job import Job
from trimaran.graph.behaviour import typical_weight
from trimaran.launch.requests import REQUESTS
from trimaran.launch.world import World
from trimaran.program.types import Instruction
from trimaran.runtime.step.dgrad_wgrad import Deferred
from trimaran.runtime.step.on_nan import MOST_SKIPPED, OnNan
from trimaran.runtime.streams import fetch
from trimaran.user_code.batches import SUMMED, split_batch


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


def loss_term(job: Job, output: Any, batch: Any, *, samples: int, of: int) -> tuple[torch.Tensor, LossTerm]:
    """The loss of one microbatch.

    Args:
        job: the job
        output: what the model returned
        batch: the microbatch
        samples: of the microbatch; 0: those of another replica, and it adds nothing
        of: samples of the global batch

    Returns:
        Where its backward starts, and what it adds to the loss.

    Raises:
        InputError: the loss is no scalar, or no tensor
    """
    root, term = _loss_term(job, output, batch, samples=samples, of=of)
    if torch.is_grad_enabled() and not root.requires_grad:
        # Where nothing counts a loss may read no output: its gradients are zeros, for which other ranks wait.
        made = (one for one in pytree.tree_leaves(output) if isinstance(one, torch.Tensor) and one.requires_grad)
        root = sum((one.sum() * 0.0 for one in made), start=root)
    if samples:
        return root, term
    return root * 0.0, replace(term, total=torch.zeros_like(term.total), weight=torch.zeros_like(term.weight))


def _loss_term(job: Job, output: Any, batch: Any, *, samples: int, of: int) -> tuple[torch.Tensor, LossTerm]:
    weigh = None if job.loss_weight is SUMMED else job.loss_weight
    # Before the loss, which may write to its target.
    given: Any = None if weigh is None else weigh(batch)
    if job.loss is None:
        value = output["loss"] if isinstance(output, dict) else getattr(output, "loss", None)
        if value is None:
            raise InputError(
                f"the job has loss=None, so its model must return an object with .loss; it returned {_describe(output)}"
            )
    else:
        value = job.loss(output, split_batch(batch)[2])
    if isinstance(value, tuple) and len(value) == 2:
        total, weight = value
        total = _scalar(total, "the sum of the loss", output)
        weight = _on_device(weight, total.device)
        return total, LossTerm(total=total.detach().double(), weight=weight, weighted=True)
    mean = _scalar(value, "the loss", output)
    if job.loss_weight is SUMMED:
        share = _on_device(samples / of, mean.device)
        return mean, LossTerm(total=mean.detach().double(), weight=share, weighted=False)
    if weigh is not None:
        weight = _on_device(given, mean.device)
        # The mean over nothing is no number, and adds nothing.
        nothing = torch.zeros_like(mean)
        root = torch.where(weight > 0, mean * (weight / (of * typical_weight(job))).to(mean.dtype), nothing)
        total = torch.where(weight > 0, mean.detach().double() * weight, nothing.double())
        return root, LossTerm(total=total, weight=weight, weighted=True)
    weight = _on_device(samples, mean.device)
    return mean * (samples / of), LossTerm(total=mean.detach().double() * samples, weight=weight, weighted=False)


def _on_device(weight: Any, device: torch.device) -> torch.Tensor:
    if isinstance(weight, torch.Tensor):
        return weight.detach().to(device, torch.float64).reshape(())
    # Filled where the tensor lives: a copy from the host would wait for the device.
    return torch.full((), float(weight), dtype=torch.float64, device=device)


def _scalar(value: Any, what: str, output: Any) -> torch.Tensor:
    if isinstance(value, int | float) and value == 0:
        # Where nothing counts, a loss may give the number 0.
        made = next((one for one in pytree.tree_leaves(output) if isinstance(one, torch.Tensor)), None)
        value = torch.full((), float(value), dtype=torch.float64, device=None if made is None else made.device)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise InputError(
            f"{what} must be a scalar tensor, a mean over the samples of the batch, or (sum, weight); it is "
            f"{_describe(value)}: reduce it, as in loss.mean()",
            code="loss.not-reduced",
        )
    return value.reshape(())


def _describe(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"


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


# ---------------------------------------------------------------------------------------------------------------------
# The loss and the metric of a batch: this rank's sums of them, and the loss that follows when all have been heard


def own_loss(state: State, device: str) -> torch.Tensor:
    """Sum and weight of the losses of this rank's microbatches, zeros where another rank has them; 1 for a request.

    Args:
        state: of the step
        device: where the sums are wanted
    """
    if not state.terms:
        own = torch.zeros(3, dtype=torch.float64, device=device)
        if REQUESTS.pending:
            own[2] = 1.0
        return own
    asked = _flag(REQUESTS.pending, device)
    if len(state.terms) == 1:
        return torch.stack([state.terms[0].total, state.terms[0].weight, asked])
    return torch.stack(
        [
            torch.stack([term.total for term in state.terms]).sum(),
            torch.stack([term.weight for term in state.terms]).sum(),
            asked,
        ]
    )


@cache
def _flag(is_set: bool, device: str) -> torch.Tensor:
    """1 or 0 as a scalar, fp64; it is read only."""
    return torch.full((), float(is_set), dtype=torch.float64, device=device)


def own_metric(state: State, device: str) -> torch.Tensor:
    """Sum over the samples of the metric of this rank's microbatches, their number, and 1 for a request, in fp64.

    Args:
        state: of the evaluation of one batch
        device: where the sums are wanted
    """
    total = math.fsum(value * samples for value, samples in state.metrics)
    samples = sum(samples for _, samples in state.metrics)
    return torch.tensor([total, float(samples), float(REQUESTS.pending)], dtype=torch.float64, device=device)


def as_number(value: Any) -> float:
    """What a job's metric returned.

    Raises:
        InputError: no number
    """
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(
            f"Job.metric returns a number, the mean over the samples of the batch; it returned a {type(value).__name__}"
        ) from error


class Asking:
    """Whether a rank has a request, asked of all ranks while they compute a step.

    Args:
        group: process group of all ranks on the host
    """

    def __init__(self, group: Any) -> None:
        self._group = group
        self._sum = torch.zeros(1)
        self._work: Any = None

    def begin(self) -> None:
        """Start to ask; every rank does, before its step or after it."""
        self._sum.fill_(float(REQUESTS.pending))
        self._work = dist.all_reduce(self._sum, group=self._group, async_op=True)

    def end(self) -> bool:
        """The answer, the same on every rank."""
        self._work.wait()
        return bool(self._sum)


class LossSums:
    """Losses and metrics over all ranks, as far as this rank knows them.

    All ranks have the same sums, so that all of them end, or leave out an update, in the same step.

    Args:
        world: this process's
        first_rank: the first rank on which something is true; all ranks are asked
        on_nan: what to do where the loss is not a finite number

    Attributes:
        skipped: numbers of the steps whose update was left out
        asked: a rank had a request in the last step, or in the last batch of an evaluation; the same on all ranks whose
            losses are added up
    """

    def __init__(self, world: World, first_rank: Callable[[bool], int | None], on_nan: OnNan = "stop") -> None:
        self._world = world
        self._first_rank = first_rank
        self._on_nan = on_nan
        self._in_a_row = 0
        self.skipped: list[int] = []
        self.asked = False

    def state_dict(self) -> dict[str, Any]:
        """The steps that were skipped, as plain figures; the same on every rank."""
        return {"skipped": list(self.skipped), "in_a_row": self._in_a_row}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with the steps that were skipped before.

        Args:
            state: from `state_dict`; an empty one: none were
        """
        self.skipped[:] = state.get("skipped", ())
        self._in_a_row = state.get("in_a_row", 0)

    def mean(self, state: State) -> torch.Tensor:
        """Sum and weight of the loss over all ranks, where they have been added up, else of this one; and requests.

        Args:
            state: of a step
        """
        if state.mean is None:
            state.mean = own_loss(state, self._world.device)
        return state.mean

    def mean_metric(self, state: State) -> torch.Tensor:
        """Sum over the samples of the metric of a batch, and their number, over all ranks, fp64, in host memory.

        Args:
            state: of the evaluation of one batch
        """
        mean = (own_metric(state, self._world.device) if state.mean is None else state.mean).cpu()
        self.asked = bool(mean[2])
        return mean[:2]

    def fetch(self, state: State) -> None:
        """Where a GPU trains alone, start to bring the loss to the host as soon as the last forward has been issued.

        So the check before the update waits for the forward only, and not for the backward. With several ranks the
        loss is known when all have been heard, and the check waits for that.

        Args:
            state: of a step; does nothing before its last forward
        """
        if self._world.device == "cpu" or self._world.size > 1:
            return
        if len(state.terms) == sum(size > 0 for size in state.sizes):
            state.fetched = fetch(self.mean(state))

    def check(self, state: State) -> bool:
        """Whether the loss is a finite number, so that weights may be updated by it.

        Args:
            state: of a step whose loss has been added up

        Raises:
            ExecutionError: it is not, and the run ends by that; on every rank
        """
        sums = self.mean(state).tolist() if state.fetched is None else state.fetched()
        loss = self._finite(sums, state)
        if self._world.device == "cpu":
            state.loss = loss
        return not state.skipped

    def loss(self, state: State) -> float:
        """The loss of the global batch, on every rank; also waits for a GPU to have done the step.

        Args:
            state: of a step whose loss has been added up

        Raises:
            ExecutionError: it is not a finite number, and the run ends by that; on every rank
        """
        loss = self._finite(self.mean(state).tolist(), state) if state.loss is None else state.loss
        if state.skipped:
            self.skipped.append(state.number)
        self._in_a_row = self._in_a_row + 1 if state.skipped else 0
        return loss

    def _finite(self, sums: Sequence[float], state: State) -> float:
        total, weight, asked = sums
        self.asked = asked > 0
        loss = total / weight if weight else math.nan
        if math.isfinite(loss):
            return float(loss)
        state.skipped = self._on_nan == "rollback" or (self._on_nan == "skip" and self._in_a_row + 1 < MOST_SKIPPED)
        if not state.skipped:
            rank = self._first_rank(any(not math.isfinite(float(term.total)) for term in state.terms))
            where = "summed over all ranks" if rank is None else f"first on rank {rank}"
            row = f", as was that of the {self._in_a_row} steps before, which were skipped" if self._in_a_row else ""
            raise ExecutionError(
                f"the loss of step {state.number} is {loss}, {where}{row}: lower the learning rate, clip the gradients "
                "(Job.clip_norm), or look at the data of this batch",
                code="loss.not-finite",
                step=state.number,
                rank=rank,
                loss=loss,
                skipped_before=self._in_a_row,
            )
        return float(loss)
