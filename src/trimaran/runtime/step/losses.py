"""The loss of a global batch from the losses of its microbatches, on one rank and over all.

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
With a `Job.loss_weight` a sum is divided by N t too.

A loss that is a sum over samples (`Job.loss_weight` is `SUMMED`) adds up as it is.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch
import torch.distributed as dist
from torch.utils import _pytree as pytree

from trimaran.base.errors import ExecutionError, InputError
from trimaran.base.job import Job
from trimaran.graph.behaviour import typical_weight
from trimaran.launch.stop_requests import REQUESTS
from trimaran.launch.world import World
from trimaran.runtime.step.on_nan import MOST_SKIPPED, OnNan
from trimaran.runtime.step.state import LossTerm, State
from trimaran.runtime.streams import fetch
from trimaran.user_code.batches import SUMMED, check_labels, split_batch


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
        root = _with_zeros(root, output)
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
        expected = split_batch(batch)[2]
        try:
            value = job.loss(output, expected)
        except (IndexError, RuntimeError):
            check_labels(output, expected)
            raise
    if isinstance(value, tuple) and len(value) == 2:
        total, weight = value
        total = _scalar(total, "the sum of the loss", output)
        term = LossTerm(total=total.detach().double(), weight=_on_device(weight, total.device), weighted=True)
        # As large as a mean where that is known to be made one: gradients are divided alike.
        return total if weigh is None else total / (of * typical_weight(job)), term
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
        if mean.requires_grad and not (weight > 0) | mean.isfinite():
            # Nor is the gradient of what the mean is multiplied by, such as a learned weight of a term.
            zeros = _with_zeros(nothing, output, besides=value)
            root = zeros if zeros.requires_grad else root
        return root, LossTerm(total=total, weight=weight, weighted=True)
    weight = _on_device(samples, mean.device)
    return mean * (samples / of), LossTerm(total=mean.detach().double() * samples, weight=weight, weighted=False)


def _with_zeros(root: torch.Tensor, output: Any, besides: Any = None) -> torch.Tensor:
    """A root whose backward gives zeros to the outputs of a model, but for one of them."""
    made = (one for one in pytree.tree_leaves(output) if isinstance(one, torch.Tensor) and one is not besides)
    return sum((one.sum() * 0.0 for one in made if one.requires_grad), start=root)


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
