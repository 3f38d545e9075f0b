"""Jobs that are others on each rank, and jobs whose update goes by more than gradients, each beside its plain loop."""

import math
import os
import random
import time
from typing import Any

import torch
import torch.distributed as dist
from tests.field.entry import Family
from tests.field.strangers import CLASSES, SAMPLES, WIDTH, images, job, mlp, numbers, points
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset, Subset, default_collate

from trimaran.base.job import Job

APART = Family("apart")
apart = APART.entry


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


def accuracy(output: Tensor, target: Tensor) -> float:
    return float((output.argmax(1) == target).double().mean())


# --------------------------------------------------------------------------------------------------------- other ranks


@apart("evaluation data of a rank")
def evaluation_by_rank() -> Job:
    return job(mlp, evaluation_dataset=lambda: Subset(points(), range(rank(), SAMPLES, world())), metric=accuracy)


@apart("collate asks for the rank")
def collate_by_rank() -> Job:
    def collate(samples: list[Any]) -> Any:
        x, y = default_collate(samples)
        return x + rank(), y

    return job(mlp, collate=collate)


@apart("a metric that adds up over ranks, as scripts for DDP have it")
def metric_over_ranks() -> Job:
    def metric(output: Tensor, target: Tensor) -> float:
        counted = torch.tensor([float((output.argmax(1) == target).sum()), float(len(target))])
        if dist.is_initialized():
            dist.all_reduce(counted)
        return float(counted[0] / counted[1])

    return job(mlp, evaluation_dataset=points, metric=metric)


class Ordered(nn.Module):
    """Reads its input in an order that is another one in each process, as that of a set of words is."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.order = mlp(), random.Random(os.getpid()).sample(range(WIDTH), WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x[:, self.order])  # type: ignore[no-any-return]


@apart("a model that numbers its inputs by a set")
def ordered_by_process() -> Job:
    return job(Ordered)


@apart("a factory that wraps the model where there is a group, as scripts for DDP have it")
def wrapped_in_group() -> Job:
    return job(lambda: nn.parallel.DistributedDataParallel(mlp().double()) if dist.is_initialized() else mlp())


def by_rate(rate: Any) -> Job:
    return job(mlp, lr_schedule=lambda optimizer: LambdaLR(optimizer, rate))


@apart("a rate that is drawn", own_optimizer=True)
def rate_by_chance() -> Job:
    return by_rate(lambda step: random.uniform(0.5, 1.5))


@apart("a rate by the time", own_optimizer=True)
def rate_by_clock() -> Job:
    start = time.time()
    return by_rate(lambda step: max(0.1, 1 - (time.time() - start) / 100))


@apart("a callback fills the data set by what a process sees (replay)")
def replayed() -> Job:
    kept = [points()[number] for number in range(SAMPLES)]

    class Kept(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            return kept[index]

    def on_step(session: Any, step: int, metrics: Any) -> None:
        kept[step] = (torch.full((WIDTH,), math.sin(os.getpid())), torch.tensor(step % CLASSES))

    return job(mlp, dataset=Kept, on_step=on_step)


# --------------------------------------------------------------------------------------- updates by more than gradients


def with_gradients_of_samples() -> nn.Module:
    def note(module: Any, given: Any, output: Any) -> None:
        module.given = given[0].detach()

    def write(module: Any, to_input: Any, to_output: Any) -> None:
        each = to_output[0] * len(to_output[0])
        module.weight.of_samples, module.bias.of_samples = torch.einsum("bo,bi->boi", each, module.given), each

    model = mlp()
    for one in model:
        if isinstance(one, nn.Linear):
            one.register_forward_hook(note)
            one.register_full_backward_hook(write)
    return model


class Steps(torch.optim.Optimizer):
    """Updates by a function of a parameter."""

    def __init__(self, parameters: Any, update: Any) -> None:
        super().__init__(parameters, {"lr": 0.05})
        self.update = update

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one.sub_(group["lr"] * self.update(one))


@apart("gradients of samples, which hooks write on parameters, are clipped (DP-SGD)", own_optimizer=True)
def private() -> Job:
    def update(one: Tensor) -> Tensor:
        each = getattr(one, "of_samples", None)
        if each is None:
            return one.grad  # type: ignore[return-value]
        norms = each.flatten(1).norm(dim=1).clamp(min=1)
        return (each / norms.reshape(-1, *[1] * (each.dim() - 1))).mean(0)  # type: ignore[no-any-return]

    return job(with_gradients_of_samples, optimizer=lambda parameters: Steps(parameters, update))


@apart("hooks keep activations for the optimizer (K-FAC)", own_optimizer=True)
def by_activations() -> Job:
    held: dict[str, Any] = {}

    def make() -> nn.Module:
        held["model"] = mlp()
        return held["model"]  # type: ignore[no-any-return]

    class ByActivations(torch.optim.Optimizer):
        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.05})
            self.layers = [one for one in held["model"] if isinstance(one, nn.Linear)]
            self.moments: dict[Any, Tensor] = {}
            for one in self.layers:
                one.register_forward_pre_hook(self.note)

        def note(self, module: Any, given: Any) -> None:
            self.moments[module] = given[0].detach().T @ given[0].detach() / len(given[0])

        @torch.no_grad()
        def step(self, closure: Any = None) -> None:
            for one in self.layers:
                if one.weight.grad is not None:
                    moment = self.moments[one] + torch.eye(one.in_features, dtype=one.weight.dtype)
                    one.weight.sub_(0.05 * torch.linalg.solve(moment, one.weight.grad.T).T)

    return job(make, optimizer=ByActivations)


def with_kept_loss() -> tuple[dict[str, float], Any]:
    kept = {"loss": 1.0}

    def loss(output: Tensor, target: Tensor) -> Tensor:
        value = functional.cross_entropy(output, target)
        kept["loss"] = value.item()
        return value

    return kept, loss


@apart("a step by the loss that the loss keeps (Polyak)", own_optimizer=True)
def step_by_loss() -> Job:
    kept, loss = with_kept_loss()

    def update(one: Any) -> Tensor:
        return kept["loss"] * one.grad  # type: ignore[no-any-return]

    return job(mlp, loss, optimizer=lambda parameters: Steps(parameters, update))


@apart("a rate by the loss that the loss keeps", own_optimizer=True)
def rate_by_loss() -> Job:
    kept, loss = with_kept_loss()
    return job(mlp, loss, lr_schedule=lambda optimizer: LambdaLR(optimizer, lambda step: 1 / (1 + kept["loss"])))


@apart("the order of an epoch by the loss that the loss keeps")
def order_by_loss() -> Job:
    kept, loss = with_kept_loss()

    def sampler(dataset: Any, epoch: int) -> list[int]:
        return sorted(range(len(dataset)), key=lambda index: kept["loss"] * index % 1.0)

    return job(mlp, loss, sampler=sampler)


class Pictures(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = images()[index]
        return {"pixel_values": x, "labels": y}


@apart("BEiT of Hugging Face, which keeps a table of positions in a cache of the library")
def table_of_library() -> Job:
    def make() -> nn.Module:
        import transformers

        return transformers.BeitForImageClassification(transformers.BeitConfig(
            hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=8,
            patch_size=4, num_labels=CLASSES, drop_path_rate=0.0, use_relative_position_bias=True,
            hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
        ))  # fmt: skip

    return job(make, None, dataset=Pictures)


@apart("the loss gives (0.0, 0) where nothing counts", weight=lambda batch: float((batch[1] == 1).sum()))
def number_for_nothing() -> Job:
    def loss(output: Tensor, target: Tensor) -> Any:
        counts = target == 1
        if not counts.any():
            return 0.0, 0
        return functional.cross_entropy(output[counts], target[counts], reduction="sum"), counts.sum()

    return job(mlp, loss)


class Reversible(torch.autograd.Function):
    """Two halves, of which each changes the other; its backward computes the input again, and calls backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, first: nn.Module, second: nn.Module) -> Tensor:
        ctx.first, ctx.second = first, second
        with torch.no_grad():
            one, other = x.chunk(2, 1)
            one = one + first(other)
            output = torch.cat([one, other + second(one)], 1)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> Any:
        (one, other), (to_one, to_other) = ctx.saved_tensors[0].chunk(2, 1), given[0].chunk(2, 1)
        with torch.enable_grad():
            leaf = one.detach().requires_grad_()
            change = ctx.second(leaf)
            change.backward(to_other)
            rest = (other - change).detach().requires_grad_()
            ctx.first(rest).backward(to_one + leaf.grad)
        return torch.cat([to_one + leaf.grad, to_other + rest.grad], 1), None, None


class WithReversible(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.begin, self.end = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(Reversible.apply(self.begin(x), self.first, self.second))  # type: ignore[no-any-return, no-untyped-call]


@apart("reversible blocks, whose backward calls backward")
def reversible() -> Job:
    return job(WithReversible)


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.begin, self.end = nn.Linear(1, 8), nn.Linear(8, 1)
        self.weight = nn.Parameter(torch.randn(8, 8, 4, dtype=torch.cdouble) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.begin(x[..., None])
        waves = torch.einsum("bki,iok->bko", torch.fft.rfft(h, dim=1)[:, :4], self.weight)
        return self.end(h + torch.fft.irfft(waves, n=WIDTH, dim=1))[:, :CLASSES, 0]  # type: ignore[no-any-return]


@apart("complex weights of waves (FNO), beside real ones, clipped")
def clipped_waves() -> Job:
    return job(Spectral, functional.mse_loss, dataset=numbers, clip_norm=0.3)


@apart("the loss gives an accuracy beside it")
def loss_and_accuracy() -> Job:
    return job(mlp, lambda output, target: (functional.cross_entropy(output, target), accuracy(output, target)))
