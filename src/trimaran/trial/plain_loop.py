"""The training of a job as a plain loop in one process would do it, from any state and on the samples of any step.

The gradient of a global batch is computed in two ways that must agree wherever both are defined:

    one forward      of the whole global batch
    microbatches     those of a plan, replica after replica, each under the random state of its rank

It shares with the runtime the code that says which samples a batch has, and nothing that runs a step.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.graph.behaviour import for_evaluation
from trimaran.graph.optimizers import trained_parameters
from trimaran.runtime.data.batch_shares import BatchShares
from trimaran.runtime.data.datasets import dataset_length, make_dataset, make_evaluation_dataset
from trimaran.runtime.data.pipeline import Feed
from trimaran.runtime.parts.part import evaluating
from trimaran.runtime.precision import autocast, place_batch, place_model
from trimaran.runtime.step.losses import as_number
from trimaran.runtime.whole_state import WholeState
from trimaran.user_code.batches import (
    SUMMED,
    call_model,
    compute_loss,
    copied_batch,
    count_samples,
    join_batches,
    name_tensors,
    split_batch,
)
from trimaran.user_code.datasets import is_stream
from trimaran.user_code.model import call_waiting, count_gradient_hooks, hooks_wait, make_model
from trimaran.user_code.randomness import RandomState, derive_seed, find_moved


@dataclass(slots=True, kw_only=True)
class BatchGradients:
    """The gradient of a global batch.

    Attributes:
        of: by name; a parameter that had none is left out
        scale: for each, the sum of the norms of what the microbatches add to it: rounding is relative to that
        buffers: after the step, by name: those that the first replica has
        apart: of which another replica has other values
        loss: mean of the global batch
        weight: by which the sums of the microbatches were divided
        draws: a generator has moved
        coarsest: type of floating point of a parameter, or of a tensor that a backward needs, whose rounding is largest
    """

    of: dict[str, torch.Tensor] = field(default_factory=dict)
    scale: dict[str, float] = field(default_factory=dict)
    buffers: dict[str, torch.Tensor] = field(default_factory=dict)
    apart: list[str] = field(default_factory=list)
    loss: float = 0.0
    weight: float = 1.0
    draws: bool = False
    coarsest: torch.dtype = torch.float64


class PlainStep:
    """The gradient of a model as one process computes it.

    Args:
        job: what is trained
        model: on its device
        device: of this process
    """

    def __init__(self, job: Job, model: nn.Module, device: str) -> None:
        self._job, self.model, self._device = job, model, device
        hooks_wait(model.parameters())

    @property
    def mixes_samples(self) -> bool:
        """Whether samples of a batch change each other's outputs, so that other microbatches give another training."""
        return any(isinstance(module, _BatchNorm) and module.training for module in self.model.modules())

    def gradients(
        self,
        batches: Sequence[Sequence[Any]],
        states: Sequence[RandomState],
        *,
        moved: float = 0.0,
        seed: int = 0,
        goes_on: bool = False,
    ) -> BatchGradients:
        """The gradient of a global batch; model and random states are as before afterwards.

        Args:
            batches: microbatches of each replica
            states: of the ranks that run the replicas, before the step
            moved: change each weight by this share of it, up or down; 0: not
            seed: of up or down
            goes_on: leave what the forward of the first replica changes
        """
        if goes_on:
            return self._add_up(batches, states)
        with _kept(self.model, self._device):
            if moved:
                _move(self.model, moved, seed)
            return self._add_up(batches, states)

    def _add_up(self, batches: Sequence[Sequence[Any]], states: Sequence[RandomState]) -> BatchGradients:
        model, precision, found = self.model, self._job.precision, BatchGradients()
        start, first = [one.detach().clone() for one in _carried(model)], list[torch.Tensor]()
        total, weight, parts = 0.0, 0.0, sum(map(len, batches))
        for replica, (microbatches, state) in enumerate(zip(batches, states, strict=True)):
            state.restore(self._device)
            _fill(_carried(model), start)
            before = state.device
            for batch in microbatches:
                # A forward may write to it, and each batch is added up several times.
                placed = copied_batch(place_batch(batch, precision=precision, device=self._device))
                model.zero_grad(set_to_none=True)
                with autocast(precision, self._device), _noted(model, found):
                    one, its_weight = compute_loss(self._job, call_model(self._job, model, placed), placed)
                if self._job.loss_weight is SUMMED:
                    one, its_weight = one / its_weight, 1.0 / parts
                one.backward()
                total, weight = total + float(one.detach()), weight + float(its_weight)
                _add(_own_gradients(model), found)
            moved = before is not None and not torch.equal(before, torch.cuda.get_rng_state(self._device))
            found.draws = found.draws or moved or bool(find_moved(state.host))
            own = {name: buffer.clone().cpu() for name, buffer in model.named_buffers()}
            if replica == 0:
                found.buffers = own
                first = [one.detach().clone() for one in _carried(model)]
            elif microbatches:
                found.apart += [name for name, one in own.items() if not torch.equal(one, found.buffers[name])]
        _fill(_carried(model), first)
        found.loss, found.weight = total / weight, weight
        found.scale = {name: one / weight for name, one in found.scale.items()}
        self._call_hooks(found)
        found.of = {name: one.cpu() for name, one in found.of.items()}
        model.zero_grad(set_to_none=True)
        return found

    @torch.no_grad()
    def _call_hooks(self, found: BatchGradients) -> None:
        """Divide gradients by the weight, and have hooks on them called as the backward of the whole batch does."""
        for name, parameter in self.model.named_parameters():
            parameter.grad = found.of[name].div_(found.weight) if name in found.of else None
            if parameter.grad is not None and count_gradient_hooks(parameter):
                before = float(wide(parameter.grad).norm())
                call_waiting([parameter])
                found.of[name] = parameter.grad
                found.scale[name] *= float(wide(parameter.grad).norm()) / before if before else 1.0


class PlainTraining(PlainStep):
    """One process that could train the job.

    Args:
        job: what is trained
        replicas: of the plan whose microbatches it uses
        microbatches: of each replica
        device: of this rank

    Raises:
        InputError: the model communicates by itself
    """

    def __init__(self, job: Job, *, replicas: int, microbatches: int, device: str) -> None:
        super().__init__(job, place_model(make_model(job), precision=job.precision, device=device), device)
        self._dataset = make_dataset(job)
        if any(isinstance(module, nn.SyncBatchNorm) for module in self.model.modules()):
            raise InputError(
                "the model has a SyncBatchNorm, which waits for other ranks, so that no process can run it "
                "alone: there is nothing to verify it with"
            )
        self._feeds = [_feed(job, self._dataset, replicas, microbatches, replica) for replica in range(replicas)]
        self._whole = _feed(job, self._dataset, 1, 1, 0)
        trained = trained_parameters(self.model)
        self.optimizer = job.optimizer(trained) if trained else None
        own = {id(one) for one in self.model.parameters()}
        if any(id(one) not in own for group in getattr(self.optimizer, "param_groups", ()) for one in group["params"]):
            raise InputError(
                "the optimizer updates what is no parameter of the model, such as those of the loss, and the one "
                "process that the run is compared with would update it as well: put it into the model",
                code="verify.foreign-parameters",
            )
        self.schedule = job.lr_schedule(self.optimizer) if job.lr_schedule and self.optimizer else None

    def is_seeded(self) -> bool:
        """Whether another call of the job's factory makes the same model."""
        other = make_model(self._job)
        own = self.model.state_dict()
        return all(torch.equal(tensor, own[name].to(tensor)) for name, tensor in other.state_dict().items())

    def put(self, state: WholeState) -> None:
        """Go on from a state.

        Args:
            state: parameters, buffers, and what the optimizer keeps, where it is on its way
        """
        with torch.no_grad():
            for name, parameter in self.model.named_parameters():
                parameter.copy_(state.parameters[name])
            for name, buffer in self.model.named_buffers():
                if name in state.buffers:
                    buffer.copy_(state.buffers[name])
            for name, parameter in self.model.named_parameters():
                own = {} if self.optimizer is None else self.optimizer.state.get(parameter, {})
                for key, value in state.optimizer.get(name, {}).items():
                    if isinstance(value, torch.Tensor) and isinstance(own.get(key), torch.Tensor):
                        own[key].copy_(value)

    def microbatches(self, epoch: int, index: int) -> list[list[Any]]:
        """The microbatches of each replica of a global batch.

        Args:
            epoch: number of the epoch, from 0
            index: number of the global batch in it, from 0
        """
        return [_load(feed, epoch, index) for feed in self._feeds]

    def whole_batch(self, epoch: int, index: int) -> list[list[Any]]:
        """A global batch as one batch of one replica."""
        return [_load(self._whole, epoch, index)]

    def update(self, gradients: Mapping[str, torch.Tensor], *, follows: bool = False) -> None:
        """Clip gradients, and update the parameters by them.

        Args:
            gradients: of the global batch, by name, in host memory
            follows: the schedule is stepped at the end of an epoch
        """
        clip = self._job.clip_norm
        if clip is not None:
            norm = sum(float(wide(one).square().sum()) for one in gradients.values()) ** 0.5
            # As torch clips: the small number keeps a norm of zero from being divided by.
            scale = min(1.0, clip / (norm + 1e-6))
            gradients = {name: one * scale for name, one in gradients.items()}
        for name, parameter in self.model.named_parameters():
            parameter.grad = gradients[name].to(parameter) if name in gradients else None
        if self.optimizer is not None:
            self.optimizer.step()
        if self.schedule is not None and not follows:
            self.schedule.step()
        if self.optimizer is not None:
            self.optimizer.zero_grad()

    def end_epoch(self, metric: float) -> None:
        """Step a schedule that follows a metric."""
        if self.schedule is not None:
            self.schedule.step(metric)  # type: ignore[arg-type]  # ReduceLROnPlateau takes one

    def score(self) -> float:
        """The metric of `first_evaluated`."""
        job, device = for_evaluation(self._job), self._device
        dataset = first_evaluated(job)
        shares = BatchShares(
            torch.arange(dataset_length(dataset)), batch=job.global_batch_size, replicas=1, microbatches=1, replica=0
        )
        place = partial(place_batch, precision=job.precision, device=device)
        seed = derive_seed(job.seed, "evaluation")
        ((share,),) = [list(shares.load(range(1), dataset, job, seed=seed, place=place))]
        with torch.no_grad(), evaluating(self.model), autocast(job.precision, device):
            batch = share.microbatch(0)
            output = call_model(job, self.model, batch)
            target = split_batch(batch, own_loss=job.loss is None)[2]
        return as_number(job.metric(output, target))  # type: ignore[misc]  # as there is first_evaluated

    def take_options(self, options: Mapping[str, Mapping[str, Any]]) -> None:
        """Set the numbers by which the optimizer updates.

        Args:
            options: of the group of each parameter, by its name
        """
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        for group in self.optimizer.param_groups if self.optimizer is not None else ():
            for parameter in group["params"]:
                group.update({key: one for key, one in options[names[id(parameter)]].items() if key in group})

    def close(self) -> None:
        """End the loading of data."""
        for feed in (*self._feeds, self._whole):
            feed.close()


def _feed(job: Job, dataset: Any, replicas: int, microbatches: int, replica: int) -> Feed:
    # On the host, to be placed when it is used.
    return Feed(
        job,
        replicas=replicas,
        microbatches=microbatches,
        replica=replica,
        reads=True,
        # A stream that keeps its place is gone through by one feed.
        dataset=None if is_stream(dataset) else dataset,
    )


def first_evaluated(job: Job) -> Any:
    """The samples of the first batch of an evaluation; None: there is none, or they come in a stream.

    Args:
        job: has the metric and the data
    """
    if job.metric is None or job.evaluation_dataset is None:
        return None
    dataset = make_evaluation_dataset(job)
    if is_stream(dataset):
        return None
    return torch.utils.data.Subset(dataset, range(min(dataset_length(dataset), job.global_batch_size)))


def join(batches: Sequence[Sequence[Any]]) -> Any:
    """The microbatches of all replicas as one batch; None: there is none.

    Args:
        batches: of each replica

    Raises:
        InputError: they do not show how many samples they have
    """
    parts = [one for microbatches in batches for one in microbatches]
    return join_batches(parts, [count_samples(one) for one in parts])


def joins(job: Job, *, replicas: int, microbatches: int) -> bool:
    """Whether the microbatches of the first batch, joined, are the batch: collate looks at no sizes. Data are read.

    Args:
        job: what is trained
        replicas: of the plan
        microbatches: of each replica
    """
    try:
        dataset = make_dataset(job)
        feeds = [_feed(job, dataset, replicas, microbatches, replica) for replica in range(replicas)]
        ((whole,),) = [_load(_feed(job, dataset, 1, 1, 0), 0, 0)]
        joined = name_tensors(join([_load(feed, 0, 0) for feed in feeds]))
        named = name_tensors(whole)
        return joined.keys() == named.keys() and all(torch.equal(one, joined[key]) for key, one in named.items())
    except Exception:  # noqa: BLE001  # what is wrong with it is told where it is compared
        return False


def _load(feed: Feed, epoch: int, index: int) -> list[Any]:
    feed.go_to(epoch, index)
    share = next(iter(feed.shares()))
    return [share.microbatch(number) for number, size in enumerate(share.sizes) if size and share.counts]


def wide(tensor: torch.Tensor) -> torch.Tensor:
    """The real numbers of a tensor in 64 bits: of a complex one both parts."""
    return (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).double()


@contextmanager
def _noted(model: nn.Module, found: BatchGradients) -> Iterator[None]:
    """Write down the type of floating point whose rounding is largest."""

    def note(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_floating_point():
            found.coarsest = max(found.coarsest, tensor.dtype, key=lambda one: torch.finfo(one).eps)
        return tensor

    for parameter in model.parameters():
        note(parameter)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        yield


def _carried(model: nn.Module) -> list[torch.Tensor]:
    """What a forward may change: buffers, and parameters that are not trained."""
    return [*model.buffers(), *(one for one in model.parameters() if not one.requires_grad)]


@torch.no_grad()
def _fill(tensors: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    for tensor, value in zip(tensors, values, strict=True):
        tensor.copy_(value)


def _own_gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name: parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
        for name, parameter in model.named_parameters()
        if parameter.grad is not None
    }


def _add(own: Mapping[str, torch.Tensor], found: BatchGradients) -> None:
    for name, gradient in own.items():
        found.scale[name] = found.scale.get(name, 0.0) + float(wide(gradient).norm())
        if name in found.of:
            found.of[name] += gradient
        else:
            found.of[name] = gradient.clone()


def _move(model: nn.Module, share: float, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                signs = torch.randint(0, 2, parameter.shape, generator=generator) * 2 - 1
                parameter.mul_(1 + share * signs.to(parameter))


@contextmanager
def _kept(model: nn.Module, device: str) -> Iterator[None]:
    """Put parameters, buffers and random states back."""
    random = RandomState.of(device)
    saved = [(tensor, tensor.detach().clone()) for tensor in (*model.parameters(), *model.buffers())]
    try:
        yield
    finally:
        random.restore(device)
        for tensor, value in saved:
            _fill([tensor], [value])
