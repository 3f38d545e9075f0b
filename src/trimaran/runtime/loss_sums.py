"""The loss and the metric of a batch: this rank's sums of them, and the loss that follows when all have been heard."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from trimaran.errors import ExecutionError, InputError
from trimaran.runtime.state import State
from trimaran.runtime.streams import fetch
from trimaran.runtime.world import World


def own_loss(state: State, device: str) -> torch.Tensor:
    """Sum and weight of the losses of this rank's microbatches; zeros where another rank has them.

    Args:
        state: of the step
        device: where the sums are wanted
    """
    if not state.terms:
        return torch.zeros(2, dtype=torch.float64, device=device)
    if len(state.terms) == 1:
        return torch.stack([state.terms[0].total, state.terms[0].weight])
    return torch.stack(
        [
            torch.stack([term.total for term in state.terms]).sum(),
            torch.stack([term.weight for term in state.terms]).sum(),
        ]
    )


def own_metric(state: State, device: str) -> torch.Tensor:
    """Sum over the samples of the metric of this rank's microbatches, and their number, in fp64.

    Args:
        state: of the evaluation of one batch
        device: where the sums are wanted
    """
    total = math.fsum(value * samples for value, samples in state.metrics)
    samples = sum(samples for _, samples in state.metrics)
    return torch.tensor([total, float(samples)], dtype=torch.float64, device=device)


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


class LossSums:
    """Losses and metrics over all ranks, as far as this rank knows them.

    Args:
        world: this process's
        first_rank: the first rank on which something is true; all ranks are asked
    """

    def __init__(self, world: World, first_rank: Callable[[bool], int | None]) -> None:
        self._world = world
        self._first_rank = first_rank

    def mean(self, state: State) -> torch.Tensor:
        """Sum and weight of the loss over all ranks, where they have been added up; else of this one.

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
        return (own_metric(state, self._world.device) if state.mean is None else state.mean).cpu()

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

    def check(self, state: State) -> None:
        """See that the loss is a finite number, before weights are updated by it.

        Args:
            state: of a step whose loss has been added up

        Raises:
            ExecutionError: it is not; on every rank
        """
        sums = self.mean(state).tolist() if state.fetched is None else state.fetched()
        self._finite(sums, state)

    def loss(self, state: State) -> float:
        """The loss of the global batch, on every rank; also waits for a GPU to have done the step.

        Args:
            state: of a step whose loss has been added up

        Raises:
            ExecutionError: it is not a finite number; on every rank
        """
        return self._finite(self.mean(state).tolist(), state)

    def _finite(self, sums: Sequence[float], state: State) -> float:
        total, weight = sums
        loss = total / weight if weight else math.nan
        if not math.isfinite(loss):
            rank = self._first_rank(any(not math.isfinite(float(term.total)) for term in state.terms))
            where = "summed over all ranks" if rank is None else f"first on rank {rank}"
            raise ExecutionError(
                f"the loss of step {state.number} is {loss}, {where}: lower the learning rate, clip the gradients "
                "(Job.clip_norm), or look at the data of this batch",
                code="loss.not-finite",
                step=state.number,
                rank=rank,
                loss=loss,
            )
        return float(loss)
