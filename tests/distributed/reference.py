"""One process that trains plainly, on the samples and microbatches of a plan: what every plan must equal.

It uses nothing of the runtime but the order of the samples, which is what it must share with it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.data import default_collate

from trimaran.base.job import Job
from trimaran.runtime.data.orders import sample_order


@dataclass(slots=True, kw_only=True)
class Reference:
    """Losses by step, and the model at the end."""

    losses: list[float] = field(default_factory=list)
    model: nn.Module


def train_plainly(job: Job, steps: int, *, replicas: int = 1, microbatches: int = 1) -> Reference:
    """Train in a plain loop.

    Microbatch by microbatch, replica after replica, gradients adding up. Batch norm normalizes each microbatch by
    itself, and its running statistics are those that replica 0 sees, because that is what data parallelism does.
    """
    torch.manual_seed(job.seed)
    dtype = torch.float64 if job.precision == "fp64" else torch.float32
    model = job.model().to(dtype)
    optimizer = job.optimizer(parameters_of(model))
    schedule = job.lr_schedule(optimizer) if job.lr_schedule else None
    found = Reference(model=model)
    for indices in _batches(job, steps):
        found.losses.append(add_gradients(job, model, indices, replicas, microbatches, dtype))
        if job.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), job.clip_norm)
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
    return found


class _Parameters:
    """What a job's optimizer is given: iterates as `model.parameters()`, and has names as the model has."""

    def __init__(self, model: nn.Module) -> None:
        self.named_parameters = model.named_parameters
        self._model = model

    def __iter__(self) -> Iterator[nn.Parameter]:
        return self._model.parameters()


def parameters_of(model: nn.Module) -> Any:
    """What the optimizer of a plain loop is given."""
    return _Parameters(model)


def microbatches_of(job: Job, steps: int, replicas: int, microbatches: int) -> Iterator[list[tuple[Any, Any]]]:
    """The microbatches of each global batch in fp32, replica after replica."""
    dataset = job.dataset()
    for indices in _batches(job, steps):
        shares = torch.tensor(indices).tensor_split(replicas)
        parts = [part.tolist() for share in shares for part in share.tensor_split(microbatches) if len(part)]
        yield [_collate([dataset[index] for index in part], torch.float32) for part in parts]


def evaluate_plainly(job: Job, model: nn.Module) -> float:
    """The metric of the whole data set, as one batch."""
    dtype = next(model.parameters()).dtype
    dataset = job.evaluation_dataset()  # type: ignore[misc]
    inputs, target = _collate([dataset[index] for index in range(len(dataset))], dtype)
    model.eval()
    with torch.no_grad():
        return job.metric(model(inputs), target)  # type: ignore[misc]


def _batches(job: Job, steps: int) -> Iterator[list[int]]:
    samples = len(job.dataset())  # type: ignore[arg-type]
    step = epoch = 0
    while True:
        order = sample_order(samples, seed=job.seed, epoch=epoch).tolist()
        for start in range(0, samples, job.global_batch_size):
            yield order[start : start + job.global_batch_size]
            step += 1
            if step == steps:
                return
        epoch += 1


def add_gradients(
    job: Job, model: nn.Module, indices: list[int], replicas: int, microbatches: int, dtype: torch.dtype
) -> float:
    """Add the gradients of one global batch to those of the model; the loss."""
    parts = max(1, min(microbatches, len(indices) // replicas))
    totals, weights = [], []
    running: list[torch.Tensor] = []
    for replica, share in enumerate(torch.tensor(indices).tensor_split(replicas)):
        for microbatch in share.tensor_split(parts) if len(share) else ():
            total, weight = _loss(job, model, microbatch.tolist(), dtype)
            totals.append(total)
            weights.append(weight)
        if replica == 0:
            running = [buffer.clone() for buffer in model.buffers()]
    loss = torch.stack(totals).sum() / sum(weights)
    loss.backward()
    for buffer, of_replica_0 in zip(model.buffers(), running, strict=True):
        buffer.copy_(of_replica_0)
    return loss.item()


def _loss(job: Job, model: nn.Module, indices: list[int], dtype: torch.dtype) -> tuple[torch.Tensor, float]:
    dataset = job.dataset()
    inputs, target = _collate([dataset[index] for index in indices], dtype)
    loss: Callable[..., Any] = job.loss  # type: ignore[assignment]
    value = loss(model(inputs), target)
    if isinstance(value, tuple):
        return value[0], float(value[1])
    return value * len(indices), float(len(indices))


def _collate(samples: list[Any], dtype: torch.dtype) -> tuple[Any, Any]:
    batch = default_collate(samples)
    if isinstance(batch, dict):
        both = {name: _cast(tensor, dtype) for name, tensor in batch.items()}
        return both, both
    inputs, target = (_cast(tensor, dtype) for tensor in batch)
    return inputs, target


def _cast(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    return tensor.to(dtype) if tensor.is_floating_point() else tensor
