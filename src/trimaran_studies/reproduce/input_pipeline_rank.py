"""Runs the three remedies on one rank: each case for a few seconds, one after the other, with timed steps.

Cases of "replicate-and-scatter" run `Star`; cases of "ddp" are ordinary plans, which the runtime runs with their input
pipeline and compression. Imports torch.

`Star` is replicate-and-scatter with processes: rank 0 stands for the host and the first GPU, the links between ranks
for the links between GPUs. `torch.nn.DataParallel` needs GPUs; its transfers between devices are transfers between
ranks here:

    rank 0   load                    forward           loss             backward             update
                  └ shares ┐ weights ┐        ┌ outputs ┘ └ gradients ┐          ┌ gradients ┘
    others                 └         └ forward┘                       └ backward ┘

With `split` every rank reads its share; with `preload` workers load ahead; with `compress` weights and gradients are
sent as 16 bits, and the rounding error of gradients is added to the gradients of the next step (error feedback).

Source:
    torch/nn/parallel/data_parallel.py of PyTorch 2.13, which has this order of transfers.

The remedies run on two jobs: one that waits for data, one that waits for gradient communication.

reads   images from slow storage, compressed, and twice as large as the network's input; a small network
wire    vectors in memory; a network with many weights and little computation
"""

import functools
import itertools
import time
import zlib
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, TensorDataset, default_collate

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.graph.optimizers import make_optimizer, trained_parameters
from trimaran.launch.world import World
from trimaran.program.strategy import Strategy
from trimaran.program.types import Program
from trimaran.runtime.data.datasets import dataset_length
from trimaran.runtime.data.orders import sample_order
from trimaran.runtime.executor import Executor
from trimaran.user_code.model import make_model
from trimaran_studies.reproduce.dgx1_rank import agree_on_steps
from trimaran_studies.reproduce.torch_data_parallel import CHUNK_BYTES, Remedies


class Star:
    """One rank's part in training through rank 0.

    Args:
        job: of batches `(input, target)` that all ranks share evenly, without state of its optimizer to load
        world: this rank
        remedies: enabled
        workers: number of them that load ahead, for each rank that reads

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
        """The model; on rank 0 with the current weights."""
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
        """Batches, or this rank's shares of them, with the samples in the same order as in every plan."""
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
        """Inputs and targets of this rank; on rank 0 also all targets, where it reads the whole batch."""
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
        """Send weights and buffers of rank 0 to all ranks, one group of tensors after the other."""
        with torch.no_grad():
            for group in self._held:
                flat = _flat(group)
                sent = flat.bfloat16() if self._on.compress else flat
                dist.broadcast(sent, src=0)
                if not self._first:
                    _unpack(sent.to(flat.dtype), group)

    def _backward(self, outputs: Tensor, targets: Tensor, all_targets: Tensor | None) -> float:
        """Compute the loss of all outputs on rank 0, and each rank's backward from the gradients that it returns."""
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
        """The tensors of all ranks, concatenated, on rank 0."""
        parts = [torch.empty_like(mine) for _ in range(self._world.size)] if self._first else None
        dist.gather(mine.contiguous(), parts, dst=0)
        return None if parts is None else torch.cat(parts)

    def _reduce(self) -> None:
        """Sum gradients on rank 0, one group of tensors after the other."""
        with torch.no_grad():
            for group, lost in zip(self._trained, self._lost, strict=True):
                flat = _flat([_gradient(one) for one in group])
                self._sum(flat, lost)
                if self._first:
                    _unpack(flat, [_gradient(one) for one in group])

    def _sum(self, flat: Tensor, lost: Tensor) -> None:
        """Rank 0 adds the gradients of the other ranks to its own; they keep the rounding error for the next step."""
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
    """Groups of tensors that are sent together: of one type, up to the size of a chunk."""
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


READ_S = 2e-3
"""Time that a reader waits for the storage, for each image [s]."""

_BATCHES = 96
_CLASSES = 10
_STORED_PIXELS, _PIXELS = 128, 64
_FEATURES, _WIDTH = 512, 1024


class PackedImages(Dataset[Any]):
    """Images that are read slowly, unpacked and made smaller.

    Args:
        samples: number of images
        read_s: time that each waits for the storage [s]
    """

    def __init__(self, samples: int, read_s: float = READ_S) -> None:
        self._samples, self._read_s = samples, read_s
        ramp = torch.arange(_STORED_PIXELS, dtype=torch.float32)
        image = (ramp[:, None] * ramp[None, :] / 64).to(torch.uint8).expand(3, -1, -1)
        self._packed = zlib.compress(image.contiguous().numpy().tobytes(), level=6)

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self._read_s)
        raw = bytearray(zlib.decompress(self._packed))
        image = torch.frombuffer(raw, dtype=torch.uint8).view(1, 3, _STORED_PIXELS, _STORED_PIXELS)
        small = functional.interpolate(image.float().div_(255), size=_PIXELS, mode="bilinear", antialias=True)
        return small[0] + index % 7, index % _CLASSES


def _small_network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(64, _CLASSES),
    )


def _wide_network() -> nn.Module:
    return nn.Sequential(
        nn.Linear(_FEATURES, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _WIDTH),
        nn.ReLU(),
        nn.Linear(_WIDTH, _FEATURES),
        nn.ReLU(),
        nn.Linear(_FEATURES, _CLASSES),
    )


def _reads_job() -> Job:
    batch = 32
    return Job(
        name="reads",
        model=_small_network,
        loss=functional.cross_entropy,
        optimizer=_sgd,
        dataset=lambda: PackedImages(_BATCHES * batch),
        global_batch_size=batch,
        drop_last=True,
    )


def _wire_job() -> Job:
    batch = 64

    def vectors() -> TensorDataset:
        generator = torch.Generator().manual_seed(0)
        count = _BATCHES * batch
        return TensorDataset(
            torch.randn(count, _FEATURES, generator=generator), torch.randint(_CLASSES, (count,), generator=generator)
        )

    return Job(
        name="wire",
        model=_wide_network,
        loss=functional.cross_entropy,
        optimizer=_sgd,
        dataset=vectors,
        global_batch_size=batch,
        drop_last=True,
    )


_sgd = functools.partial(torch.optim.SGD, lr=0.01, momentum=0.9)

TRIED_JOBS: dict[str, Callable[[], Job]] = {"reads": _reads_job, "wire": _wire_job}
"""The jobs, by name; the same in every process."""


def tried_job(name: str) -> Job:
    """One of the jobs.

    Args:
        name: of `TRIED_JOBS`

    Raises:
        InputError: another name
    """
    if name not in TRIED_JOBS:
        raise InputError(f'"{name}" is not measured here; there are {", ".join(TRIED_JOBS)}', network=name)
    return TRIED_JOBS[name]()


WARM_UP = 6
"""Steps before the timed ones, which use up the batches that workers loaded before the first step."""

LEAST_STEPS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedCase:
    """A case that a rank runs.

    Attributes:
        key: of its times in the result
        remedies: of the star; None for a plan
        workers: of the star, that load ahead
        strategy: of a plan
        programs: of its training step and its evaluation
    """

    key: str
    remedies: Remedies | None = None
    workers: int = 0
    strategy: Strategy | None = None
    programs: tuple[Program, Program] | None = None


Tried = Mapping[str, Mapping[str, Sequence[float]]]
"""Seconds of steps, by job and case."""


def try_remedies(world: World, wanted: Mapping[str, Sequence[TriedCase]], steps: int) -> Tried:
    """Run every case of every job.

    Args:
        world: this rank; all ranks call this with the same arguments
        wanted: cases by job
        steps: minimum number of timed steps; fewer where steps are long
    """
    found: dict[str, dict[str, Sequence[float]]] = {}
    cases = [(name, case) for name, of_job in wanted.items() for case in of_job]
    for number, (name, case) in enumerate(cases):
        if world.rank == 0:
            world.report({"measuring": f"{name}, {case.key}", "done": number, "total": len(cases)})
        found.setdefault(name, {})[case.key] = _try(world, tried_job(name), case, steps)
    return found


def _try(world: World, job: Job, case: TriedCase, steps: int) -> tuple[float, ...]:
    if case.strategy is None or case.programs is None:
        star = Star(job, world, case.remedies or Remedies(), workers=case.workers)
        try:
            return _time(world, star.step, steps)
        finally:
            star.close()
    program, evaluation = case.programs
    executor = Executor(job, case.strategy, program, evaluation, world, model=make_model(job))
    executor.recording = False
    shares = _endless(executor)
    try:
        return _time(world, lambda: executor.step(next(shares)), steps)
    finally:
        shares.close()
        executor.close()


def _endless(executor: Executor) -> Generator[Any]:
    feed = executor.feed()
    while True:
        yield from feed.shares()


def _time(world: World, step: Callable[[], float], steps: int) -> tuple[float, ...]:
    """Times of consecutive steps by this rank's clock [s]."""
    dist.barrier()
    started = time.perf_counter()
    for _ in range(WARM_UP):
        step()
    slow_s = (time.perf_counter() - started) / WARM_UP
    count = max(LEAST_STEPS, min(steps, 4 * agree_on_steps(world, slow_s)))
    starts = [time.perf_counter()]
    for _ in range(count):
        step()
        starts.append(time.perf_counter())
    return tuple(after - before for before, after in itertools.pairwise(starts))
