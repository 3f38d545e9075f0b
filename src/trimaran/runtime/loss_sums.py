"""The loss and the metric of a batch: this rank's sums of them, and the loss that follows when all have been heard."""

import math
from collections.abc import Callable, Sequence

import torch

from trimaran.errors import ExecutionError
from trimaran.runtime.state import State


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


def finite_loss(sums: Sequence[float], state: State, first_rank: Callable[[bool], int | None]) -> float:
    """The loss of the global batch.

    Args:
        sums: sum and weight over all ranks
        state: of the step
        first_rank: the first rank on which something is true; all ranks are asked

    Raises:
        ExecutionError: it is not a finite number; on every rank
    """
    total, weight = sums
    loss = total / weight if weight else math.nan
    if not math.isfinite(loss):
        rank = first_rank(any(not math.isfinite(float(term.total)) for term in state.terms))
        where = "summed over all ranks" if rank is None else f"first on rank {rank}"
        raise ExecutionError(
            f"the loss of step {state.number} is {loss}, {where}: lower the learning rate, clip the gradients "
            "(Job.clip_norm), or look at the data of this batch",
            step=state.number,
            rank=rank,
            loss=loss,
        )
    return float(loss)
