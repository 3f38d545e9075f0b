"""Jobs that change while they train, each beside its plain loop: by callbacks, by their calls, by their optimizers."""

import random
from functools import partial
from typing import Any

import numpy
import torch
from tests.field.entry import Family
from tests.field.strangers import (
    CLASSES,
    SAMPLES,
    WIDTH,
    WORDS,
    binary,
    job,
    mlp,
    named,
    of,
    per_token,
    points,
    tokens,
    two_classes,
    word_model,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, RandomSampler, default_collate, random_split

from trimaran.base.job import Job

CHANGING = Family("changing")
changing = CHANGING.entry


# -------------------------------------------------------------------------------------------------- terms that come in


class Staged(nn.Module):
    """Subtracts the mean of the batch from a stage on."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.stage, self.heat, self.spread = mlp(), 0, 2.0, 0.0
        self.register_buffer("phase", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x) / self.heat
        return out - out.mean(0) if self.stage > 0 or int(self.phase) > 0 else out


def set_stage(session: Any, epoch: int, found: dict[str, float]) -> None:
    session.model.stage = epoch + 1


def fill_phase(session: Any, epoch: int, found: dict[str, float]) -> None:
    session.model.phase += 1


def cool(session: Any, epoch: int, found: dict[str, float]) -> None:
    session.model.heat = max(0.5, 0.9 * session.model.heat)


for _name, _note, _callback in (
    ("staged_by_callback", "a callback brings in a term over the batch", set_stage),
    ("staged_by_buffer", "a callback brings in a term over the batch by a buffer", fill_phase),
):
    CHANGING.entry(_note)(named(_name, partial(job, Staged, on_epoch=_callback)))


@changing("the loss brings in a term over the batch after some calls")
def staged_by_calls() -> Job:
    calls = [0]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls[0] += 1
        value = functional.cross_entropy(output, target)
        return value + output.var(0).mean() if calls[0] > 3 else value

    return job(mlp, loss)


@changing("a weight of a term is raised by a callback, after each epoch")
def weight_by_callback() -> Job:
    held = {"share": 0.0}

    def raise_share(session: Any, epoch: int, found: dict[str, float]) -> None:
        held["share"] += 0.5

    return job(mlp, lambda o, t: functional.cross_entropy(o, t) + held["share"] * o.square().mean(),
               on_epoch=raise_share)  # fmt: skip


class Spread(nn.Module):
    """Leaves a figure of its samples behind."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.heat, self.spread = mlp(), 1.0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        self.spread = float(out.detach().square().mean())
        return out * self.heat


@changing("a callback follows what the forward left")
def follows_spread() -> Job:
    def follow(session: Any, step: int, found: dict[str, float]) -> None:
        session.model.heat = 1.0 + session.model.spread

    return job(Spread, on_step=follow)


@changing("a callback prints what the forward left")
def prints_spread() -> Job:
    def tell(session: Any, step: int, found: dict[str, float]) -> None:
        print(session.model.spread)  # noqa: T201

    return job(Spread, on_step=tell)


@changing("a callback follows what the loss left")
def follows_kept() -> Job:
    held = {"share": 1.0, "seen": 0.0}

    def loss(output: Tensor, target: Tensor) -> Tensor:
        held["seen"] = float(output.detach().square().mean())
        return functional.cross_entropy(output, target) + held["share"] * output.square().mean()

    def follow(session: Any, step: int, found: dict[str, float]) -> None:
        held["share"] = 1 + held["seen"]

    return job(mlp, loss, on_step=follow)


@changing("a callback follows the mean loss")
def follows_loss() -> Job:
    held = {"mean": 1.0}

    def follow(session: Any, step: int, found: dict[str, float]) -> None:
        held["mean"] = 0.9 * held["mean"] + 0.1 * found["loss"]

    return job(mlp, lambda o, t: functional.cross_entropy(o, t) / held["mean"], on_step=follow)


@changing("two networks take turns, by a callback", own_optimizer=True)
def taking_turns() -> Job:
    class Turns(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.other, self.turn = mlp(), mlp(), 0

        def forward(self, x: Tensor) -> Tensor:
            return self.other(x) if self.turn % 2 else self.one(x)  # type: ignore[no-any-return]

    def pass_on(session: Any, step: int, found: dict[str, float]) -> None:
        session.model.turn = step + 1

    return job(Turns, on_step=pass_on,
               optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1, eps=1e-4))  # fmt: skip


@changing("a loss that keeps a count in a default")
def kept_in_default() -> Job:
    def loss(output: Tensor, target: Tensor, kept: dict[str, int] = {"calls": 0}) -> Tensor:  # noqa: B006
        kept["calls"] += 1
        return functional.cross_entropy(output, target) * min(1.0, kept["calls"] / 5)

    return job(mlp, loss)


# ------------------------------------------------------------------------------------- weights, and who writes to them


@changing("a callback puts clamped weights in the place of .data")
def callback_rebinds() -> Job:
    def clamp(session: Any, step: int, found: dict[str, float]) -> None:
        for one in session.model.parameters():
            one.data = one.data.clamp(-0.2, 0.2)

    return job(mlp, on_step=clamp)


class Rebinding(torch.optim.SGD):
    """Puts new tensors in the place of `.data` and of `.grad`."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group in self.param_groups:
            for one in group["params"]:
                if one.grad is not None:
                    one.grad = one.grad.sign() * 0.01 + one.grad
                    one.data = one.data - group["lr"] * one.grad


class Skipping(torch.optim.SGD):
    """Leaves out a step whose norm is above the mean of those before."""

    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        norm = sum(float(p.grad.norm()) for group in self.param_groups for p in group["params"] if p.grad is not None)
        seen = self.param_groups[0].setdefault("seen", norm)
        self.param_groups[0]["seen"] = 0.9 * seen + 0.1 * norm
        return super().step(closure) if norm <= 1.001 * seen else None


class Wrapper(torch.optim.Optimizer):
    """Goes half of the way back every second step; does not call `__init__` of its class."""

    def __init__(self, wrapped: torch.optim.Optimizer) -> None:
        self.wrapped, self.count = wrapped, 0
        self.param_groups, self.state, self.defaults = wrapped.param_groups, wrapped.state, wrapped.defaults

    def zero_grad(self) -> None:  # type: ignore[override] # as wrappers of old have it
        self.wrapped.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        self.wrapped.step()
        self.count += 1
        for one in (one for group in self.param_groups for one in group["params"] if self.count % 2 == 0):
            slow = self.state[one].setdefault("slow", one.clone())
            one.copy_(slow.lerp_(one, 0.5))


class Rows(torch.optim.SGD):
    """Clips each row of a gradient by the norm of that of the weight (AGC)."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for one in (one for group in self.param_groups for one in group["params"] if one.grad is not None):
            dims = tuple(range(1, one.dim())) or (0,)
            most = one.norm(dim=dims, keepdim=True).clamp(min=1e-3) * 0.02
            one.grad.mul_((most / one.grad.norm(dim=dims, keepdim=True).clamp(min=1e-6)).clamp(max=1))
        return super().step(closure)


class Anchored(torch.optim.SGD):
    """Draws weights to where they were at first."""

    def __init__(self, parameters: Any, lr: float) -> None:
        super().__init__(parameters, lr)
        self.first = [[one.detach().clone() for one in group["params"]] for group in self.param_groups]

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        for group, first in zip(self.param_groups, self.first, strict=True):
            for one, start in zip(group["params"], first, strict=True):
                if one.grad is not None:
                    one.grad.add_(one - start, alpha=0.1)
        return super().step(closure)


for _name, _note, _made in (
    ("step_rebinds", "a step that puts new tensors in the place of .data and .grad", lambda p: Rebinding(p, lr=0.05)),
    ("skips_by_norm", "steps are left out by the norm", lambda p: Skipping(p, lr=0.05)),
    ("wrapper", "a wrapper that shares groups", lambda p: Wrapper(torch.optim.SGD(p, lr=0.05, momentum=0.9))),
    ("clips_rows", "rows are clipped by their norms", lambda p: Rows(p, lr=0.05)),
    ("anchored", "decay towards the first weights", lambda p: Anchored(p, lr=0.05)),
    ("rate_in_tensor", "a rate that is a tensor", lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-3), eps=1e-4)),
):
    CHANGING.entry(_note, own_optimizer=True)(named(_name, partial(job, mlp, optimizer=_made)))


class Adapter(nn.Module):
    """Of low rank, in the frozen weight while it is evaluated."""

    def __init__(self, *, rebinds: bool) -> None:
        super().__init__()
        self.base, self.merged, self.rebinds = nn.Linear(16, 16).requires_grad_(False), False, rebinds
        self.down, self.up = nn.Parameter(torch.randn(2, 16) * 0.1), nn.Parameter(torch.ones(16, 2) * 0.1)

    def train(self, mode: bool = True) -> "Adapter":
        super().train(mode)
        if self.merged == mode:
            with torch.no_grad():
                change = (self.up @ self.down) * (-1 if mode else 1)
                if self.rebinds:
                    self.base.weight.data += change
                else:
                    self.base.weight += change
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        return out if self.merged else out + x @ self.down.T @ self.up.T


def accuracy(output: Tensor, target: Tensor) -> float:
    return float((output.argmax(1) == target).double().mean())


def keep(session: Any, epoch: int, found: dict[str, float]) -> None:
    """Each epoch is evaluated."""


for _name, _note, _rebinds in (
    ("merged_adapter", "an adapter that train() merges", False),
    ("merged_data", "an adapter that train() merges into .data", True),
):

    def _adapted(rebinds: bool) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), Adapter(rebinds=rebinds), nn.Tanh(), nn.Linear(16, 2))

    CHANGING.entry(_note)(named(_name, partial(job, partial(_adapted, _rebinds), dataset=binary,
                          evaluation_dataset=binary, metric=accuracy, on_epoch=keep)))  # fmt: skip


# ------------------------------------------------------------------------------------------------------- data and seeds


@changing("samples that are read together have their mean taken away, by __getitems__")
def read_together() -> Job:
    class Together(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            return points()[index]

        def __getitems__(self, indices: list[int]) -> list[Any]:
            found = [self[index] for index in indices]
            mean = torch.stack([x for x, _ in found]).mean(0)
            return [(x - mean, y) for x, y in found]

    return job(mlp, dataset=Together)


@changing("weights that numpy and random draw")
def drawn_by_numpy() -> Job:
    def make() -> nn.Module:
        model = mlp()
        with torch.no_grad():
            model[0].weight.copy_(torch.from_numpy(numpy.random.randn(16, WIDTH) * 0.3))  # noqa: NPY002
            model[2].weight.mul_(random.random())
        return model

    return job(make)


@changing("a part of the data that is drawn when they are made")
def drawn_split() -> Job:
    return job(mlp, dataset=lambda: random_split(points(), [20, SAMPLES - 20])[0])


@changing("a sampler of torch's that draws")
def drawn_order() -> Job:
    return job(mlp, sampler=lambda dataset, epoch: RandomSampler(dataset))


@changing("a collate function that counts its calls")
def counting_collate() -> Job:
    held = {"calls": 0}

    def collate(samples: list[Any]) -> Any:
        held["calls"] += 1
        x, y = default_collate(samples)
        return x * min(1.0, held["calls"] / 5), y

    return job(mlp, collate=collate)


@changing("a data set whose epoch is set by its sampler")
def epoch_by_sampler() -> Job:
    class Shifted(Dataset[Any]):
        epoch = 0

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            x, y = points()[index]
            return x + 0.1 * self.epoch, y

    def order(dataset: Any, epoch: int) -> Any:
        dataset.epoch = epoch
        return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch)).tolist()

    return job(mlp, dataset=Shifted, sampler=order)


@changing("samples that get longer with the epoch, which the sampler sets")
def longer_by_epoch() -> Job:
    class Cut(Dataset[Any]):
        length = 2

        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            ids, labels = tokens()[index]
            return ids[: self.length], labels[: self.length]

    def order(dataset: Any, epoch: int) -> Any:
        dataset.length = 2 + 2 * epoch
        return range(8)

    return job(word_model, per_token, dataset=Cut, sampler=order, epochs=3)


# ----------------------------------------------------------------------------------------------------- losses, networks


class Boxes(Dataset[Any]):
    """Ten places, of which some have a class."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        generator = torch.Generator().manual_seed(index)
        target = torch.zeros(10, dtype=torch.long)
        target[: 1 + index % 3] = 1 + index % (CLASSES - 1)
        return torch.randn(10, WIDTH, generator=generator), target


@changing("three negatives for each positive of a sample (SSD)", weight=lambda batch: float((batch[1] > 0).sum()))
def hard_negatives() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        each = functional.cross_entropy(output.flatten(0, 1), target.flatten(), reduction="none").view(target.shape)
        positive = target > 0
        count = positive.sum(1)
        negative = each.masked_fill(positive, 0)
        rank = negative.argsort(1, descending=True).argsort(1)
        return ((each * positive).sum() + (negative * (rank < 3 * count[:, None])).sum()) / count.sum()

    return job(mlp, loss, dataset=Boxes)


@changing("preferences against a frozen reference in the model (DPO)")
def preferences() -> Job:
    class Chosen(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            words, _ = tokens()[index]
            return {"chosen": words, "rejected": words.flip(0)}

    def chance(net: Any, words: Tensor) -> Tensor:
        logs = net(words[:, :-1]).log_softmax(-1)
        return logs.gather(-1, words[:, 1:, None])[..., 0].sum(1)  # type: ignore[no-any-return]

    def forward(self: Any, batch: Any) -> Tensor:
        with torch.no_grad():
            known = chance(self.reference, batch["chosen"]) - chance(self.reference, batch["rejected"])
        return chance(self.net, batch["chosen"]) - chance(self.net, batch["rejected"]) - known

    return job(of(forward, net=word_model, reference=lambda: word_model().requires_grad_(False).eval()),
               lambda o, b: -functional.logsigmoid(0.1 * o).mean(), dataset=Chosen)  # fmt: skip


@changing("the embedding is the head, and projects back")
def tied_three_ways() -> Job:
    def forward(self: Any, words: Tensor) -> Tensor:
        h = torch.tanh(self.mid(self.embed(words)))
        h = torch.tanh(h + functional.linear(h, self.embed.weight) @ self.embed.weight)
        return functional.linear(h, self.embed.weight)

    return job(of(forward, embed=lambda: nn.Embedding(WORDS, 16), mid=lambda: nn.Linear(16, 16)), per_token,
               dataset=tokens)  # fmt: skip


@changing("the graphs of a batch are an object of the user's")
def graph_objects() -> Job:
    class Graphs:
        def __init__(self, nodes: Tensor, owner: Tensor, count: int) -> None:
            self.nodes, self.owner, self.count = nodes, owner, count

    class Some(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            generator = torch.Generator().manual_seed(index)
            nodes = torch.randn(2 + index % 4, WIDTH, generator=generator, dtype=torch.float64)
            return nodes, torch.tensor(index % CLASSES)

    def collate(samples: list[Any]) -> Any:
        owner = torch.cat([torch.full((len(nodes),), number) for number, (nodes, _) in enumerate(samples)])
        graphs = Graphs(torch.cat([nodes for nodes, _ in samples]), owner, len(samples))
        return graphs, torch.stack([target for _, target in samples])

    def forward(self: Any, graphs: Graphs) -> Tensor:
        h = torch.tanh(self.first(graphs.nodes))
        return self.head(h.new_zeros(graphs.count, 16).index_add(0, graphs.owner, h))

    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES)), dataset=Some,
               collate=collate)  # fmt: skip


@changing("the mean of the recall of each class", own_optimizer=True)
def balanced_accuracy() -> Job:
    def metric(output: Tensor, target: Tensor) -> float:
        hits = (output.argmax(1) == target).double()
        return float(torch.stack([hits[target == one].mean() for one in target.unique()]).mean())

    return job(two_classes, dataset=binary, evaluation_dataset=binary, metric=metric)
