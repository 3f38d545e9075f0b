"""Variants of the jobs of the zoo, by name, so that every rank can make the same one."""

import dataclasses
import functools
import math
import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy
import torch
from tests import zoo
from tests.distributed import ordered
from torch import nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset, get_worker_info

from trimaran.base.job import Job
from trimaran.graph.behaviour import Weight, WholeMetric
from trimaran.user_code.randomness import seeded


def make_job(name: str) -> Job:
    """A job of the zoo, or a variant that is made here."""
    return globals()[name]() if name in globals() else getattr(zoo, name)()


def cnn_ragged() -> Job:
    """Batches of 40 from 94 samples: the last one of 14."""
    return dataclasses.replace(zoo.cnn_fp64(), global_batch_size=40, dataset=lambda: _first(94))


def cnn_squared() -> Job:
    """With a metric that is no mean over samples: the square of one."""
    job = zoo.cnn_fp64()
    assert job.metric is not None
    return dataclasses.replace(job, metric=WholeMetric(lambda output, target: job.metric(output, target) ** 2))


def unet_tiny_end() -> Job:
    """Batches of 31 from 94 samples: the last one of a single sample."""
    return dataclasses.replace(zoo.unet_fp64(), global_batch_size=31, dataset=lambda: _first(94, zoo.unet))


def gpt_clipped() -> Job:
    """Clipped at every step: the norms are around 1."""
    return dataclasses.replace(zoo.gpt_fp64(), clip_norm=0.05)


def gpt_adamw() -> Job:
    """An optimizer with two states a parameter, which decays weights."""
    return dataclasses.replace(
        zoo.gpt_fp64(), optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, weight_decay=0.1)
    )


def lstm_scheduled() -> Job:
    """A tenth of the learning rate after every second update."""
    return dataclasses.replace(
        zoo.lstm_fp64(), lr_schedule=lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.1)
    )


def gpt_weighted() -> Job:
    """A mean over the tokens that are even, of which each microbatch has another number; clipped, too."""
    return dataclasses.replace(zoo.gpt_fp64(), loss=_even_tokens, clip_norm=0.05)


def wide_layers() -> Job:
    """Six layers of 1 MiB and four samples: all memory is that of parameters, gradients and state."""
    return Job(
        name="wide_layers",
        model=lambda: nn.Sequential(*(part for _ in range(6) for part in (nn.Linear(512, 512), nn.Tanh()))),
        loss=functional.mse_loss,
        optimizer=zoo.sgd,
        dataset=lambda: TensorDataset(torch.ones(16, 512), torch.zeros(16, 512)),
        global_batch_size=4,
    )


def torn_adam() -> Job:
    """Of 96 samples two have an input that is not a number; optimizer and schedule have state."""
    generator = torch.Generator().manual_seed(11)
    inputs = torch.randn(96, 12, generator=generator)
    inputs[17, 3] = inputs[71, 5] = math.nan
    targets = torch.randint(4, (96,), generator=generator)
    return Job(
        name="torn_adam",
        model=lambda: nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 16), nn.Tanh(), nn.Linear(16, 4)),
        loss=functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1),
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9),
        clip_norm=0.5,
        dataset=lambda: TensorDataset(inputs, targets),
        global_batch_size=16,
        precision="fp64",
    )


def torn_free_adam() -> Job:
    """The same with inputs that are all numbers, and without clipping."""
    torn = torn_adam()
    inputs, targets = torn.dataset().tensors  # type: ignore[attr-defined]
    whole = TensorDataset(torch.nan_to_num(inputs, nan=0.5), targets)
    return dataclasses.replace(torn, name="torn_free_adam", clip_norm=None, dataset=lambda: whole)


def torn_epochs() -> Job:
    """`torn_adam` for five epochs of six steps."""
    return dataclasses.replace(torn_adam(), epochs=5)


def never_finite() -> Job:
    """No sample has a finite loss."""
    inputs = torch.full((96, 12), math.nan)
    return dataclasses.replace(torn_adam(), dataset=lambda: TensorDataset(inputs, torch.arange(96) % 4))


class GradientsForWeights(torch.optim.Optimizer):
    """An update that puts its gradient in the place of each weight, so that the weights of a run tell the gradients."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.copy_(parameter.grad)


def with_gradients(name: str, precision: str) -> Job:
    """A job of the zoo whose weights after one step are its gradients."""
    return dataclasses.replace(make_job(name), optimizer=GradientsForWeights, precision=precision)


def cnn_gradients() -> Job:
    return with_gradients("cnn", "fp32")


def unet_gradients() -> Job:
    return with_gradients("unet", "fp32")


def lstm_gradients() -> Job:
    return with_gradients("lstm", "fp32")


def gpt_gradients() -> Job:
    return with_gradients("gpt", "fp32")


def gpt_without_metric() -> Job:
    return dataclasses.replace(zoo.gpt(), metric=None)


def cnn_bf16() -> Job:
    return dataclasses.replace(zoo.cnn(), precision="bf16")


def gpt_bf16() -> Job:
    return dataclasses.replace(zoo.gpt(), precision="bf16")


def lstm_exploding() -> Job:
    """Its loss is finite once; then weights are infinite, and it is not a number."""
    return dataclasses.replace(zoo.lstm_fp64(), optimizer=lambda parameters: torch.optim.SGD(parameters, lr=math.inf))


def cnn_not_scalar() -> Job:
    """Its loss has one value a sample."""
    return dataclasses.replace(zoo.cnn(), loss=nn.CrossEntropyLoss(reduction="none"))


def dictionary() -> Job:
    """A dict batch, of which the last layers read a part, so that a late segment reads the batch too."""
    return Job(
        name="dictionary",
        model=Gated,
        loss=lambda output, batch: functional.mse_loss(output, batch["wanted"]),
        optimizer=zoo.sgd,
        dataset=Dictionaries,
        evaluation_dataset=Dictionaries,
        metric=lambda output, batch: -functional.mse_loss(output, batch["wanted"]).item(),
        global_batch_size=16,
        precision="fp64",
    )


def dictionary_ragged() -> Job:
    """Batches of 20 from 96 samples: the last one of 16."""
    return dataclasses.replace(dictionary(), global_batch_size=20)


def half_frozen() -> Job:
    """The first layers are frozen, so that no gradient flows back to them."""
    return dataclasses.replace(zoo.lstm_fp64(), model=_frozen_below)


def lstm_unused() -> Job:
    """It has a layer that its output does not depend on; its weights must stay, and be saved."""
    return dataclasses.replace(zoo.lstm_fp64(), model=_with_unused)


def dropped() -> Job:
    """Dropout between two layers, so that each rank draws."""
    layers = lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1))  # noqa: E731
    return Job(
        name="dropped",
        model=layers,
        loss=functional.mse_loss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2),
        dataset=lambda: TensorDataset(
            *(torch.randn(64, n, generator=torch.Generator().manual_seed(n)) for n in (6, 1))
        ),
        global_batch_size=8,
    )


def summed() -> Job:
    """Its loss is a sum over the samples, and is taken for a mean."""
    model = lambda: nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1))  # noqa: E731
    return dataclasses.replace(
        dropped(), model=model, loss=lambda output, target: functional.mse_loss(output, target, reduction="sum")
    )


def one_gradient() -> Job:
    """A loss that is linear in the weights, of one sample over and over: each step has the same gradient, of rank 1."""
    return _linear(1)


def eight_gradients() -> Job:
    """The same of eight samples, all of which are in each batch: each step has the same gradient, of rank 8."""
    return _linear(8)


def _linear(samples: int) -> Job:
    def dataset() -> TensorDataset:
        generator = torch.Generator().manual_seed(6)
        x, y = torch.randn(samples, 24, generator=generator), torch.randn(samples, 20, generator=generator)
        return TensorDataset(x.repeat(8 // samples, 1), y.repeat(8 // samples, 1))

    return Job(
        name="linear",
        model=lambda: nn.Linear(24, 20),
        loss=lambda output, target: (output * target).sum(1).mean(),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        dataset=dataset,
        global_batch_size=8,
        precision="fp64",
    )


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 8)
        self.third = nn.Linear(8, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        x = torch.relu(self.first(batch["values"]))
        x = torch.relu(self.second(x))
        x = torch.relu(self.third(x)) * batch["gate"]
        return self.last(x)


class Dictionaries(Dataset[Any]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(4)
        self.values = torch.randn(96, 6, generator=generator)
        self.gate = torch.rand(96, 8, generator=generator)

    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        values = self.values[index]
        return {"values": values, "gate": self.gate[index], "wanted": values.sum().reshape(1)}


class Tallied(Dataset[Any]):
    """Rows of 16 bytes; each read is tallied by one byte in the file that TRIMARAN_TEST_READS names, where it does."""

    def __init__(self, samples: int, *, draws: bool = False) -> None:
        self.samples, self.draws = samples, draws

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if tally := os.environ.get("TRIMARAN_TEST_READS"):
            with Path(tally).open("ab", buffering=0) as file:
                file.write(b".")
        drawn = [float(torch.rand(())), random.random(), float(numpy.random.rand())]  # noqa: NPY002
        return torch.tensor([float(index), *(drawn if self.draws else [0.5] * 3)]), torch.tensor([float(index)])


class Quiet(Tallied):
    """The same without a draw."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        with seeded(0):
            return super().__getitem__(index)


class Failing(Tallied):
    """In a sample after the first few it raises, dies or hangs, as its name says; by its process id it can be found."""

    def __init__(self, how: str, *, in_worker: bool) -> None:
        super().__init__(64)
        self.how, self.in_worker = how, in_worker

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if folder := os.environ.get("TRIMARAN_TEST_PIDS"):
            (Path(folder) / str(os.getpid())).touch()
        if index == 40 and self.in_worker == (get_worker_info() is not None):
            if self.how == "raise":
                raise OSError("no such picture")
            if self.how == "die":
                os.kill(os.getpid(), signal.SIGKILL)
        width = 5 if index == 40 and self.how == "shape" else 4
        return torch.zeros(width), torch.zeros(1)


def rows(dataset: Any, batch: int = 7) -> Job:
    return Job(
        name="rows",
        model=lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1)),
        loss=functional.mse_loss,
        optimizer=zoo.sgd,
        dataset=dataset,
        global_batch_size=batch,
    )


def rows_drawn() -> Job:
    """33 samples in batches of 7, the last one of 5: neither is divided by 2 or 4."""
    return rows(lambda: Tallied(33, draws=True))


def rows_quiet() -> Job:
    return rows(lambda: Quiet(32), batch=8)


def rows_raise() -> Job:
    return rows(lambda: Failing("raise", in_worker=False))


def rows_raise_in_worker() -> Job:
    return rows(lambda: Failing("raise", in_worker=True))


def rows_die_in_worker() -> Job:
    return rows(lambda: Failing("die", in_worker=True))


def rows_shape() -> Job:
    return rows(lambda: Failing("shape", in_worker=True))


def _first(samples: int, base: Any = zoo.cnn) -> TensorDataset:
    return TensorDataset(*(tensor[:samples] for tensor in base().dataset().tensors))


def _even_tokens(output: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    losses = functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none")
    counted = (target.flatten() % 2 == 0).to(losses.dtype)
    return (losses * counted).sum(), counted.sum()


def _with_unused() -> nn.Module:
    model = zoo.CharacterLstm()
    model.unused = nn.Linear(4, 4)
    return model


def _frozen_below() -> nn.Module:
    model = zoo.CharacterLstm()
    model.embedding.requires_grad_(False)
    model.lstm1.requires_grad_(False)
    return model


def _decayed(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    """No decay for biases and norms, and twice the rate for the embedding, by name."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in parameters.named_parameters():
        decay = 0.0 if name.endswith("bias") or "norm" in name else 0.1
        rate = 2e-3 if name.startswith(("token", "position")) else 1e-3
        groups.setdefault((decay, rate), []).append(parameter)
    kind = options.pop("kind", torch.optim.AdamW)
    return kind([{"params": of, "weight_decay": key[0], "lr": key[1]} for key, of in groups.items()], **options)


def gpt_named() -> Job:
    """Groups by name, clipped, with a schedule."""
    return dataclasses.replace(
        zoo.gpt_fp64(),
        optimizer=_decayed,
        clip_norm=0.05,
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=20),
    )


class _Scaled(zoo.Gpt):
    """A buffer that is saved, and one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([1.25]))
        self.register_buffer("shift", torch.tensor([0.5]), persistent=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return super().forward(tokens) * self.scale + self.shift


def gpt_exchanged() -> Job:
    """bf16 parameters, a tied weight, buffers, AdamW in groups by name, no schedule."""
    return dataclasses.replace(zoo.gpt(), model=lambda: _Scaled().bfloat16(), optimizer=_decayed)


def gpt_tuples() -> Job:
    """torch's optimizers take names and parameters; only the matrices are trained."""
    return dataclasses.replace(
        zoo.gpt_fp64(),
        optimizer=lambda parameters: torch.optim.AdamW(
            [(name, one) for name, one in parameters.named_parameters() if one.ndim == 2], lr=1e-2
        ),
    )


class Spectral(torch.optim.Optimizer):
    """The gradient of a matrix over its largest singular value, the rest as by SGD: it needs whole matrices."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.02})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            step = parameter.grad
            if step.ndim == 2:
                step = step / torch.linalg.svdvals(step)[0]
            parameter.sub_(step, alpha=self.param_groups[0]["lr"])


class Normed(torch.optim.Optimizer):
    """The gradient of each parameter over its norm, as LARS and LAMB have it."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.02})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for parameter in self.param_groups[0]["params"]:
            parameter.sub_(parameter.grad / parameter.grad.norm(), alpha=self.param_groups[0]["lr"])


class OneNorm(torch.optim.SGD):
    """Clips by one norm over all its parameters in its step."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        nn.utils.clip_grad_norm_([one for group in self.param_groups for one in group["params"]], 0.05)
        super().step(closure)


class Noisy(torch.optim.SGD):
    """Adds noise to the weights."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for one in group["params"]:
                one.add_(torch.randn_like(one), alpha=1e-3)


class TwoSteps(torch.optim.SGD):
    """As sharpness-aware minimization is written: two passes a step."""

    def first_step(self) -> None: ...

    def second_step(self) -> None: ...


def gpt_spectral() -> Job:
    return dataclasses.replace(zoo.gpt_fp64(), optimizer=Spectral)


def gpt_muon() -> Job:
    """torch's, which iterates in bfloat16, so that the order of sums shows."""
    return dataclasses.replace(
        zoo.gpt_fp64(),
        optimizer=lambda parameters: torch.optim.Muon([one for one in parameters if one.ndim == 2], lr=0.02),
    )


def gpt_normed() -> Job:
    return dataclasses.replace(zoo.gpt_fp64(), optimizer=Normed)


def gpt_one_norm() -> Job:
    return dataclasses.replace(zoo.gpt_fp64(), optimizer=lambda parameters: OneNorm(parameters, lr=0.1))


def gpt_noisy() -> Job:
    return dataclasses.replace(zoo.gpt_fp64(), optimizer=lambda parameters: Noisy(parameters, lr=0.1))


def gpt_two_steps() -> Job:
    return dataclasses.replace(zoo.gpt_fp64(), optimizer=lambda parameters: TwoSteps(parameters, lr=0.1))


def gpt_lbfgs() -> Job:
    return dataclasses.replace(zoo.gpt_fp64(), optimizer=lambda parameters: torch.optim.LBFGS(parameters))


def gpt_layerwise() -> Job:
    """The rate of a parameter depends on how many were given."""

    def make(parameters: Any) -> torch.optim.Optimizer:
        named = list(parameters.named_parameters())
        return torch.optim.SGD([{"params": [one], "lr": 0.1 * n / len(named)} for n, (_, one) in enumerate(named)])

    return dataclasses.replace(zoo.gpt_fp64(), optimizer=make)


def gpt_foreign() -> Job:
    """The optimizer holds a parameter of the loss."""
    scale = nn.Parameter(torch.ones((), dtype=torch.float64))
    return dataclasses.replace(
        zoo.gpt_fp64(), optimizer=lambda parameters: torch.optim.SGD([*parameters, scale], lr=0.1)
    )


@functools.cache
def gpt_closed_over() -> Job:
    """The optimizer holds the parameters of the one model that there is, whatever it is given."""
    torch.manual_seed(0)
    model = zoo.gpt_fp64().model()
    return dataclasses.replace(
        zoo.gpt_fp64(),
        model=lambda: model,
        optimizer=lambda parameters: torch.optim.SGD(model.parameters(), lr=0.1),
    )


@functools.cache
def gpt_by_identity() -> Job:
    """The optimizer knows the parameters of the last norm by their ids."""
    torch.manual_seed(0)
    model = zoo.gpt_fp64().model()
    ids = {id(one) for one in model.norm.parameters()}

    def make(parameters: Any) -> torch.optim.Optimizer:
        halves = [one for one in parameters if id(one) in ids], [one for one in parameters if id(one) not in ids]
        return torch.optim.SGD([{"params": halves[0], "lr": 0.0}, {"params": halves[1], "lr": 0.1}])

    return dataclasses.replace(zoo.gpt_fp64(), model=lambda: model, optimizer=make)


def gpt_plateau() -> Job:
    """A tenth of the rate as soon as the metric is not 10 % better."""
    job = zoo.gpt_fp64()
    return dataclasses.replace(
        job,
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode="max", factor=0.1, patience=0, threshold=0.1
        ),
        epochs=4,
    )


def gpt_fp16() -> Job:
    """A loss so large that its gradients do not fit into fp16 until the scale has been halved a few times."""
    job = zoo.gpt()
    return dataclasses.replace(
        job,
        precision="fp16",
        loss=lambda output, target: 2**6 * job.loss(output, target),  # type: ignore[misc]
        optimizer=lambda parameters: torch.optim.AdamW(parameters.named_parameters(), lr=1e-3),
        clip_norm=1.0,
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5),
    )


def gpt_fp16_ignoring() -> Job:
    """The same, as a mean over the tokens that are not 1, as it is found out."""

    def loss(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return 2**6 * functional.cross_entropy(output.flatten(0, 1), target.flatten(), ignore_index=1)

    return dataclasses.replace(
        gpt_fp16(),
        loss=loss,
        loss_weight=Weight(tensor="target", measure="count", ignored=1, typical=11.6),
    )


def wayward_adamw() -> Job:
    """Which parameters have a gradient depends on the data. Batches of 7 from 94 samples: the last one of 3."""
    return _wayward(lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.3))


def wayward_sgd() -> Job:
    return _wayward(lambda parameters: torch.optim.SGD(parameters, lr=2e-2, momentum=0.9, weight_decay=0.1))


def wayward_clipped() -> Job:
    """The same, with a loss that is (sum, weight), clipped."""

    def total(output: Any, target: torch.Tensor) -> tuple[torch.Tensor, float]:
        return _wayward_loss(output, target) * target.shape[0], float(target.shape[0])

    return dataclasses.replace(wayward_adamw(), clip_norm=0.05, loss=total)


def _wayward(optimizer: Any) -> Job:
    return Job(
        name="wayward",
        model=Wayward,
        loss=_wayward_loss,
        optimizer=optimizer,
        dataset=_normal_pairs,
        global_batch_size=7,
        precision="fp64",
    )


def _normal_pairs() -> TensorDataset:
    generator = torch.Generator().manual_seed(8)
    return TensorDataset(torch.randn(94, 6, generator=generator), torch.randn(94, 2, generator=generator))


def _wayward_loss(output: Any, target: torch.Tensor) -> torch.Tensor:
    """The second head counts for samples with a large target, and is not asked where there is none."""
    loss = functional.mse_loss(output[0], target)
    large = target[:, 0] > 1.0
    if large.any():
        loss = loss + (output[1][large] - target[large]).square().sum() / target.numel()
    return loss


class Wayward(nn.Module):
    """Experts, a layer that some samples leave out, a head that the loss may leave out, one that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
        self.deep = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)
        self.second = nn.Linear(8, 2)
        self.never = nn.Linear(8, 2)
        self.frozen = nn.Linear(8, 8).requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        chosen = (2.0 * x[:, 0].abs()).long().clamp(max=4)
        y = self.frozen(torch.tanh(self.first(x)))
        routed = torch.zeros_like(y)
        for number, expert in enumerate(self.experts):
            mine = chosen == number
            if mine.any():
                routed = routed.index_put((mine,), expert(y[mine]))
        left = x[:, 1] > 1.3
        if left.any():
            routed = routed.index_put((left,), torch.relu(self.deep(routed[left])))
        return self.head(routed), self.second(routed)


def two_heads() -> Job:
    """The loss reads one head, others share a weight, a layer is not used, and one is frozen; all weights decay."""
    return dataclasses.replace(
        wayward_adamw(),
        name="two_heads",
        model=TwoHeads,
        loss=lambda output, target: functional.mse_loss(output[0], target),
    )


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.middle = nn.Linear(8, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(requires_grad=False)
        self.last = nn.Linear(8, 8)
        self.head = nn.Linear(8, 2)
        self.other = nn.Linear(8, 2)
        self.never = nn.Linear(8, 2)
        self.shared = nn.Parameter(torch.ones(8, 6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.tanh(self.first(x))
        early = functional.linear(y, self.shared.T)
        y = torch.tanh(self.middle(y))
        y = torch.tanh(self.last(self.frozen(y)))
        return self.head(y), self.other(y), early, functional.linear(y, self.shared.T)


def forgetful() -> Job:
    """It leaves out its second layer in every other forward, by a number of Python."""
    return dataclasses.replace(wayward_sgd(), name="forgetful", model=Forgetful, loss=functional.mse_loss)


class Forgetful(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 2))
        self.forwards = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            self.forwards += 1
        y = torch.tanh(self[0](x))
        return self[2](self[1](y) if self.forwards < 3 else y)


def normed() -> Job:
    """Batch norm and dropout, momentum, clipped, a rate that falls; the last batch of an epoch has 8 of 10 samples."""
    generator = torch.Generator().manual_seed(3)
    data = torch.randn(48, 8, generator=generator), torch.randint(3, (48,), generator=generator)
    return Job(
        name="normed",
        model=lambda: nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 16), nn.ReLU(),
            nn.Dropout(0.2), nn.Linear(16, 3),
        ),
        loss=functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9, nesterov=True),
        dataset=lambda: TensorDataset(*data),
        evaluation_dataset=lambda: TensorDataset(*data),
        metric=zoo.class_accuracy,
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 12),
        global_batch_size=10,
        clip_norm=0.5,
        epochs=3,
    )  # fmt: skip


class _Spare(nn.Linear):
    """Has a layer that nothing reads."""

    def __init__(self) -> None:
        super().__init__(8, 3)
        self.spare = nn.Linear(2, 2)


def with_spare() -> Job:
    """A layer that nothing reads, so that no stage of a pipeline updates it."""
    return dataclasses.replace(normed(), model=_Spare, optimizer=lambda parameters: torch.optim.AdamW(parameters))


def normed_wide() -> Job:
    """`dropped` with layers whose sizes neither 3 nor 4 ranks divide, AdamW in two groups, clipped, a schedule."""
    generator = torch.Generator().manual_seed(4)
    data = torch.randn(60, 6, generator=generator), torch.randn(60, 1, generator=generator)
    return dataclasses.replace(
        dropped(),
        model=lambda: nn.Sequential(
            nn.Linear(6, 22), nn.ReLU(), nn.Linear(22, 10), nn.Dropout(0.2), nn.Linear(10, 10), nn.Linear(10, 1)
        ),
        dataset=lambda: TensorDataset(*data),
        optimizer=_decayed,
        clip_norm=0.5,
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=40),
        global_batch_size=12,
        epochs=2,
    )


def normed_plateau() -> Job:
    """The rate follows the metric of the evaluation."""
    return dataclasses.replace(
        normed(),
        lr_schedule=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(
            optimizer, mode="max", factor=0.5, patience=0
        ),
    )


def dropped_twice() -> Job:
    """`dropped` for two epochs of 8 steps."""
    return dataclasses.replace(dropped(), epochs=2)


def large() -> Job:
    """Dropout between layers whose activations, of 1 MiB each, a memory plan moves to the host."""
    return _large(width=256, batch=1024, depth=4)


def large_state() -> Job:
    """As `large`, with more parameters: in a small budget the optimizer's state lives on the host."""
    return _large(width=512, batch=512, depth=3)


def _large(*, width: int, batch: int, depth: int) -> Job:
    generator = torch.Generator().manual_seed(5)
    data = torch.randn(4 * batch, 16, generator=generator), torch.randn(4 * batch, 1, generator=generator)

    def model() -> nn.Module:
        inner = [one for _ in range(depth) for one in (nn.ReLU(), nn.Dropout(0.2), nn.Linear(width, width))]
        return nn.Sequential(nn.Linear(16, width), *inner, nn.Linear(width, 1))

    return dataclasses.replace(
        dropped(),
        model=model,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        dataset=lambda: TensorDataset(*data),
        global_batch_size=batch,
        epochs=6,
    )


def streamed_counting() -> Job:
    """A stream that says where it is."""
    return dataclasses.replace(ordered.job(), dataset=ordered.Counting, epochs=3)


def rows_drawn_twice() -> Job:
    """`rows_drawn`, with dropout, for three epochs."""
    layers = lambda: nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2), nn.Linear(4, 4), nn.Linear(4, 1))  # noqa: E731
    made = dataclasses.replace(rows_drawn(), epochs=3, model=layers)
    return dataclasses.replace(made, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=1e-3))


def sampled() -> Job:
    """A sampler, with repetition."""
    return dataclasses.replace(ordered.job(), sampler=ordered.weighted, epochs=3)
