"""Jobs in which something is seldom so, or is kept where a capture leaves it, each beside its plain loop."""

from dataclasses import dataclass
from typing import Any

import numpy
import torch
from tests.field.entry import Family
from tests.field.strangers import CLASSES, WIDTH, WORDS, Symmetric, job, mlp, numbers, of, per_token, tokens
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import parametrizations, parametrize
from torch.utils.data import TensorDataset, default_collate

from trimaran.base.job import Job

SELDOM = Family("seldom")
seldom = SELDOM.entry


@seldom("a head that the loss reads where a class is in the batch, under AdamW, which decays", own_optimizer=True)
def read_for_a_class() -> Job:
    def forward(self: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.first(x))
        return self.head(hidden), self.other(hidden)

    def loss(output: tuple[Tensor, Tensor], target: Tensor) -> Tensor:
        value = functional.cross_entropy(output[0], target)
        rare = target == 0
        return value + output[1][rare].square().sum() / len(target) if rare.any() else value

    parts = {"first": (WIDTH, 16), "head": (16, CLASSES), "other": (16, 3)}
    return job(of(forward, **{name: lambda sizes=sizes: nn.Linear(*sizes) for name, sizes in parts.items()}), loss,
               optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1))  # fmt: skip


class Adjusted(nn.Module):
    """Logits are adjusted by how often each class has been seen, which the loss counts in a buffer."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.ones(CLASSES, dtype=torch.float64))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        self.seen += torch.bincount(target, minlength=CLASSES)
        return functional.cross_entropy(output + (self.seen / self.seen.sum()).log(), target)


@seldom("a loss that counts classes in a buffer, in place")
def counts_classes() -> Job:
    return job(mlp, Adjusted())


@seldom("a loss that counts less when it is small, as a float says")
def small_counts_less() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        value = functional.cross_entropy(output, target)
        return 0.1 * value if float(value) < 0.3 else value

    return job(mlp, loss)


@seldom("a factor of the schedule counts its calls", own_optimizer=True)
def counting_rate() -> Job:
    calls = {"number": 0}

    def factor(epoch: int) -> float:
        calls["number"] += 1
        return 1.0 / calls["number"]

    return job(mlp, lr_schedule=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, factor))


@seldom("a parametrized layer whose matrix is kept from its first call, which nothing reads")
def kept_parametrization() -> Job:
    def layer() -> nn.Module:
        made = nn.Linear(16, 16)
        parametrize.register_parametrization(made, "weight", Symmetric())
        return made

    def forward(self: Any, x: Tensor) -> Any:
        with parametrize.cached():
            self.layer(torch.tanh(self.first(x)))
            return self.head(torch.tanh(self.layer(self.layer(torch.tanh(self.first(x))))))

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), layer=layer, head=lambda: nn.Linear(16, CLASSES)))


@seldom("attention with weight norm in its last layer")
def attention_normed() -> Job:
    def attention() -> nn.Module:
        made = nn.MultiheadAttention(16, 2, batch_first=True)
        parametrizations.weight_norm(made.out_proj)
        return made

    def forward(self: Any, ids: Tensor) -> Any:
        x = self.embed(ids)
        return self.head(x + self.attend(x, x, x, need_weights=False)[0])

    parts = {"embed": lambda: nn.Embedding(WORDS, 16), "attend": attention, "head": lambda: nn.Linear(16, WORDS)}
    return job(of(forward, **parts), per_token, dataset=tokens)


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, CLASSES))


@seldom("a callback resets running statistics, which one stage of two has", by_microbatch=True)
def resets_statistics() -> Job:
    def reset(session: Any, step: int, found: dict[str, float]) -> None:
        if step == 3:
            session.model[1].reset_running_stats()

    return job(normed, on_step=reset)


class Remembers(nn.Module):
    """An RNN whose state goes on from batch to batch, from when a callback says so (truncated backpropagation)."""

    def __init__(self) -> None:
        super().__init__()
        self.goes_on, self.state = False, None
        self.embed, self.rnn = nn.Embedding(WORDS, 16), nn.GRU(16, 16, batch_first=True)
        self.head = nn.Linear(16, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        fits = self.goes_on and self.state is not None and self.state.shape[1] == len(ids)
        hidden, state = self.rnn(self.embed(ids), self.state if fits else None)
        self.state = state.detach() if self.goes_on else None
        return self.head(hidden)  # type: ignore[no-any-return]


@seldom("a state goes on from batch to batch, from when a callback says so")
def remembers_later() -> Job:
    def go_on(session: Any, step: int, found: dict[str, float]) -> None:
        session.model.goes_on = step >= 2

    return job(Remembers, per_token, dataset=tokens, on_step=go_on, drop_last=True)


@seldom("the three hardest samples of a batch, where few samples are fewer")
def three_hardest() -> Job:
    return job(mlp, lambda o, t: functional.cross_entropy(o, t, reduction="none").topk(3).values.mean())


@seldom("a bound on mutual information, by the batch in another order", by_microbatch=True)
def shuffled_bound() -> Job:
    return job(mlp, lambda o, t: functional.cross_entropy(o, t) + o[torch.randperm(len(o))].exp().mean().log())


class Clamped(torch.autograd.Function):
    """Gradients of activations are clamped, which they seldom have to be."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(-30.0, 30.0)


@seldom("a backward that clamps, for one sample that is far away")
def clamped_seldom() -> Job:
    def far() -> TensorDataset:
        x, y = numbers().tensors
        return TensorDataset(0.1 * x, torch.where(torch.arange(len(y)).unsqueeze(1) == 17, 900.0, 0.01 * y))

    def forward(self: Any, x: Tensor) -> Any:
        return self.head(Clamped.apply(torch.tanh(self.first(x))))  # type: ignore[no-untyped-call]

    parts = {"first": (WIDTH, 16), "head": (16, CLASSES)}
    return job(of(forward, **{name: lambda sizes=sizes: nn.Linear(*sizes) for name, sizes in parts.items()}),
               functional.mse_loss, dataset=far)  # fmt: skip


@seldom("a backward that a callback weakens, by a dict of its closure")
def weakened_by_callback() -> Job:
    strength = {"share": 1.0}

    class Weakened(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * strength["share"]

    def weaken(session: Any, step: int, found: dict[str, float]) -> None:
        strength["share"] = 0.3 if step else 1.0

    def forward(self: Any, x: Tensor) -> Any:
        return self.head(Weakened.apply(torch.tanh(self.first(x))))  # type: ignore[no-untyped-call]

    parts = {"first": (WIDTH, 16), "head": (16, CLASSES)}
    return job(of(forward, **{name: lambda sizes=sizes: nn.Linear(*sizes) for name, sizes in parts.items()}),
               on_step=weaken)  # fmt: skip


@seldom("a state goes on from batch to batch, which a callback switches on by vars()")
def switched_by_vars() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        found = self.first(x)
        if self.keeps:
            found = found if self.last is None else found + 0.1 * self.last
            self.last = found.detach().mean(0, keepdim=True)
        return found

    def switch(session: Any, step: int, found: dict[str, float]) -> None:
        vars(session.model).update(keeps=step >= 1)

    return job(of(forward, first=lambda: nn.Linear(WIDTH, CLASSES), keeps=False, last=None), on_step=switch)


@seldom("mixup in the order of numbers that are drawn", by_microbatch=True)
def mixed_by_argsort() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        if self.training:
            x = 0.7 * x + 0.3 * x[torch.rand(len(x)).argsort()]
        return self.net(x)

    return job(of(forward, net=mlp))


@dataclass(frozen=True)
class Points:
    """A batch."""

    x: Tensor
    y: Tensor


class Graphs:
    """A batch that is moved by its own method."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self.x, self.y = x, y

    def to(self, *place: Any) -> "Graphs":
        return Graphs(self.x.to(*place), self.y.to(*place))


def of_object(make: Any) -> Job:
    def collate(samples: list[Any]) -> Any:
        x, y = default_collate(samples)
        return make(x.double(), y)

    def forward(self: Any, batch: Any) -> Any:
        return self.net(batch.x)

    return job(of(forward, net=mlp), lambda output, batch: functional.cross_entropy(output, batch.y), collate=collate)


@seldom("a batch is a dataclass")
def batch_of_dataclass() -> Job:
    return of_object(Points)


@seldom("a batch is an object of the user's")
def batch_of_object() -> Job:
    return of_object(Graphs)


@seldom("masks of a spectrogram that numpy draws for one sample after the other", by_microbatch=True)
def masked_by_numpy() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        hidden = torch.tanh(self.first(x))
        if self.training:
            masks = numpy.zeros(hidden.shape, dtype=bool)
            for mask in masks:
                mask[numpy.random.choice(16, 3, replace=False)] = True  # noqa: NPY002
            hidden = hidden.masked_fill(torch.from_numpy(masks), 0.0)
        return self.head(hidden)

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES)))


@seldom("mixup by a permutation and a share of numpy", by_microbatch=True)
def mixed_by_numpy() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        if self.training:
            share = numpy.random.beta(0.4, 0.4)  # noqa: NPY002
            x = share * x + (1 - share) * x[numpy.random.permutation(len(x))]  # noqa: NPY002
        return self.net(x)

    return job(of(forward, net=mlp))


@seldom("layers are skipped, but not where FSDP has them, as models of Hugging Face do", by_microbatch=True)
def skips_but_under_fsdp() -> Job:
    def forward(self: Any, x: Tensor) -> Any:
        hidden = self.first(x)
        keeps = getattr(self, "_is_fsdp_managed_module", False)
        if keeps or torch.rand(()) > 0.5:
            hidden = hidden + torch.tanh(self.middle(hidden))
        return self.head(hidden)

    parts = {"first": (WIDTH, 16), "middle": (16, 16), "head": (16, CLASSES)}
    return job(of(forward, **{name: lambda sizes=sizes: nn.Linear(*sizes) for name, sizes in parts.items()}))


class FindsRate(torch.optim.Optimizer):
    """Raises one rate for all parameters as far as gradients go on as they began, as D-Adaptation does."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"rate": 1e-6, "way": 0.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        (group,), size = self.param_groups, 0.0
        for one in group["params"]:
            state = self.state[one]
            first, total = state.setdefault("first", one.clone()), state.setdefault("sum", torch.zeros_like(one))
            group["way"] += group["rate"] * float((one.grad * (first - one)).sum())
            total += group["rate"] * one.grad
            size += float(total.abs().sum())
        group["rate"] = max(group["rate"], group["way"] / size)
        for one in group["params"]:
            one -= group["rate"] * one.grad.sign()


@seldom("an optimizer that finds one rate for all parameters (D-Adaptation)", own_optimizer=True)
def finds_rate() -> Job:
    return job(mlp, optimizer=FindsRate)
