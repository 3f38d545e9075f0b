"""Replicate-and-scatter by processes: rank 0 stands for the host and for the first GPU, links for the links of GPUs.

`torch.nn.DataParallel` needs GPUs; what moves between devices there moves between ranks here, and nothing else does:

    rank 0   load                    forward           loss             backward             update
                  └ shares ┐ weights ┐        ┌ outputs ┘ └ gradients ┐          ┌ gradients ┘
    others                 └         └ forward┘                       └ backward ┘

With `split` every rank reads its own share; with `preload` workers load ahead; with `compress` weights and gradients
are sent as 16 bits, and what gradients lose on the way is added to the next step's. Imports torch.

Source:
    torch/nn/parallel/data_parallel.py of PyTorch 2.13, whose order of moves this is.
"""

import itertools
from collections.abc import Generator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DataLoader, default_collate

from trimaran.costs.replicate import Remedies
from trimaran.costs.replicate_machine import CHUNK_BYTES
from trimaran.errors import InputError
from trimaran.graph.optimizers import make_optimizer, trained_parameters
from trimaran.graph.sample import make_model
from trimaran.job import Job
from trimaran.runtime.feed import dataset_length, sample_order
from trimaran.runtime.world import World


class Star:
    """One rank's part in training through rank 0.

    Args:
        job: of batches `(input, target)` that all ranks share evenly, without state of its optimizer to load
        world: this rank
        remedies: switched on
        workers: that load ahead, of each rank that reads

    Raises:
        InputError: the ranks cannot share a batch evenly
    """

    def __init__(self, job: Job, world: World, remedies: Remedies, *, workers: int = 2) -> None:
        if job.global_batch_size % world.size:
            raise InputError(
                f"{world.size} ranks cannot share a batch of {job.global_batch_size} evenly",
                batch=job.global_batch_size,
                ranks=world.size,
            )
        self._job, self._world, self._on = job, world, remedies
        self._first = world.rank == 0
        self._model = make_model(job)
        trained = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        # Only the first device updates.
        self._optimizer = make_optimizer(job, trained_parameters(self._model)) if self._first else None
        self._trained = _groups(trained)
        held = [*self._model.parameters(), *self._model.buffers()]
        self._held = _groups([tensor for tensor in held if tensor.is_floating_point()])
        self._lost = [torch.zeros(sum(one.numel() for one in group)) for group in self._trained]
        dataset = job.dataset()
        self._share = tuple(
            torch.empty((job.global_batch_size // world.size, *part.shape[1:]), dtype=part.dtype)
            for part in default_collate([dataset[0]])
        )
        self._reads = self._first or remedies.split
        self._batches = self._read(dataset, workers)

    @property
    def model(self) -> nn.Module:
        """With the weights of now on rank 0."""
        return self._model

    def step(self) -> float:
        """One global batch.

        Returns:
            Its mean loss on rank 0; 0 on the others.
        """
        inputs, targets, all_targets = self._shares()
        self._replicate()
        outputs = self._model(inputs)
        loss = self._backward(outputs, targets, all_targets)
        self._reduce()
        if self._optimizer is not None:
            self._optimizer.step()
        self._model.zero_grad()
        return loss

    def close(self) -> None:
        """End the workers."""
        self._batches.close()

    def _read(self, dataset: Any, workers: int) -> Generator[Any]:
        """Batches, or this rank's shares of them, in the order in which every plan visits the samples."""
        batch, ranks = self._job.global_batch_size, self._world.size
        samples = dataset_length(dataset)
        for epoch in itertools.count():
            order = sample_order(samples, seed=self._job.seed, epoch=epoch)
            parts = [order[start : start + batch] for start in range(0, len(order) - batch + 1, batch)]
            if self._on.split:
                parts = [part.chunk(ranks)[self._world.rank] for part in parts]
            yield from DataLoader(
                dataset,
                batch_sampler=[part.tolist() for part in parts],
                collate_fn=self._job.collate,
                num_workers=workers if self._on.preload else 0,
                generator=torch.Generator().manual_seed(self._job.seed),
            )

    def _shares(self) -> tuple[Tensor, Tensor, Tensor | None]:
        """Inputs and targets of this rank, and on rank 0 all targets where it has them."""
        if self._on.split:
            inputs, targets = next(self._batches)
            return inputs, targets, None
        whole = next(self._batches) if self._reads else (None, None)
        for mine, part in zip(self._share, whole, strict=True):
            parts = None if part is None else [one.contiguous() for one in part.chunk(self._world.size)]
            dist.scatter(mine, parts, src=0)
        inputs, targets = self._share
        return inputs, targets, whole[1]

    def _replicate(self) -> None:
        """Weights and buffers of rank 0 to all, a group of tensors after the other."""
        with torch.no_grad():
            for group in self._held:
                flat = _flat(group)
                sent = flat.bfloat16() if self._on.compress else flat
                dist.broadcast(sent, src=0)
                if not self._first:
                    _unpack(sent.to(flat.dtype), group)

    def _backward(self, outputs: Tensor, targets: Tensor, all_targets: Tensor | None) -> float:
        """The loss of all outputs on rank 0, and each rank's backward from what comes back."""
        found = self._gathered(outputs.detach())
        if self._on.split:
            all_targets = self._gathered(targets)
        loss, parts = 0.0, None
        if found is not None:
            leaf = found.requires_grad_()
            value = self._job.loss(leaf, all_targets)  # type: ignore[misc]  # the jobs here have one
            loss = float(value.detach())
            (gradient,) = torch.autograd.grad(value, leaf)
            parts = [part.contiguous() for part in gradient.chunk(self._world.size)]
        mine = torch.empty_like(outputs)
        dist.scatter(mine, parts, src=0)
        outputs.backward(mine)
        return loss

    def _gathered(self, mine: Tensor) -> Tensor | None:
        """What all ranks have, one below the other: on rank 0."""
        parts = [torch.empty_like(mine) for _ in range(self._world.size)] if self._first else None
        dist.gather(mine.contiguous(), parts, dst=0)
        return None if parts is None else torch.cat(parts)

    def _reduce(self) -> None:
        """Gradients summed on rank 0, a group of tensors after the other."""
        with torch.no_grad():
            for group, lost in zip(self._trained, self._lost, strict=True):
                flat = _flat([_gradient(one) for one in group])
                self._sum(flat, lost)
                if self._first:
                    _unpack(flat, [_gradient(one) for one in group])

    def _sum(self, flat: Tensor, lost: Tensor) -> None:
        """Rank 0 gets what the others send and adds it to its own; what they lose by that is left for the next step."""
        if not self._first:
            sent = flat
            if self._on.compress:
                flat += lost.to(flat.dtype)
                sent = flat.bfloat16()
                lost.copy_(flat - sent)
            dist.gather(sent, None, dst=0)
            return
        own = torch.empty_like(flat, dtype=torch.bfloat16) if self._on.compress else flat
        parts = [torch.empty_like(own) for _ in range(self._world.size)]
        dist.gather(own, parts, dst=0)
        for part in parts[1:]:
            flat += part


def _gradient(parameter: Tensor) -> Tensor:
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _groups(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Tensors that are sent as one: of one type, up to the size of a chunk."""
    groups: list[list[Tensor]] = []
    nbytes = 0
    for tensor in tensors:
        if groups and tensor.dtype == groups[-1][0].dtype and nbytes + tensor.nbytes <= CHUNK_BYTES:
            groups[-1].append(tensor)
            nbytes += tensor.nbytes
        else:
            groups.append([tensor])
            nbytes = tensor.nbytes
    return groups


def _flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])


def _unpack(flat: Tensor, into: Sequence[Tensor]) -> None:
    for tensor, part in zip(into, flat.split([tensor.numel() for tensor in into]), strict=True):
        tensor.copy_(part.view_as(tensor))
