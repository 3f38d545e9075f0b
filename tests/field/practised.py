"""More jobs of kinds that people really write, each beside its plain loop."""

import random
from collections import namedtuple
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import torch
from tests.field.entry import Family, to_training
from tests.field.strangers import (
    CLASSES,
    SAMPLES,
    WIDTH,
    WORDS,
    images,
    job,
    mlp,
    named,
    numbers,
    of,
    per_token,
    points,
    tokens,
    word_model,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, TensorDataset, default_collate

from trimaran.base.job import Job

PRACTISED = Family("practised")
practised = PRACTISED.entry


def two_layers() -> dict[str, Any]:
    return {"first": lambda: nn.Linear(WIDTH, 16), "mid": lambda: nn.Linear(16, 16),
            "head": lambda: nn.Linear(16, CLASSES)}  # fmt: skip


def through(change: Any, **more: Any) -> Any:
    """A network with something in the middle."""

    def forward(self: Any, x: Tensor) -> Any:
        return self.head(torch.tanh(self.mid(change(self, torch.tanh(self.first(x))))))

    return of(forward, **two_layers(), **more)


class Dicts(Dataset[Any]):
    """Points as dicts, with weights of samples."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = points()[index]
        return {"x": x, "y": y, "w": torch.tensor(0.1 + index % 4), "index": index}


# --------------------------------------------------------------------------------------------------------------- losses


@practised("two tasks, weighed by what is learned (Kendall)")
def learned_weights() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        features = torch.tanh(self.first(x))
        return self.head(features), self.other(features), self.log_var

    def loss(output: Any, target: Tensor) -> Tensor:
        classes, value, log_var = output
        terms = torch.stack([functional.cross_entropy(classes, target), (value[:, 0] - target).square().mean()])
        return (terms * (-log_var).exp() + log_var).sum()

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES),
                  other=lambda: nn.Linear(16, 1), log_var=lambda: nn.Parameter(torch.zeros(2))), loss)  # fmt: skip


@practised("negatives of the batch (InfoNCE), with a temperature")
def in_batch_negatives() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        left, right = functional.normalize(self.left(x)), functional.normalize(self.right(x))
        return left @ right.t() * self.scale.exp()

    return job(of(forward, left=lambda: nn.Linear(WIDTH, 8), right=lambda: nn.Linear(WIDTH, 8),
                  scale=lambda: nn.Parameter(torch.ones(()))),
               lambda o, t: functional.cross_entropy(o, torch.arange(len(o))))  # fmt: skip


@practised("CTC with lengths of inputs and targets, a mean by target length")
def ctc_lengths() -> Job:
    class Spoken(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            generator = torch.Generator().manual_seed(index)
            return {"x": torch.randn(10, WIDTH, generator=generator), "in": torch.tensor(8 + index % 3),
                    "y": torch.randint(1, WORDS, (3,), generator=generator),
                    "out": torch.tensor(1 + index % 3)}  # fmt: skip

    def loss(output: Tensor, batch: Any) -> Tensor:
        return functional.ctc_loss(output.log_softmax(-1).transpose(0, 1), batch["y"], batch["in"], batch["out"])

    return job(of(lambda self, batch: self.head(self.rnn(batch["x"])[0]),
                  rnn=lambda: nn.GRU(WIDTH, 8, batch_first=True), head=lambda: nn.Linear(8, WORDS)), loss,
               dataset=Spoken)  # fmt: skip


@practised("weights of samples in the batch, divided by their number")
def sample_weights_mean() -> Job:
    return job(of(lambda self, batch: self.net(batch["x"]), net=mlp),
               lambda o, batch: (functional.cross_entropy(o, batch["y"], reduction="none") * batch["w"]).mean(),
               dataset=Dicts)  # fmt: skip


@practised("weights of samples in the batch, divided by their sum", weight=lambda batch: float(batch["w"].sum()))
def sample_weights_sum() -> Job:
    def loss(output: Tensor, batch: Any) -> Tensor:
        each = functional.cross_entropy(output, batch["y"], reduction="none")
        return (each * batch["w"]).sum() / batch["w"].sum()

    return job(of(lambda self, batch: self.net(batch["x"]), net=mlp), loss, dataset=Dicts)


@practised("class weights by how often classes are in the batch")
def class_balanced() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        counted = torch.bincount(target, minlength=CLASSES).clamp(min=1).to(output.dtype)
        return functional.cross_entropy(output, target, weight=1 / counted)

    return job(mlp, loss)


@practised("a loss divided by its own detached value")
def self_scaled() -> Job:
    def loss(output: Any, target: Tensor) -> Tensor:
        first, second = functional.cross_entropy(output, target), output.square().mean()
        return first + second * (first.detach() / second.detach())

    return job(mlp, loss)


@practised("a weight of a term grows with the calls of the loss (KL annealing)")
def annealed_loss() -> Job:
    class Annealed:
        calls = 0

        def __call__(self, output: Tensor, target: Tensor) -> Tensor:
            self.calls += 1
            return functional.cross_entropy(output, target) + min(1.0, self.calls / 5) * output.square().mean()

    return job(mlp, Annealed())


@practised("mixup in the loss: another order of the batch, drawn", by_microbatch=True)
def mixup_in_forward() -> Job:
    def forward(self: Any, batch: Any) -> Any:
        if not self.training:
            return self.net(batch["x"])
        order, share = torch.randperm(len(batch["x"])), 0.3
        return self.net(batch["x"] * share + batch["x"][order] * (1 - share)), order

    def loss(output: Any, batch: Any) -> Tensor:
        if isinstance(output, Tensor):
            return functional.cross_entropy(output, batch["y"])
        out, order = output
        return 0.3 * functional.cross_entropy(out, batch["y"]) + 0.7 * functional.cross_entropy(out, batch["y"][order])

    return job(of(forward, net=mlp), loss, dataset=Dicts)


@practised("cutmix in collate, with two targets", by_microbatch=True)
def cutmix_in_collate() -> Job:
    def collate(samples: list[Any]) -> Any:
        x, y = default_collate(samples)
        cut = random.randrange(1, WIDTH)
        return torch.cat([x[:, :cut], x.flip(0)[:, cut:]], 1), (y, y.flip(0), torch.full((len(y),), cut / WIDTH))

    def loss(output: Tensor, target: Any) -> Tensor:
        one, other, share = target
        each = partial(functional.cross_entropy, output, reduction="none")
        return (share * each(one) + (1 - share) * each(other)).mean()

    return job(mlp, loss, collate=collate)


for _name, _note, _loss, _data in (
    ("kl_batchmean", "KL divergence, batchmean",
     lambda o, t: functional.kl_div(o.log_softmax(1), t.softmax(1), reduction="batchmean"), numbers),
    ("kl_mean", "KL divergence, mean over elements",
     lambda o, t: functional.kl_div(o.log_softmax(1), t.softmax(1), reduction="mean"), numbers),
    ("gaussian_nll", "Gaussian negative log likelihood",
     lambda o, t: functional.gaussian_nll_loss(o[:, 0], t[:, 0], o[:, 1].exp()), numbers),
    ("poisson_nll", "Poisson negative log likelihood", lambda o, t: functional.poisson_nll_loss(o, t.abs()), numbers),
    ("multi_margin", "a margin between classes", functional.multi_margin_loss, points),
    ("positive_weight", "binary cross entropy with a weight of positives",
     lambda o, t: functional.binary_cross_entropy_with_logits(o, (t > 0).to(o), pos_weight=torch.arange(1.0, 5.0)),
     numbers),
    ("huber", "Huber", functional.huber_loss, numbers),
    ("quantiles", "pinball loss of quantiles",
     lambda o, t: torch.maximum(0.9 * (t - o), -0.1 * (t - o)).mean(), numbers),
    ("median_loss", "the median of the losses of a batch",
     lambda o, t: functional.cross_entropy(o, t, reduction="none").median(), points),
    ("trimmed", "the worst sample is left out",
     lambda o, t: functional.cross_entropy(o, t, reduction="none").sort().values[:-1].mean(), points),
    ("vicreg", "variance and covariance of the batch",
     lambda o, t: torch.relu(1 - o.std(0)).mean() + o.T.cov().square().mean(), points),
    ("r_squared", "one minus the share of variance explained",
     lambda o, t: (o - t).square().sum() / (t - t.mean(0)).square().sum(), numbers),
    ("shape_one", "a loss of one element that is no scalar", lambda o, t: functional.cross_entropy(o, t)[None], points),
    ("unreduced", "a loss that is not reduced", lambda o, t: functional.cross_entropy(o, t, reduction="none"), points),
    ("nan_safe", "samples without a target are left out", lambda o, t: (o - t)[t > -1].square().mean(), numbers),
    ("max_per_class", "mean over the classes that are there",
     lambda o, t: torch.stack([functional.cross_entropy(o[t == c], t[t == c]) for c in t.unique()]).mean(), points),
    ("adaptive_clip", "losses above twice their mean are clipped",
     lambda o, t: (lambda e: e.clamp(max=float(1.2 * e.mean())).mean())(functional.cross_entropy(o, t, reduction="none")
     ), points),
    ("cosine", "cosine embedding",
     lambda o, t: functional.cosine_embedding_loss(o, t, torch.ones(len(o))), numbers),
):  # fmt: skip
    PRACTISED.entry(_note)(named(_name, partial(job, mlp, _loss, dataset=_data)))


@practised("a gradient penalty by a double backward over a model that the loss holds (WGAN-GP)")
def gradient_penalty_held() -> Job:
    held: list[Any] = []

    def make() -> nn.Module:
        held[:] = [mlp()]
        return held[0]

    def loss(output: Tensor, target: Any) -> Tensor:
        x = torch.linspace(-1, 1, 3 * WIDTH).view(3, WIDTH).to(output).requires_grad_()
        (slope,) = torch.autograd.grad(held[0](x).sum(), x, create_graph=True)
        return functional.cross_entropy(output, target) + (slope.norm(dim=1) - 1).square().mean()

    return job(make, loss)


@practised("forces: the gradient of an energy by the positions, in the forward")
def forces() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            energy = self.net(x).sum(1)
            (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy, force

    def loss(output: Any, target: Tensor) -> Tensor:
        energy, force = output
        return (energy - target).square().mean() + 0.1 * force.square().mean()

    return job(of(forward, net=mlp), loss)


@practised("a teacher that the loss holds, frozen (distillation)")
def teacher_in_loss() -> Job:
    torch.manual_seed(5)
    teacher = nn.Linear(WIDTH, CLASSES).double().requires_grad_(False)

    def loss(output: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            wanted = teacher(batch["x"]).softmax(1)
        return functional.cross_entropy(output, wanted)

    return job(of(lambda self, batch: self.net(batch["x"]), net=mlp), loss, dataset=Dicts)


@practised("losses of samples are kept by their numbers, and weigh them (by history)")
def kept_by_sample() -> Job:
    class Weighing:
        def __init__(self) -> None:
            self.kept: dict[int, float] = {}

        def __call__(self, output: Tensor, batch: Any) -> Tensor:
            each = functional.cross_entropy(output, batch["y"], reduction="none")
            scale = torch.tensor([self.kept.get(int(one), 1.0) for one in batch["index"]], dtype=each.dtype)
            for number, value in zip(batch["index"], each, strict=True):
                self.kept[int(number)] = value.item()
            return (each * scale).mean()

    return job(of(lambda self, batch: self.net(batch["x"]), net=mlp), Weighing(), dataset=Dicts)


# --------------------------------------------------------------------------------------------------------------- models


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x.sigmoid()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        chance = x.sigmoid()
        return grad * (chance * (1 + x * (1 - chance)))


def in_place(self: Any, x: Tensor) -> Tensor:
    x = x.clone()
    x[:, ::2] *= 2
    x[:, 1].zero_()
    return x.add_(1).relu_()


def deep_equilibrium(self: Any, x: Tensor) -> Tensor:
    z = torch.zeros_like(x)
    for _ in range(50):
        new = torch.tanh(0.5 * self.core(z) + x)
        if float((new - z).detach().norm()) < 1e-2:
            break
        z = new
    return new


def per_batch_depth(self: Any, x: Tensor) -> Tensor:
    return x if self.training and random.random() < 0.5 else torch.tanh(self.core(x))


def per_sample_depth(self: Any, x: Tensor) -> Tensor:
    kept = torch.rand(len(x), 1, dtype=x.dtype) < 0.5
    return x + torch.tanh(self.core(x)) * kept


def data_dependent_start(self: Any, x: Tensor) -> Tensor:
    """ActNorm: the first batch says how later ones are scaled."""
    if self.training and not self.ready:
        with torch.no_grad():
            self.scale.copy_(1 / (x.std(0) + 1e-3))
            self.ready.fill_(True)
    return x * self.scale


def own_generator(self: Any, x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn(x.shape, generator=self.generator, dtype=x.dtype)


def still(model: nn.Module) -> None:
    model.train()
    model.core.eval()  # type: ignore[union-attr]


def core() -> nn.Module:
    return nn.Linear(16, 16)


for _name, _note, _forward, _more, _own in (
    ("own_function", "a function with a backward that saves", lambda self, x: Swish.apply(x), {}, False),
    ("in_place", "written to in place", in_place, {}, False),
    ("in_place_view", "a view that is written to", lambda self, x: x.clone().view(-1).mul_(2).view_as(x), {}, False),
    ("checkpointed", "recomputed by torch.utils.checkpoint",
     lambda self, x: checkpoint(self.core, x, use_reentrant=False), {"core": core}, False),
    ("checkpointed_reentrant", "recomputed by the older checkpoint",
     lambda self, x: checkpoint(self.core, x, use_reentrant=True), {"core": core}, False),
    ("deep_equilibrium", "a fixed point, until the batch is near", deep_equilibrium, {"core": core}, False),
    ("batch_depth", "a layer is left out by chance, for the batch", per_batch_depth, {"core": core}, True),
    ("sample_depth", "a layer is left out by chance, for each sample", per_sample_depth, {"core": core}, True),
    ("first_batch", "scaled by what the first batch is (ActNorm)", data_dependent_start,
     {"ready": None, "scale": None}, False),
    ("noise_generator", "noise from a generator of the model's", own_generator,
     {"generator": lambda: torch.Generator().manual_seed(4)}, True),
    ("spectral", "spectral norm as a parametrization", lambda self, x: self.core(x),
     {"core": lambda: parametrizations.spectral_norm(core())}, True),
    ("spectral_hook", "spectral norm of old", lambda self, x: self.core(x),
     {"core": lambda: torch.nn.utils.spectral_norm(core())}, True),
    ("group_norm", "group norm", lambda self, x: self.core(x), {"core": lambda: nn.GroupNorm(4, 16)}, False),
    ("plain_norm", "batch norm without weights", lambda self, x: self.core(x),
     {"core": lambda: nn.BatchNorm1d(16, affine=False)}, True),
    ("frozen_norm", "batch norm that is frozen", lambda self, x: self.core(x),
     {"core": lambda: nn.BatchNorm1d(16).eval().requires_grad_(False)}, False),
    ("keeps_figure", "leaves a figure behind, for people",
     lambda self, x: (setattr(self, "norm_seen", float(x.detach().norm())), x)[1], {}, False),
    ("median_of_batch", "less the median of the batch", lambda self, x: x - x.median(0).values, {}, False),
    ("sorted_batch", "sorted by their norm, and back",
     lambda self, x: self.core(x[x.norm(dim=1).argsort()])[x.norm(dim=1).argsort().argsort()], {"core": core}, False),
    ("softmax_batch", "softmax over the batch", lambda self, x: x * x.softmax(0), {}, False),
    ("noise_shared", "one noise for all samples of a batch",
     lambda self, x: x + 0.1 * torch.randn(1, 16, dtype=x.dtype) if self.training else x, {}, True),
    ("mixture", "experts by sample, the best two, with a loss of their own", lambda self, x: sum(
        share[:, None] * torch.stack([one(x) for one in self.experts])[index, torch.arange(len(x))]
        for share, index in zip(*(part.T for part in self.gate(x).softmax(1).topk(2)), strict=True)),
     {"experts": lambda: nn.ModuleList(core() for _ in range(3)), "gate": lambda: nn.Linear(16, 3)}, False),
    ("half_inside", "fp32 in the middle", lambda self, x: (x.float() * 1.5).double(), {}, False),
    ("counts_seen", "counts samples in a buffer that is not saved",
     lambda self, x: (self.seen.add_(len(x)), x)[1], {"seen": None}, False),
):  # fmt: skip

    def _build(forward: Any, more: Any) -> nn.Module:
        model = through(forward, **{name: one for name, one in more.items() if one})()
        for name in (name for name, one in more.items() if not one):
            values = {"ready": torch.tensor(False), "scale": torch.ones(16), "seen": torch.zeros(())}
            model.register_buffer(name, values[name], persistent=name != "seen")
        return model  # type: ignore[no-any-return]

    PRACTISED.entry(
        _note,
        by_microbatch=_own,
        tolerance=1e-5 if _name == "half_inside" else 1e-10,
        modes=still if _name == "frozen_norm" else to_training,
    )(named(_name, partial(job, partial(_build, _forward, _more))))


@practised("an embedding with sparse gradients")
def sparse_embedding() -> Job:
    return job(lambda: nn.Sequential(nn.Embedding(WORDS, 16, sparse=True), nn.Linear(16, 16), nn.Tanh(),
                                     nn.Linear(16, WORDS)), per_token, dataset=tokens)  # fmt: skip


@practised("SparseAdam over sparse gradients", own_optimizer=True)
def sparse_adam() -> Job:
    return job(lambda: nn.Sequential(nn.Embedding(WORDS, WORDS, sparse=True)), per_token, dataset=tokens,
               optimizer=lambda parameters: torch.optim.SparseAdam(list(parameters), lr=1e-2))  # fmt: skip


class Bags(Dataset[Any]):
    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        return torch.arange(1 + index % 4) * 3 % WORDS, torch.tensor(index % CLASSES)


@practised("bags of words with offsets")
def embedding_bag() -> Job:
    def collate(samples: list[Any]) -> Any:
        sizes = torch.tensor([0, *(len(x) for x, _ in samples[:-1])])
        return (torch.cat([x for x, _ in samples]), sizes.cumsum(0)), torch.stack([y for _, y in samples])

    return job(of(lambda self, words, starts: self.head(torch.tanh(self.bag(words, starts))),
                  bag=lambda: nn.EmbeddingBag(WORDS, 16), head=lambda: nn.Linear(16, CLASSES)), dataset=Bags,
               collate=collate)  # fmt: skip


@practised("packed sequences: documents in one row, told by their numbers")
def packed_documents() -> Job:
    def forward(self: Any, x: Tensor) -> Tensor:
        same = torch.arange(6)[:, None] // 3 == torch.arange(6)[None] // 3
        h = self.embed(x)
        h = h + functional.scaled_dot_product_attention(self.q(h), self.k(h), h, attn_mask=same.tril())
        return self.head(torch.tanh(h))

    return job(of(forward, embed=lambda: nn.Embedding(WORDS, 16), q=core, k=core, head=lambda: nn.Linear(16, WORDS)),
               per_token, dataset=tokens)  # fmt: skip


@practised("two-layer LSTM with dropout between", by_microbatch=True)
def lstm_dropout() -> Job:
    return job(of(lambda self, x: self.head(self.rnn(self.embed(x))[0]), embed=lambda: nn.Embedding(WORDS, 8),
                  rnn=lambda: nn.LSTM(8, 8, 2, batch_first=True, dropout=0.3), head=lambda: nn.Linear(8, WORDS)),
               per_token, dataset=tokens)  # fmt: skip


@practised("pictures as uint8, normalized in the forward, with dropout of channels", by_microbatch=True)
def byte_images() -> Job:
    def data() -> TensorDataset:
        x, y = images().tensors
        return TensorDataset((x * 40 + 128).clamp(0, 255).to(torch.uint8), y)

    def forward(self: Any, x: Tensor) -> Tensor:
        x = (x.double() / 255 - self.mean) / 0.3
        return self.head(torch.relu(self.drop(self.conv(x))).mean((2, 3)))

    return job(of(forward, mean=lambda: nn.Parameter(torch.full((3, 1, 1), 0.5), requires_grad=False),
                  conv=lambda: nn.Conv2d(3, 8, 3), drop=lambda: nn.Dropout2d(0.3),
                  head=lambda: nn.Linear(8, CLASSES)), dataset=data)  # fmt: skip


@practised("complex inputs")
def complex_inputs() -> Job:
    def data() -> TensorDataset:
        x, y = points().tensors
        return TensorDataset(torch.complex(x.double(), x.roll(1, 0).double()), y)

    return job(of(lambda self, x: self.net((x * 1j).abs()), net=mlp), dataset=data)


Pair = namedtuple("Pair", "logits extra")


@practised("an output that is a named tuple, the loss of a part")
def named_tuple_output() -> Job:
    return job(of(lambda self, x: Pair(self.net(x), x.sum(1)), net=mlp),
               lambda o, t: functional.cross_entropy(o.logits, t) + 0 * o.extra.mean())  # fmt: skip


@practised("the loss is computed in the model, which returns a dict", spread=True)
def loss_in_model() -> Job:
    class Output(dict):  # type: ignore[type-arg]
        @property
        def loss(self) -> Tensor:
            return self["loss"]  # type: ignore[no-any-return]

    def forward(self: Any, x: Tensor, y: Tensor) -> Any:
        out = self.net(x)
        return Output(loss=functional.cross_entropy(out, y), logits=out)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor, y: Tensor) -> Any:
            return forward(self, x, y)

    class Two(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            x, y = points()[index]
            return {"x": x, "y": y}

    return job(Model, None, dataset=Two)


# ----------------------------------------------------------------------------------------------- optimizers, callbacks


class Lion(torch.optim.Optimizer):
    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    kept = self.state[one].setdefault("exp_avg", torch.zeros_like(one))
                    one.sub_(group["lr"] * torch.tanh(20 * (0.9 * kept + 0.1 * one.grad)))
                    kept.lerp_(one.grad, 0.01)


class Two(torch.optim.Optimizer):
    """Two optimizers that look like one (a GAN in one loop)."""

    def __init__(self, parameters: Any) -> None:
        parameters = list(parameters)
        super().__init__(parameters, {"lr": 0.1})
        self.ones = [torch.optim.SGD(parameters[:2], lr=0.1), torch.optim.Adam(parameters[2:], lr=0.01, eps=1e-4)]

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for one in self.ones:
            one.step()


class CountsSteps(torch.optim.SGD):
    """A rate that falls with the steps, which it counts in Python."""

    count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.count += 1
        for group in self.param_groups:
            group["lr"] = 0.1 / self.count
        return super().step(closure)


class GradientNoiseScaled(torch.optim.SGD):
    """All gradients are divided by the largest of all."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        grads = [one.grad for group in self.param_groups for one in group["params"] if one.grad is not None]
        most = max(float(one.abs().max()) for one in grads)
        for one in grads:
            one.div_(most)
        return super().step(closure)


def only_matrices(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD([one for one in parameters if one.dim() > 1], lr=0.05)


def decayed(parameters: Any) -> torch.optim.Optimizer:
    named_ones = list(parameters.named_parameters())
    return torch.optim.AdamW([
        {"params": [one for name, one in named_ones if name.endswith("bias")], "weight_decay": 0.0},
        {"params": [one for name, one in named_ones if not name.endswith("bias")], "weight_decay": 0.1},
    ], lr=1e-2, eps=1e-4)  # fmt: skip


for _name, _note, _made in (
    ("lion", "an optimizer of the user's with a state", lambda p: Lion(p, lr=0.02)),
    ("two_optimizers", "two optimizers in one", Two),
    ("counts_steps", "an optimizer that counts in Python", lambda p: CountsSteps(p, lr=0.1)),
    ("largest_of_all", "gradients divided by the largest of all", lambda p: GradientNoiseScaled(p, lr=0.05)),
    ("only_matrices", "biases are not trained", only_matrices),
    ("decayed", "biases do not decay", decayed),
    ("foreach", "foreach", lambda p: torch.optim.Adam(p, lr=1e-2, eps=1e-4, foreach=True)),
    ("capturable_amsgrad", "amsgrad", lambda p: torch.optim.AdamW(p, lr=1e-2, eps=1e-4, amsgrad=True)),
    ("rmsprop", "RMSprop, centered", lambda p: torch.optim.RMSprop(p, lr=1e-3, eps=1e-4, centered=True)),
    ("muon_like", "momentum made orthogonal", lambda p: torch.optim.SGD(p, lr=0.05, nesterov=True, momentum=0.9)),
):
    PRACTISED.entry(_note, own_optimizer=True)(named(_name, partial(job, mlp, optimizer=_made)))


@practised("a rate that falls where the loss stays", own_optimizer=True)
def on_plateau() -> Job:
    return job(mlp, lr_schedule=lambda optimizer: torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, factor=0.5, patience=0, threshold=0.5))  # fmt: skip


@practised("decay is changed by a callback, step by step", own_optimizer=True)
def decay_by_callback() -> Job:
    def on_step(session: Any, step: int, found: dict[str, float]) -> None:
        optimizer = getattr(session, "optimizer", None)
        if optimizer is not None:
            for group in optimizer.param_groups:
                group["weight_decay"] = 0.01 * step

    return job(mlp, on_step=on_step)


@practised("dropout grows by a callback", by_microbatch=True)
def dropout_by_callback() -> Job:
    def on_step(session: Any, step: int, found: dict[str, float]) -> None:
        for one in session.model.modules():
            if isinstance(one, nn.Dropout):
                one.p = min(0.5, 0.1 * step)

    return job(lambda: mlp(nn.Tanh(), nn.Dropout(0.0)), on_step=on_step)


@practised("the mean of the tokens of the batch, ignoring some, and a penalty of logits")
def z_loss() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        return per_token(output, target) + 1e-2 * output.logsumexp(-1).square().mean()

    return job(word_model, loss, dataset=tokens)


# ------------------------------------------------------------------------------------------- settings, and callbacks


@dataclass(slots=True)
class Slotted:
    """Settings as a dataclass has them."""

    scale: float = 1.0


class Level(Enum):
    LOW = 0.5
    HIGH = 1.0


@dataclass
class ByLevel:
    """Settings with a choice among some."""

    level: Level = Level.HIGH

    @property
    def scale(self) -> float:
        return self.level.value

    @scale.setter
    def scale(self, _: float) -> None:
        self.level = Level.LOW


def of_transformers() -> Any:
    from transformers import PretrainedConfig

    return PretrainedConfig(scale=1.0)


def by_settings(settings: Any) -> Job:
    def set_scale(session: Any, step: int, found: dict[str, float]) -> None:
        session.model.config.scale = 0.9 ** (step + 1)

    return job(of(lambda self, x: self.net(x) * self.config.scale, net=mlp, config=settings), on_step=set_scale)


for _name, _note, _settings in (
    ("settings_slotted", "a callback changes settings in slots", Slotted),
    ("settings_enum", "a callback changes settings that are an enum", ByLevel),
    ("settings_transformers", "a callback changes a configuration of transformers", of_transformers),
):
    PRACTISED.entry(_note)(named(_name, partial(by_settings, _settings)))


@practised("an average of the weights in buffers of the model, by a callback")
def average_in_buffers() -> Job:
    def make() -> nn.Module:
        model = mlp()
        for name, one in list(model.named_parameters()):
            model.register_buffer(name.replace(".", "_"), one.detach().clone())
        return model

    def follow(session: Any, step: int, found: dict[str, float]) -> None:
        with torch.no_grad():
            for name, one in session.model.named_parameters():
                getattr(session.model, name.replace(".", "_")).lerp_(one, 0.1)

    return job(make, on_step=follow)


@practised("hooks on activations, which the forward registers")
def hooks_on_activations() -> Job:
    def halved(self: Any, x: Tensor) -> Tensor:
        x.register_hook(lambda gradient: gradient * 0.5)
        return x

    return job(through(halved))


@practised("a checkpoint in a checkpoint")
def nested_checkpoints() -> Job:
    def twice(self: Any, x: Tensor) -> Tensor:
        def inside(x: Tensor) -> Tensor:
            return x + checkpoint(lambda x: torch.sin(self.extra(x)), torch.tanh(x), use_reentrant=False)

        return checkpoint(inside, x, use_reentrant=False)  # type: ignore[no-any-return]

    return job(through(twice, extra=lambda: nn.Linear(16, 16)))
