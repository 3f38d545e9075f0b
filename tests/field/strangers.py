"""Jobs of kinds that the catalog does not have, each beside its plain loop, as for the catalog.

What people bring that nobody has tried yet.
"""

import functools
import math
import random
from collections import namedtuple
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy
import torch
from tests.field.entry import Family
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize, prune
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import Dataset, TensorDataset, default_collate

from trimaran.base.job import Job

STRANGERS = Family("strangers")
SAMPLES, BATCH, WIDTH, CLASSES, WORDS = 30, 8, 12, 4, 17
stranger = STRANGERS.entry


def points() -> TensorDataset:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, WIDTH, generator=generator)
    return TensorDataset(x, torch.randint(CLASSES, (SAMPLES,), generator=generator))


def numbers() -> TensorDataset:
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(SAMPLES, WIDTH, generator=generator)
    return TensorDataset(x, torch.randn(SAMPLES, CLASSES, generator=generator))


def tokens() -> TensorDataset:
    generator = torch.Generator().manual_seed(5)
    ids = torch.randint(1, WORDS, (SAMPLES, 6), generator=generator)
    return TensorDataset(ids, ids.roll(-1, 1))


def images() -> TensorDataset:
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(SAMPLES, 3, 8, 8, generator=generator)
    return TensorDataset(x, torch.randint(CLASSES, (SAMPLES,), generator=generator))


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def job(model: Any, loss: Any = functional.cross_entropy, **options: Any) -> Job:
    return Job(**{
        "model": model, "loss": loss, "optimizer": sgd, "dataset": points, "global_batch_size": BATCH,
        "precision": "fp64", "epochs": 9, **options,
    })  # fmt: skip


def mlp(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), *(middle or (nn.Tanh(),)), nn.Linear(16, 16), nn.Tanh(),
                         nn.Linear(16, CLASSES))  # fmt: skip


def of(forward: Any, **parts: Any) -> Any:
    """A model from a forward and what it has."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for name, make in parts.items():
                setattr(self, name, make() if callable(make) else make)

        def forward(self, *inputs: Any) -> Any:
            return forward(self, *inputs)

    return Model


def per_token(output: Tensor, target: Tensor) -> Tensor:
    return functional.cross_entropy(output.flatten(0, 1), target.flatten())


# --------------------------------------------------------------------------------------------- weights and parameters


class TiedEnds(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm = nn.Embedding(WORDS, 16), nn.LayerNorm(16)
        self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 16)
        self.head = nn.Linear(16, WORDS, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(torch.tanh(self.second(torch.tanh(self.first(self.embed(ids)))))))


@stranger("the embedding is the head, in the first and the last stage")
def tied_ends() -> Job:
    return job(TiedEnds, per_token, dataset=tokens)


@stranger("the embedding and the head are two parameters in one memory")
def tied_by_data() -> Job:
    def make() -> nn.Module:
        model = TiedEnds().double()
        model.head = nn.Linear(16, WORDS, bias=False).double()
        model.head.weight.data = model.embed.weight.data
        return model

    return job(make, per_token, dataset=tokens)


@stranger("parameters that are parts of one tensor, next to each other")
def slices_of_one() -> Job:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(WIDTH, 16, bias=False), nn.Tanh(), nn.Linear(16, CLASSES, bias=False)).double()
        whole = torch.cat([one.detach().flatten() for one in model.parameters()])
        for one, part in zip(model.parameters(), whole.split([WIDTH * 16, 16 * CLASSES]), strict=True):
            one.data = part.view_as(one)
        return model

    return job(make)


@stranger("parameters that are the columns of one tensor")
def columns_of_one() -> Job:
    def make() -> nn.Module:
        model = nn.ModuleDict({name: nn.Linear(WIDTH, 8, bias=False) for name in "qkv"}).double()
        whole = torch.randn(8, 3 * WIDTH, dtype=torch.float64) * 0.2
        for one, part in zip(model.parameters(), whole.chunk(3, dim=1), strict=True):
            one.data = part
        model["head"] = nn.Linear(8, CLASSES).double()
        return model

    def forward(self: Any, x: Tensor) -> Tensor:
        return self.net["head"](torch.tanh(self.net["q"](x) * self.net["k"](x)) + self.net["v"](x))

    return job(of(forward, net=make))


@stranger("a scale that is one number in several places, an array that cannot be written, and a nested tensor")
def odd_constants() -> Job:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()
            self.scale = torch.ones(1, dtype=torch.float64).expand(CLASSES)
            self.table = numpy.broadcast_to(numpy.ones(1), (CLASSES,))
            self.start = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) * self.scale * float(self.table[0])

    return job(Model)


@stranger("a parameter without elements")
def empty_parameter() -> Job:
    return job(of(lambda self, x: self.net(x) + self.none.sum(), net=mlp, none=lambda: nn.Parameter(torch.empty(0))))


@stranger("an autoencoder whose decoder is the transposed encoder")
def tied_transposed() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        return functional.linear(torch.tanh(self.mid(torch.tanh(self.enc(x)))), self.enc.weight.t())

    return job(of(forward, enc=lambda: nn.Linear(WIDTH, 16), mid=lambda: nn.Linear(16, 16)),
               lambda output, target: (output - target).square().mean(),
               dataset=lambda: TensorDataset(points().tensors[0], points().tensors[0]))  # fmt: skip


@stranger("weight_norm as a parametrization")
def weight_normed() -> Job:
    return job(lambda: nn.Sequential(parametrizations.weight_norm(nn.Linear(WIDTH, 16)), nn.Tanh(),
                                     parametrizations.weight_norm(nn.Linear(16, 16)), nn.Tanh(),
                                     nn.Linear(16, CLASSES)))  # fmt: skip


@stranger("weight_norm of old, by a hook")
def weight_normed_by_hook() -> Job:
    return job(lambda: nn.Sequential(torch.nn.utils.weight_norm(nn.Linear(WIDTH, 16)), nn.Tanh(), nn.Linear(16, 16),
                                     nn.Tanh(), nn.Linear(16, CLASSES)))  # fmt: skip


@stranger("an orthogonal parametrization")
def orthogonal() -> Job:
    return job(lambda: nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), parametrizations.orthogonal(nn.Linear(16, 16)),
                                     nn.Tanh(), nn.Linear(16, CLASSES)))  # fmt: skip


class Symmetric(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight.triu() + weight.triu(1).transpose(-1, -2)


class LowRank(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = nn.Parameter(torch.randn(2, 16) * 0.1), nn.Parameter(torch.zeros(16, 2))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


@stranger("a symmetric weight by a parametrization of the user's")
def symmetric() -> Job:
    def make() -> nn.Module:
        model = mlp()
        parametrize.register_parametrization(model[2], "weight", Symmetric())
        return model

    return job(make)


@stranger("LoRA as a parametrization over a frozen network")
def lora_parametrized() -> Job:
    def make() -> nn.Module:
        model = mlp().requires_grad_(False)
        parametrize.register_parametrization(model[2], "weight", LowRank())
        return model

    return job(make)


@stranger("pruned weights: masks in buffers, by a hook")
def pruned() -> Job:
    def make() -> nn.Module:
        model = mlp()
        prune.l1_unstructured(model[2], "weight", amount=0.4)
        return model

    return job(make)


@stranger("lazy modules, which the factory has run once")
def lazy_run() -> Job:
    def make() -> nn.Module:
        model = nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(CLASSES))
        model(torch.zeros(2, WIDTH))
        return model

    return job(make)


@stranger("lazy modules that nobody has run")
def lazy_raw() -> Job:
    return job(lambda: nn.Sequential(nn.LazyLinear(16), nn.Tanh(), nn.LazyLinear(CLASSES)))


@stranger("ParameterList and ParameterDict")
def parameter_lists() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        for weight in self.weights:
            x = torch.tanh(x @ weight)
        return x @ self.named["head"] + self.named["bias"]

    def weights() -> nn.ParameterList:
        return nn.ParameterList([nn.Parameter(torch.randn(WIDTH, WIDTH) * 0.3) for _ in range(3)])

    def named() -> nn.ParameterDict:
        return nn.ParameterDict({"head": torch.randn(WIDTH, CLASSES) * 0.3, "bias": torch.zeros(CLASSES)})

    return job(of(forward, weights=weights, named=named))


@stranger("complex parameters")
def complex_weights() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x) * self.filter
        return self.head(torch.tanh(torch.fft.irfft(spectrum, n=WIDTH)))

    return job(of(forward, filter=lambda: nn.Parameter(torch.randn(WIDTH // 2 + 1, dtype=torch.complex128) * 0.5),
                  head=lambda: nn.Linear(WIDTH, CLASSES)))  # fmt: skip


@stranger("one module called at two depths")
def shared_module() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mid(torch.tanh(self.other(torch.tanh(self.mid(self.first(x))))))))

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), mid=lambda: nn.Linear(16, 16),
                  other=lambda: nn.Linear(16, 16), head=lambda: nn.Linear(16, CLASSES)))  # fmt: skip


@stranger("a scripted submodule")
def scripted() -> Job:
    def make() -> nn.Module:
        middle = torch.jit.script(nn.Sequential(nn.Linear(16, 16), nn.Tanh()))
        return nn.Sequential(nn.Linear(WIDTH, 16), middle, nn.Linear(16, CLASSES))

    return job(make)


@stranger("hypernetwork: weights of a layer are made by another")
def hypernetwork() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        weight = self.maker(self.code).view(CLASSES, 16)
        return functional.linear(torch.tanh(self.first(x)), weight)

    return job(of(forward, maker=lambda: nn.Linear(5, CLASSES * 16), code=lambda: nn.Parameter(torch.randn(5)),
                  first=lambda: nn.Linear(WIDTH, 16)))  # fmt: skip


@stranger("an inner step of gradient descent in the forward, by torch.func (MAML)")
def inner_step() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        weights = dict(self.net.named_parameters())

        def inner(weights: Any, one: Tensor) -> Tensor:
            return torch.func.functional_call(self.net, weights, (one,)).square().mean()

        def adapted(one: Tensor) -> Tensor:
            grads = torch.func.grad(inner)(weights, one)
            return torch.func.functional_call(
                self.net, {name: weight - 0.1 * grads[name] for name, weight in weights.items()}, (one,)
            )

        return torch.func.vmap(adapted)(x)

    return job(of(forward, net=mlp))


@stranger("an ensemble: torch.func.vmap over stacked weights")
def ensemble() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        one = torch.func.vmap(lambda first, head: torch.tanh(x @ first) @ head)
        return one(self.first, self.head).mean(0)

    return job(of(forward, first=lambda: nn.Parameter(torch.randn(3, WIDTH, 8) * 0.3),
                  head=lambda: nn.Parameter(torch.randn(3, 8, CLASSES) * 0.3)))  # fmt: skip


# ------------------------------------------------------------------------------------------------- forwards and hooks


def waves(length: int) -> Tensor:
    return torch.outer(torch.arange(length).double(), 2.0 ** -torch.arange(8).double()).sin().repeat(1, 2)


def with_positions(table: Any) -> Any:
    return of(lambda self, ids: self.net(self.embed(ids) + table(ids.shape[1])), embed=lambda: nn.Embedding(WORDS, 16),
              net=lambda: nn.Sequential(nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, WORDS)))  # fmt: skip


@stranger("a table of positions that a dict keeps from the first forward on")
def table_in_dict() -> Job:
    kept: dict[int, Tensor] = {}

    def table(length: int) -> Tensor:
        if length not in kept:
            kept[length] = waves(length)
        return kept[length]

    return job(with_positions(table), per_token, dataset=tokens)


HELD: dict[str, Any] = {"calls": 0}


@stranger("a table of positions that a method keeps in a global, or its cache")
def table_of_method() -> Job:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(WORDS, 16), nn.Linear(16, WORDS)

        def table(self, length: int) -> Tensor:
            if length not in HELD:
                HELD[length] = waves(length)
            return HELD[length] + self.other(length)

        @functools.lru_cache  # noqa: B019
        def other(self, length: int) -> Tensor:
            return waves(length).cos()

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(torch.tanh(self.embed(ids) + self.table(ids.shape[1])))

    return job(Model, per_token, dataset=tokens)


@stranger("a method of the model counts its calls in a global, by which the forward warms up")
def method_counts() -> Job:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def rate(self) -> float:
            HELD["calls"] += self.training
            return min(1.0, HELD["calls"] / 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x) * self.rate()

    def make() -> nn.Module:
        HELD["calls"] = 0
        return Model()

    return job(make)


@stranger("a table of positions that functools.lru_cache keeps")
def table_cached() -> Job:
    return job(with_positions(functools.lru_cache(waves)), per_token, dataset=tokens)


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.mul(4).round().div(4)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return -0.3 * grad


class BatchScaled(torch.autograd.Function):
    """A backward that divides by the norm of the gradient of the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad / (grad.norm() + 1e-3)


@stranger("quantization-aware: rounding with a straight-through backward")
def straight_through() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(Rounded.apply(torch.tanh(self.first(x))))

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES)))


@stranger("a gradient reversal before a second head (DANN)")
def gradient_reversal() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        features = torch.tanh(self.first(x))
        return self.head(features), self.domain(Reversed.apply(features))

    def loss(output: Any, target: Tensor) -> Tensor:
        return functional.cross_entropy(output[0], target) + functional.cross_entropy(output[1], target % 2)

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES),
                  domain=lambda: nn.Linear(16, 2)), loss)  # fmt: skip


@stranger("a backward of its own that normalizes the gradient of the batch")
def batch_scaled_backward() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(BatchScaled.apply(torch.tanh(self.first(x))))

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES)))


@stranger("a forward hook that changes the output of a layer")
def forward_hook() -> Job:
    def make() -> nn.Module:
        model = mlp()
        model[2].register_forward_hook(lambda module, args, output: output * 0.5 + args[0])
        return model

    return job(make)


@stranger("a forward pre-hook on the model that normalizes the input")
def forward_pre_hook() -> Job:
    def make() -> nn.Module:
        model = mlp()
        model.register_forward_pre_hook(lambda module, args: (functional.layer_norm(args[0], (WIDTH,)),))
        return model

    return job(make)


@stranger("a full backward hook that scales gradients")
def backward_hook() -> Job:
    def make() -> nn.Module:
        model = mlp()
        model[2].register_full_backward_hook(lambda module, inputs, outputs: tuple(0.5 * one for one in inputs))
        return model

    return job(make)


@stranger("a full backward hook that clips gradients of activations by the norm of the batch")
def backward_hook_clips() -> Job:
    def make() -> nn.Module:
        model = mlp()
        model[2].register_full_backward_hook(
            lambda module, inputs, outputs: tuple(one / max(1.0, float(one.norm()) * 50) for one in inputs)
        )
        return model

    return job(make)


@stranger("a hook on a parameter that keeps some of it from being trained")
def parameter_mask_hook() -> Job:
    def make() -> nn.Module:
        model = mlp()
        mask = (torch.arange(16)[:, None] % 2).double()
        model[2].weight.register_hook(lambda grad: grad * mask)
        return model

    return job(make)


@stranger("gradients clipped by value in hooks")
def clipped_by_hooks() -> Job:
    def make() -> nn.Module:
        model = mlp()
        for one in model.parameters():
            one.register_hook(lambda grad: grad.clamp(-0.01, 0.01))
        return model

    return job(make)


def halve(one: Tensor) -> None:
    assert one.grad is not None
    one.grad.mul_(0.5)


@stranger("post-accumulate hooks that scale gradients")
def post_accumulate() -> Job:
    def make() -> nn.Module:
        model = mlp()
        for one in model.parameters():
            one.register_post_accumulate_grad_hook(halve)
        return model

    return job(make)


@stranger("a hook on an activation in the forward")
def activation_hook() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        if x.requires_grad:
            x.register_hook(lambda grad: grad.clamp(-1e-3, 1e-3))
        return self.head(x)

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES)))


@stranger("a forward that counts its calls and warms up by them")
def counts_calls() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return self.head(torch.tanh(self.first(x))) * min(1.0, self.calls / 10)

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES), calls=0))


@stranger("a counter in a buffer, by which the forward warms up")
def counts_in_buffer() -> Job:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.calls += 1
            return self.net(x) * (self.calls / 10).clamp(max=1.0)

    return job(Model)


@stranger("an RNN whose hidden state is carried from batch to batch")
def stateful_rnn() -> Job:
    def forward(self: Any, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        if self.hidden is None or self.hidden.shape[1] != len(ids):
            self.hidden = x.new_zeros(1, len(ids), 16)
        out, hidden = self.rnn(x, self.hidden)
        self.hidden = hidden.detach()
        return self.head(out)

    return job(of(forward, embed=lambda: nn.Embedding(WORDS, 16), rnn=lambda: nn.GRU(16, 16, batch_first=True),
                  head=lambda: nn.Linear(16, WORDS), hidden=None),
               per_token, dataset=tokens, drop_last=True)  # fmt: skip


@stranger("an average of the batch in a buffer, which the forward subtracts", by_microbatch=True)
def running_center() -> Job:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()
            self.register_buffer("center", torch.zeros(WIDTH))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                with torch.no_grad():
                    self.center.lerp_(x.mean(0), 0.1)
            return self.net(x - self.center)

    return job(Model)


@stranger("batch norm with a cumulative average", by_microbatch=True)
def cumulative_norm() -> Job:
    return job(lambda: mlp(nn.BatchNorm1d(16, momentum=None), nn.Tanh()))


@stranger("batch norm without running statistics", by_microbatch=True)
def norm_of_batch() -> Job:
    return job(lambda: mlp(nn.BatchNorm1d(16, track_running_stats=False), nn.Tanh()))


@stranger("instance norm with running statistics", by_microbatch=True)
def instance_norm() -> Job:
    return job(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True, track_running_stats=True),
                                     nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, CLASSES)),
               dataset=images)  # fmt: skip


@stranger("a normalization over the batch, written by hand")
def norm_by_hand() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(torch.tanh((x - x.mean(0)) / (x.std(0) + 1e-5)))

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES)))


@stranger("an embedding with max_norm, which the forward renormalizes")
def max_norm() -> Job:
    def forward(self: Any, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(ids)))

    return job(of(forward, embed=lambda: nn.Embedding(WORDS, 16, max_norm=1.0), head=lambda: nn.Linear(16, WORDS)),
               per_token, dataset=tokens)  # fmt: skip


@stranger("an embedding whose gradients are scaled by how often a word is in the batch")
def scaled_by_frequency() -> Job:
    def forward(self: Any, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(ids)))

    return job(of(forward, embed=lambda: nn.Embedding(WORDS, 16, scale_grad_by_freq=True),
                  head=lambda: nn.Linear(16, WORDS)), per_token, dataset=tokens)  # fmt: skip


@stranger("a padding index, whose row is not trained")
def padding_index() -> Job:
    def forward(self: Any, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embed(ids)))

    return job(of(forward, embed=lambda: nn.Embedding(WORDS, 16, padding_idx=3), head=lambda: nn.Linear(16, WORDS)),
               per_token, dataset=tokens)  # fmt: skip


@stranger("RReLU, which draws", by_microbatch=True)
def random_relu() -> Job:
    return job(lambda: mlp(nn.RReLU()))


@stranger("dropout of channels and alpha dropout", by_microbatch=True)
def channel_dropout() -> Job:
    return job(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), nn.Dropout2d(0.3), nn.SELU(), nn.AdaptiveAvgPool2d(1),
                                     nn.Flatten(), nn.AlphaDropout(0.2), nn.Linear(8, CLASSES)),
               dataset=images)  # fmt: skip


@stranger("word dropout, drawn for the batch by numpy", by_microbatch=True)
def numpy_dropout() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        if self.training:
            x = x * torch.from_numpy((numpy.random.rand(16) > 0.2).astype("float64"))  # noqa: NPY002
        return self.head(x)

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES)))


@stranger("a vector quantizer with a commitment loss and codes in parameters")
def vector_quantizer() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        z = self.enc(x)
        codes = self.codes[torch.cdist(z, self.codes).argmin(1)]
        passed = z + (codes - z).detach()
        return self.dec(passed), (codes - z.detach()).square().mean() + 0.25 * (codes.detach() - z).square().mean()

    return job(of(forward, enc=lambda: nn.Linear(WIDTH, 6), dec=lambda: nn.Linear(6, CLASSES),
                  codes=lambda: nn.Parameter(torch.randn(5, 6))),
               lambda output, target: functional.cross_entropy(output[0], target) + output[1])  # fmt: skip


@stranger("noise from a generator that each forward seeds anew")
def seeded_anew() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        source = torch.Generator().manual_seed(7)
        return self.net(x + 0.1 * torch.randn(x.shape, generator=source, dtype=x.dtype))

    return job(of(forward, net=mlp))


@stranger("the forward seeds torch before it draws", by_microbatch=True)
def seeds_torch() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        torch.manual_seed(7)
        return self.net(x + 0.1 * torch.randn(x.shape, dtype=x.dtype))

    return job(of(forward, net=mlp))


@stranger("a projection that is seeded in each forward, beside attention that draws nothing")
def seeded_projection() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        torch.manual_seed(0)
        x = x @ torch.randn(WIDTH, 16, dtype=x.dtype)
        heads = x.view(len(x), 2, 2, 4)
        return self.head(functional.scaled_dot_product_attention(heads, heads, heads).flatten(1))

    return job(of(forward, head=lambda: nn.Linear(16, CLASSES)))


@stranger("gumbel softmax", by_microbatch=True)
def gumbel() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        return self.head(functional.gumbel_softmax(self.first(x), hard=True))

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES)))


@stranger("how long it computes depends on each sample: halting by a mask")
def halting() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        x, running, steps = self.first(x), None, 0
        while steps < 5 and (running is None or bool(running.any())):
            y = torch.tanh(self.mid(x))
            x = y if running is None else torch.where(running[:, None], y, x)
            running = x.mean(1) > 0 if running is None else running & (x.mean(1) > 0)
            steps += 1
        return self.head(x)

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), mid=lambda: nn.Linear(16, 16),
                  head=lambda: nn.Linear(16, CLASSES)))  # fmt: skip


@stranger("experts choose their samples: the largest of the batch")
def expert_choice() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        scores = self.gate(x).softmax(-1)
        out = torch.zeros(len(x), CLASSES, dtype=x.dtype)
        for number, expert in enumerate(self.experts):
            best = scores[:, number].topk(max(1, len(x) // 3)).indices
            out = out.index_add(0, best, expert(x[best]) * scores[best, number, None])
        return out

    return job(of(forward, gate=lambda: nn.Linear(WIDTH, 3),
                  experts=lambda: nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(3))))  # fmt: skip


@stranger("experts with a load-balancing loss over the batch")
def load_balanced() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        scores = self.gate(x).softmax(-1)
        top = scores.argmax(-1)
        out = sum(expert(x) * (scores[:, n] * (top == n))[:, None] for n, expert in enumerate(self.experts))
        share = functional.one_hot(top, 3).to(x.dtype).mean(0)
        return out, 3 * (share * scores.mean(0)).sum()

    return job(of(forward, gate=lambda: nn.Linear(WIDTH, 3),
                  experts=lambda: nn.ModuleList(nn.Linear(WIDTH, CLASSES) for _ in range(3))),
               lambda output, target: functional.cross_entropy(output[0], target) + 0.1 * output[1])  # fmt: skip


@stranger("a forward that does something else from eight samples on")
def by_batch_size() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        return self.head(x * (2.0 if len(x) >= 8 else 1.0))

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES)))


# ------------------------------------------------------------------------------------------------- inputs and outputs


@dataclass
class Prediction:
    logits: Tensor
    features: Tensor


Pair = namedtuple("Pair", ["left", "right"])


@stranger("an output that is a dataclass")
def dataclass_output() -> Job:
    def forward(self: Any, x: Tensor) -> Prediction:
        features = torch.tanh(self.first(x))
        return Prediction(self.head(features), features)

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES)),
               lambda output, target: functional.cross_entropy(output.logits, target)
               + 0.1 * output.features.square().mean())  # fmt: skip


class Pairs(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = points()[index]
        return Pair(x, x.flip(0)), y


@stranger("an input that is a named tuple")
def named_tuple_input() -> Job:
    def forward(self: Any, left: Tensor, right: Tensor) -> Tensor:
        return self.head(torch.tanh(self.first(left)) * torch.tanh(self.first(right)))

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES)), dataset=Pairs)


@stranger("dicts all through: outputs, targets, losses by task")
def multi_task_dicts() -> Job:
    class Tasks(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            x, y = points()[index]
            return {"x": x, "targets": {"kind": y, "value": x.sum()}}

    def forward(self: Any, batch: Any) -> Any:
        features = torch.tanh(self.first(batch["x"]))
        return {"kind": self.kind(features), "value": self.value(features).squeeze(-1), "scales": self.scales}

    def loss(output: Any, batch: Any) -> Tensor:
        losses = {
            "kind": functional.cross_entropy(output["kind"], batch["targets"]["kind"]),
            "value": functional.mse_loss(output["value"], batch["targets"]["value"]),
        }
        return sum(  # type: ignore[return-value]
            one * torch.exp(-scale) + scale for one, scale in zip(losses.values(), output["scales"], strict=True)
        )

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), kind=lambda: nn.Linear(16, CLASSES),
                  value=lambda: nn.Linear(16, 1), scales=lambda: nn.Parameter(torch.zeros(2))),
               loss, dataset=Tasks)  # fmt: skip


class Ragged(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        return torch.randn(2 + index % 5, WIDTH, generator=generator), torch.tensor(index % CLASSES)


def packed(samples: list[Any]) -> Any:
    x = [one for one, _ in samples]
    lengths = torch.tensor([len(one) for one in x])
    return pack_padded_sequence(pad_sequence(x, True), lengths, True, enforce_sorted=False), torch.stack(
        [y for _, y in samples]
    )


@stranger("a PackedSequence in the batch")
def packed_batch() -> Job:
    def forward(self: Any, *parts: Any) -> Tensor:
        sequence = parts[0] if len(parts) == 1 else torch.nn.utils.rnn.PackedSequence(*parts)
        out, _ = pad_packed_sequence(self.rnn(sequence)[0], batch_first=True)
        return self.head(out.sum(1))

    return job(of(forward, rnn=lambda: nn.GRU(WIDTH, 8, batch_first=True), head=lambda: nn.Linear(8, CLASSES)),
               dataset=Ragged, collate=packed)  # fmt: skip


@stranger("a nested tensor in the batch")
def nested_batch() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        return torch.stack([self.head(torch.tanh(self.first(one))).mean(0) for one in x.unbind()])

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 8), head=lambda: nn.Linear(8, CLASSES)), dataset=Ragged,
               collate=lambda samples: (torch.nested.nested_tensor([x for x, _ in samples]),
                                        torch.stack([y for _, y in samples])))  # fmt: skip


@stranger("lists of tensors of any length, never padded")
def list_batch() -> Job:
    def forward(self: Any, *x: Tensor) -> Tensor:
        return torch.stack([self.head(torch.tanh(self.first(one))).mean(0) for one in x])

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 8), head=lambda: nn.Linear(8, CLASSES)), dataset=Ragged,
               collate=lambda samples: ([x for x, _ in samples], torch.stack([y for _, y in samples])))  # fmt: skip


@stranger("padding with a mask, in a transformer")
def masked_attention() -> Job:
    def collate(samples: list[Any]) -> Any:
        x = pad_sequence([one for one, _ in samples], True)
        lengths = torch.tensor([len(one) for one, _ in samples])
        return (x, torch.arange(x.shape[1])[None] >= lengths[:, None]), torch.stack([y for _, y in samples])

    def forward(self: Any, x: Tensor, padded: Tensor) -> Tensor:
        out = self.layer(x, src_key_padding_mask=padded)
        return self.head(out.masked_fill(padded[..., None], 0).sum(1) / (~padded).sum(1, keepdim=True))

    return job(of(forward, layer=lambda: nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True),
                  head=lambda: nn.Linear(WIDTH, CLASSES)), dataset=Ragged, collate=collate)  # fmt: skip


# --------------------------------------------------------------------------------------------------------------- losses


class SomeIgnored(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = tokens()[index]
        y = y.clone()
        y[: index % 6] = -100
        return x, y


def word_model() -> nn.Module:
    return nn.Sequential(nn.Embedding(WORDS, 16), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, WORDS))


CLASS_WEIGHTS = torch.linspace(0.2, 2.0, WORDS, dtype=torch.float64)


@stranger("class weights and an ignored label",
          weight=lambda batch: float(CLASS_WEIGHTS[batch[1].clamp(min=0)].mul(batch[1] != -100).sum()))  # fmt: skip
def weighted_ignoring() -> Job:
    return job(word_model, lambda o, t: functional.cross_entropy(o.flatten(0, 1), t.flatten(), CLASS_WEIGHTS),
               dataset=SomeIgnored)  # fmt: skip


@stranger("label smoothing and an ignored label", weight=lambda batch: float((batch[1] != -100).sum()))
def smoothed_ignoring() -> Job:
    return job(word_model, lambda o, t: functional.cross_entropy(o.flatten(0, 1), t.flatten(), label_smoothing=0.1),
               dataset=SomeIgnored)  # fmt: skip


def counted_labels(batch: Any) -> float:
    return float((batch["y"] != 0).sum())


class Labels(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = points()[index]
        return {"x": x, "y": y}


@stranger("labels of a dict that the forward masks in place", weight=counted_labels)
def labels_masked_in_forward() -> Job:
    def forward(self: Any, batch: Any) -> Tensor:
        batch["y"].masked_fill_(batch["y"] == 0, -100)
        return self.net(batch["x"])

    return job(of(forward, net=mlp), lambda o, batch: functional.cross_entropy(o, batch["y"]), dataset=Labels)


@stranger("an input of a dict that the forward replaces, and the loss does not read")
def input_replaced_in_forward() -> Job:
    def forward(self: Any, batch: Any) -> Tensor:
        batch["x"] = batch["x"] * 0.5
        return self.net(batch["x"])

    return job(of(forward, net=mlp), lambda o, batch: functional.cross_entropy(o, batch["y"]), dataset=Labels)


@stranger("labels that the loss masks in place", weight=lambda batch: float((batch[1] != 0).sum()))
def labels_masked_in_loss() -> Job:
    return job(mlp, lambda o, t: functional.cross_entropy(o, t.masked_fill_(t == 0, -100)))


@stranger("a mean over the tokens of a mask", weight=lambda batch: float(batch["mask"].sum()))
def masked_mean() -> Job:
    class Masked(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            ids, labels = tokens()[index]
            return {"ids": ids, "labels": labels, "mask": (torch.arange(6) >= index % 5).float()}

    def loss(output: Tensor, batch: Any) -> Tensor:
        each = functional.cross_entropy(output.transpose(1, 2), batch["labels"], reduction="none")
        return (each * batch["mask"]).sum() / batch["mask"].sum()

    return job(of(lambda self, batch: self.net(batch["ids"]), net=word_model), loss, dataset=Masked)


@stranger("a mean over the tokens of each sample, then over samples")
def mean_of_means() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        each = functional.cross_entropy(output.transpose(1, 2), target, reduction="none", ignore_index=-100)
        counted = (target != -100).to(each.dtype)
        return ((each * counted).sum(1) / counted.sum(1)).mean()

    return job(word_model, loss, dataset=SomeIgnored)


@stranger("focal loss divided by the number of positives")
def focal_by_positives() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        hot = functional.one_hot(target, CLASSES)[:, 1:].to(output.dtype)
        chance = output[:, 1:].sigmoid()
        each = functional.binary_cross_entropy(chance, hot, reduction="none") * (hot - chance).square()
        return each.sum() / hot.sum().clamp(min=1)

    return job(mlp, loss)


@stranger("a dice loss over the batch")
def dice_of_batch() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        chance, hot = output.softmax(1), functional.one_hot(target, CLASSES)
        return 1 - (2 * (chance * hot).sum(0) / (chance.sum(0) + hot.sum(0))).mean()

    return job(mlp, loss)


@stranger("the root of a mean: RMSE")
def rmse() -> Job:
    return job(mlp, lambda o, t: functional.mse_loss(o, t).sqrt(), dataset=numbers)


@stranger("a sum divided by a number in the code", summed=True)
def divided_by_constant() -> Job:
    return job(mlp, lambda o, t: functional.mse_loss(o, t, reduction="sum") / 64, dataset=numbers)


@stranger("the hardest samples of a batch")
def hard_mining() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        each = functional.cross_entropy(output, target, reduction="none")
        return each.topk(max(1, len(each) // 2)).values.mean()

    return job(mlp, loss)


@stranger("the correlation of outputs and targets in a batch")
def correlation() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return 1 - functional.cosine_similarity(output - output.mean(0), target - target.mean(0), dim=0).mean()

    return job(mlp, loss, dataset=numbers)


@stranger("distributionally robust: log of the mean of the exponent")
def log_mean_exp() -> Job:
    return job(mlp, lambda o, t: functional.cross_entropy(o, t, reduction="none").exp().mean().log())


@stranger("flooding: the loss does not fall below a level")
def flooding() -> Job:
    return job(mlp, lambda o, t: (functional.cross_entropy(o, t) - 1.2).abs() + 1.2)


@stranger("supervised contrastive: samples of one class attract each other")
def supervised_contrastive() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        z = functional.normalize(output)
        alike = (target[:, None] == target[None]).to(z.dtype) - torch.eye(len(z), dtype=z.dtype)
        logits = (z @ z.T / 0.5) - 1e9 * torch.eye(len(z), dtype=z.dtype)
        return -(alike * logits.log_softmax(1)).sum(1).div(alike.sum(1).clamp(min=1)).mean()

    return job(mlp, loss)


@stranger("triplets within a sample")
def triplets() -> Job:
    class Triplets(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            x = points().tensors[0]
            return (x[index], x[(index + 1) % SAMPLES], x[(index + 7) % SAMPLES]), torch.tensor(0.5)

    def forward(self: Any, a: Tensor, b: Tensor, c: Tensor) -> Any:
        return self.net(a), self.net(b), self.net(c)

    return job(of(forward, net=mlp), lambda o, t: functional.triplet_margin_loss(*o), dataset=Triplets)


@stranger("ArcFace: a margin over normalized weights")
def arcface() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        return functional.linear(functional.normalize(self.net(x)), functional.normalize(self.weight))

    def loss(cosine: Tensor, target: Tensor) -> Tensor:
        hot = functional.one_hot(target, CLASSES).to(cosine.dtype)
        return functional.cross_entropy(8 * (cosine.clamp(-0.999, 0.999).acos() + 0.2 * hot).cos(), target)

    return job(of(forward, net=mlp, weight=lambda: nn.Parameter(torch.randn(CLASSES, CLASSES))), loss)


def with_penalty(kind: str) -> Job:
    held: list[nn.Module] = []

    def make() -> nn.Module:
        held[:] = [mlp()]
        return held[0]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target) + 1e-2 * sum(
            one.square().sum() if kind == "l2" else one.abs().sum() for one in held[0].parameters()
        )

    return job(make, loss)


@stranger("an L2 penalty on the weights of a model that the loss holds")
def penalty_in_loss() -> Job:
    return with_penalty("l2")


@stranger("an L1 penalty that the forward returns")
def penalty_returned() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        return self.net(x), sum(one.abs().sum() for one in self.net.parameters())

    return job(of(forward, net=mlp), lambda o, t: functional.cross_entropy(o[0], t) + 1e-3 * o[1])


@stranger("a gradient penalty on the inputs (R1), in the loss")
def gradient_penalty() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            out = self.net(x)
            (slope,) = torch.autograd.grad(out.sum(), x, create_graph=self.training)
        return out, slope

    return job(of(forward, net=mlp),
               lambda o, t: functional.cross_entropy(o[0], t) + 0.1 * o[1].square().sum(1).mean())  # fmt: skip


@stranger("R-Drop: two forwards with dropout, and how far they are apart", by_microbatch=True)
def r_drop() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        return self.net(x), self.net(x)

    def loss(output: Any, target: Tensor) -> Tensor:
        one, other = output
        apart = functional.kl_div(one.log_softmax(1), other.softmax(1), reduction="batchmean")
        return functional.cross_entropy(one, target) + functional.cross_entropy(other, target) + apart

    return job(of(forward, net=lambda: mlp(nn.Dropout(0.2))), loss)


@stranger("virtual adversarial training: a backward to the input, and a second forward", by_microbatch=True)
def adversarial() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        if not self.training:
            return self.net(x), self.net(x)
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            (slope,) = torch.autograd.grad(self.net(x).square().sum(), x)
        return self.net(x), self.net(x + 0.1 * functional.normalize(slope.detach()))

    return job(of(forward, net=mlp), lambda o, t: functional.cross_entropy(o[0], t) + functional.cross_entropy(o[1], t))


@stranger("a loss that is a module with a parameter of its own")
def loss_with_parameter() -> Job:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, output: Tensor, target: Tensor) -> Tensor:
            return functional.cross_entropy(output * self.scale, target)

    return job(mlp, Scaled())


@stranger("a CTC loss without lengths that differ")
def ctc_fixed() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        lengths = torch.full((len(output),), output.shape[1])
        return functional.ctc_loss(output.log_softmax(-1).transpose(0, 1), target[:, :2] + 1, lengths,
                                   torch.full((len(output),), 2))  # fmt: skip

    return job(of(lambda self, ids: self.net(ids), net=lambda: nn.Sequential(
        nn.Embedding(WORDS, 16), nn.Tanh(), nn.Linear(16, WORDS + 2))), loss, dataset=tokens)  # fmt: skip


@stranger("cross entropy against soft targets")
def soft_targets() -> Job:
    return job(mlp, lambda o, t: functional.cross_entropy(o, t.softmax(1)), dataset=numbers)


@stranger("a term for the entropy of the mean prediction of the batch")
def entropy_of_mean() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        mean = output.softmax(1).mean(0)
        return functional.cross_entropy(output, target) + (mean * mean.log()).sum()

    return job(mlp, loss)


# ----------------------------------------------------------------------------------------------- optimizers, schedules


@stranger("LBFGS, whose step computes the loss again", own_optimizer=True)
def lbfgs() -> Job:
    return job(mlp, optimizer=lambda parameters: torch.optim.LBFGS(parameters, lr=0.1, max_iter=2))


@stranger("a rate for each depth", own_optimizer=True)
def rates_by_depth() -> Job:
    def make(parameters: Any) -> torch.optim.Optimizer:
        named = list(parameters.named_parameters())
        groups = [{"params": [one], "lr": 1e-3 * 0.8**number} for number, (_, one) in enumerate(named)]
        return torch.optim.AdamW(groups, eps=1e-4)

    return job(mlp, optimizer=make)


class Centralized(torch.optim.SGD):
    """Gradients less their means over all dims but the first."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None and one.dim() > 1:
                    one.grad -= one.grad.mean(tuple(range(1, one.dim())), keepdim=True)
        return super().step(closure)


class ByValue(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            nn.utils.clip_grad_value_(group["params"], 0.01)
        return super().step(closure)


class ByNormInside(torch.optim.SGD):
    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            nn.utils.clip_grad_norm_(group["params"], 0.05)
        return super().step(closure)


class TrustRatio(torch.optim.SGD):
    """LARS: each tensor's step follows its norm."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one.grad *= 0.1 * one.norm() / (one.grad.norm() + 1e-3)
        return super().step(closure)


class Lookahead(torch.optim.SGD):
    """Slow weights, to which the fast ones go back every third step."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for one in group["params"]:
                state = self.state[one]
                state.setdefault("slow", one.detach().clone())
                state["count"] = state.get("count", 0) + 1
                if state["count"] % 3 == 0:
                    state["slow"].lerp_(one, 0.5)
                    one.copy_(state["slow"])


class Noisy(torch.optim.SGD):
    """Langevin: each step adds noise."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        super().step(closure)
        for group in self.param_groups:
            for one in group["params"]:
                one.add_(torch.randn_like(one), alpha=1e-3)


class Marked(torch.optim.SGD):
    """A rate for each parameter, which is written on it."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one.grad *= getattr(one, "scale", 1.0)
        return super().step(closure)


def marked_layers() -> nn.Module:
    model = mlp()
    for one in model[2].parameters():
        one.scale = 0.3  # type: ignore[attr-defined]
    return model


@stranger("rates that are written on parameters, which the step reads", own_optimizer=True)
def marked_in_step() -> Job:
    return job(marked_layers, optimizer=lambda parameters: Marked(parameters, lr=0.05))


@stranger("rates that are written on parameters, which Job.optimizer reads", own_optimizer=True)
def marked_in_groups() -> Job:
    def make(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD([{"params": [one], "lr": 0.05 * getattr(one, "scale", 1.0)} for one in parameters])

    return job(marked_layers, optimizer=make)


def named(name: str, make: Any) -> Any:
    """A factory with a name, for an entry."""
    make.__name__ = name
    return make


for _name, _note, _made in (
    ("centralized", "gradients less their means", lambda p: Centralized(p, lr=0.05)),
    ("clipped_by_value", "gradients clipped by value in the step", lambda p: ByValue(p, lr=0.05)),
    ("norm_inside", "gradients clipped by their norm in the step", lambda p: ByNormInside(p, lr=0.05)),
    ("trust_ratio", "LARS", lambda p: TrustRatio(p, lr=0.05)),
    ("lookahead", "slow and fast weights", lambda p: Lookahead(p, lr=0.05, momentum=0.9)),
    ("langevin", "a step that adds noise", lambda p: Noisy(p, lr=0.05)),
    ("nadam", "NAdam", lambda p: torch.optim.NAdam(p, lr=1e-3, eps=1e-4)),
    ("rprop", "Rprop", lambda p: torch.optim.Rprop(p, lr=1e-3)),
    ("asgd", "ASGD", lambda p: torch.optim.ASGD(p, lr=1e-2)),
    ("adafactor", "Adafactor, which keeps rows and columns", lambda p: torch.optim.Adafactor(p, lr=1e-2)),
    ("adamax", "Adamax", lambda p: torch.optim.Adamax(p, lr=1e-3, eps=1e-4)),
):
    STRANGERS.entry(_note, own_optimizer=True)(named(_name, partial(job, mlp, optimizer=_made)))


@stranger("OneCycle, which moves the momentum too", own_optimizer=True)
def one_cycle() -> Job:
    return job(mlp, lr_schedule=lambda optimizer: torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40))


@stranger("warm-up, then cosine, in sequence", own_optimizer=True)
def warmed_up() -> Job:
    def make(optimizer: Any) -> Any:
        schedulers = torch.optim.lr_scheduler
        return schedulers.SequentialLR(
            optimizer,
            [schedulers.LinearLR(optimizer, 0.1, total_iters=3), schedulers.CosineAnnealingLR(optimizer, 9)],
            [3],
        )

    return job(mlp, lr_schedule=make)


@stranger("layers are thawed after the first epoch, by a callback")
def thawed() -> Job:
    def make() -> nn.Module:
        model = mlp()
        model[0].requires_grad_(False)
        return model

    def on_epoch(session: Any, epoch: int, found: dict[str, float]) -> None:
        session.model.requires_grad_(True)

    return job(make, on_epoch=on_epoch)


@stranger("weights are clipped after each step, by a callback (WGAN)")
def weights_clipped() -> Job:
    def on_step(session: Any, step: int, found: dict[str, float]) -> None:
        with torch.no_grad():
            for one in session.model.parameters():
                one.clamp_(-0.2, 0.2)

    return job(mlp, on_step=on_step)


@stranger("a norm to which gradients are clipped, and frozen layers in the middle", own_optimizer=True)
def frozen_middle() -> Job:
    def make() -> nn.Module:
        model = mlp()
        model[2].requires_grad_(False)
        return model

    return job(make, clip_norm=0.05)


# ----------------------------------------------------------------------------------------------------------------- data


@stranger("augmentation by random, numpy and torch in __getitem__")
def augmented() -> Job:
    class Augmented(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            x, y = points()[index]
            x = x * random.uniform(0.5, 1.5) + float(numpy.random.rand())  # noqa: NPY002
            return x + torch.randn(WIDTH) * 0.1, y

    return job(mlp, dataset=Augmented)


@stranger("a data set that keeps what it has read")
def cached() -> Job:
    class Cached(Dataset[Any]):
        def __init__(self) -> None:
            self.kept: dict[int, Any] = {}

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            if index not in self.kept:
                self.kept[index] = points()[index]
            return self.kept[index]

    return job(mlp, dataset=Cached)


@stranger("a data set that keeps a sample as it was augmented first")
def cached_augmented() -> Job:
    class Kept(Dataset[Any]):
        def __init__(self) -> None:
            self.kept: dict[int, Any] = {}

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            if index not in self.kept:
                x, y = points()[index]
                self.kept[index] = (x + torch.randn(WIDTH) * 0.5, y)
            return self.kept[index]

    return job(mlp, dataset=Kept)


@stranger("a data set with a generator of its own")
def own_generator() -> Job:
    class Own(Dataset[Any]):
        def __init__(self) -> None:
            self.generator = torch.Generator().manual_seed(1)

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            x, y = points()[index]
            return x + torch.randn(WIDTH, generator=self.generator), y

    return job(mlp, dataset=Own)


@stranger("a weighted sampler with replacement")
def weighted_sampler() -> Job:
    def sampler(dataset: Any, epoch: int) -> Any:
        generator = torch.Generator().manual_seed(epoch)
        return torch.multinomial(torch.linspace(0.1, 1, SAMPLES), 22, replacement=True, generator=generator).tolist()

    return job(mlp, sampler=sampler)


@stranger("samples in the order of their lengths")
def by_length() -> Job:
    def collate(samples: list[Any]) -> Any:
        x = pad_sequence([one for one, _ in samples], True)
        return (x, torch.tensor([len(one) for one, _ in samples])), torch.stack([y for _, y in samples])

    def forward(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.head(self.rnn(packed)[1][0])

    return job(of(forward, rnn=lambda: nn.GRU(WIDTH, 8, batch_first=True), head=lambda: nn.Linear(8, CLASSES)),
               dataset=Ragged, collate=collate, sampler=lambda data, epoch: sorted(range(len(data)),
               key=lambda index: index % 5))  # fmt: skip


def without_none(samples: list[Any]) -> Any:
    return default_collate([one for one in samples if one is not None])


def with_bad(bad: Any) -> Any:
    class SomeBad(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            return None if bad(index) else points()[index]

    return SomeBad


def kept_samples(batch: Any) -> float:
    return float(len(batch[1]))


@stranger("collate leaves out samples that are None", weight=kept_samples)
def drops_none() -> Job:
    return job(mlp, dataset=with_bad(lambda index: index % 4 == 1), collate=without_none)


@stranger("one sample of all is None, and left out", weight=kept_samples)
def drops_one() -> Job:
    return job(mlp, dataset=with_bad(lambda index: index == 17), collate=without_none)


@stranger("collate leaves out samples that are too short", weight=kept_samples)
def drops_short() -> Job:
    def collate(samples: list[Any]) -> Any:
        return default_collate([(x[:2].flatten()[:WIDTH], y) for x, y in samples if len(x) > 2])

    return job(mlp, dataset=Ragged, collate=collate)


@stranger("mixup: collate draws how much", by_microbatch=True)
def mixup() -> Job:
    def collate(samples: list[Any]) -> Any:
        x, y = default_collate(samples)
        share = random.random()
        return x * share + x.flip(0) * (1 - share), y

    return job(mlp, collate=collate)


@stranger("masked words, drawn by collate", by_microbatch=True, weight=lambda batch: float((batch[1] != -100).sum()))
def masked_by_collate() -> Job:
    def collate(samples: list[Any]) -> Any:
        ids = torch.stack([x for x, _ in samples])
        masked = torch.rand(ids.shape) < 0.5
        masked[:, 0] = True
        return ids.masked_fill(masked, 0), ids.masked_fill(~masked, -100)

    return job(word_model, lambda o, t: functional.cross_entropy(o.flatten(0, 1), t.flatten()), dataset=tokens,
               collate=collate)  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- evaluations


def binary() -> TensorDataset:
    x, y = points().tensors
    return TensorDataset(x, (y + (x[:, 0] > 0)) % 2)


def two_classes() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 2))


def f1(output: Tensor, target: Tensor) -> float:
    guess = output.argmax(1)
    hits = float(((guess == 1) & (target == 1)).sum())
    return 2 * hits / max(1.0, float((guess == 1).sum() + (target == 1).sum()))


def auc(output: Tensor, target: Tensor) -> float:
    score = output[:, 1] - output[:, 0]
    pairs = score[target == 1][:, None] - score[target == 0][None]
    return float((pairs > 0).double().mean())


def evaluated(metric: Any, **options: Any) -> Job:
    return job(two_classes, dataset=binary, evaluation_dataset=binary, metric=metric, **options)


for _name, _note, _metric in (
    ("metric_f1", "a metric that is no mean: F1", f1),
    ("metric_auc", "the area under a curve", auc),
    ("metric_perplexity", "perplexity: the exponent of a mean",
     lambda o, t: -math.exp(float(functional.cross_entropy(o, t)))),
    ("metric_count", "a count", lambda o, t: float((o.argmax(1) == t).sum())),
    ("metric_max", "a maximum", lambda o, t: float(o.max())),
    ("metric_accuracy", "a mean", lambda o, t: float((o.argmax(1) == t).double().mean())),
    ("metric_rmse", "the root of a mean", lambda o, t: -float((o[:, 1] - t).square().mean().sqrt())),
    ("metric_recall", "recall", lambda o, t: float((o.argmax(1)[t == 1] == 1).double().mean())),
):  # fmt: skip
    STRANGERS.entry(_note)(named(_name, partial(evaluated, _metric)))
