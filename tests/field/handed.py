"""Jobs that hand something on in a way of their own, each beside its plain loop: by batches, hooks, callbacks."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from tests.field.entry import Family
from tests.field.strangers import CLASSES, SAMPLES, WIDTH, job, mlp, named, of, points
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

from trimaran.base.job import Job

HANDED = Family("handed")
handed = HANDED.entry


# -------------------------------------------------------------------------------------- what a forward does to a batch


class Rows(Dataset[Any]):
    """Dicts of an input and a label."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        x, y = points()[index]
        return {"x": x, "y": y}


class Nested(Rows):
    """The same in dicts of their own."""

    def __getitem__(self, index: int) -> Any:
        x, y = points()[index]
        return {"given": {"x": x}, "wanted": {"y": y}}


def from_batch(forward: Any, loss: Any, dataset: Any = Rows) -> Job:
    return job(of(forward, first=lambda: nn.Linear(WIDTH, 16), head=lambda: nn.Linear(16, CLASSES), net=mlp), loss,
               dataset=dataset)  # fmt: skip


@handed("the forward puts features into the batch, on which the loss has a term")
def features_in_batch() -> Job:
    def forward(self: Any, batch: Any) -> Tensor:
        batch["features"] = torch.tanh(self.first(batch["x"]))
        return self.head(batch["features"]) + self.net(batch["x"])

    return from_batch(
        forward, lambda o, b: functional.cross_entropy(o, b["y"]) + 0.1 * b["features"].square().mean()
    )  # fmt: skip


@handed("the same in a dict in the batch")
def features_in_nested() -> Job:
    def forward(self: Any, batch: Any) -> Tensor:
        batch["wanted"]["h"] = torch.tanh(self.first(batch["given"]["x"]))
        return self.head(batch["wanted"]["h"]) + self.net(batch["given"]["x"])

    def loss(output: Tensor, batch: Any) -> Tensor:
        return functional.cross_entropy(output, batch["wanted"]["y"]) + 0.1 * batch["wanted"]["h"].square().mean()

    return from_batch(forward, loss, Nested)


@handed("the forward gives the batch, with its logits in it")
def batch_with_logits() -> Job:
    def forward(self: Any, batch: Any) -> Any:
        batch["logits"] = self.net(batch["x"]) + self.head(torch.tanh(self.first(batch["x"])))
        return batch

    return from_batch(forward, lambda o, b: functional.cross_entropy(o["logits"], o["y"]))


@handed("the forward takes the input out of the batch")
def input_taken_out() -> Job:
    def forward(self: Any, batch: Any) -> Tensor:
        x = batch.pop("x")
        return self.net(x) + self.head(torch.tanh(self.first(x)))

    return from_batch(forward, lambda o, b: functional.cross_entropy(o, b["y"]))


@handed("the forward puts soft labels in the place of the labels")
def labels_replaced() -> Job:
    def forward(self: Any, batch: Any) -> Tensor:
        batch["y"] = functional.one_hot(batch["y"], CLASSES).double() * 0.9 + 0.1 / CLASSES
        return self.net(batch["x"]) + self.head(torch.tanh(self.first(batch["x"])))

    return from_batch(forward, lambda o, b: functional.cross_entropy(o, b["y"]))


@handed("the loss adds up over ranks how many samples count (DETR)", weight=lambda batch: float((batch[1] > 0).sum()))
def counted_over_ranks() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        counted, ranks = (target > 0).sum().double(), 1
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(counted)
            ranks = dist.get_world_size()
        each = functional.cross_entropy(output, target, reduction="none")
        return (each * (target > 0)).sum() / (counted / ranks).clamp(min=1)

    return job(mlp, loss)


# --------------------------------------------------------------------------------------------- forwards, and parameters


def with_doubled_forward() -> nn.Module:
    model = mlp()
    plain = model.forward
    model.forward = lambda x: plain(x) * 2
    return model


def with_injected_lora() -> nn.Module:
    model: Any = mlp()
    layer = model[2]
    layer.down, layer.up = nn.Parameter(torch.randn(2, 16) * 0.1), nn.Parameter(torch.randn(16, 2) * 0.1)
    plain = layer.forward
    layer.forward = lambda x: plain(x) + x @ layer.down.T @ layer.up.T
    return model  # type: ignore[no-any-return]


HANDED.entry("another forward is put on the model")(named("forward_on_model", partial(job, with_doubled_forward)))
HANDED.entry("another forward is put on a layer, with an adapter")(
    named("forward_on_layer", partial(job, with_injected_lora))
)


@handed("a hook on a layer that takes itself away at its first call")
def hook_once() -> Job:
    def make() -> nn.Module:
        model = mlp()
        handle = model[0].register_forward_pre_hook(lambda *_: handle.remove())
        return model

    return job(make)


@handed("a loss that returns a sum and a weight that is learned, too")
def learned_weight() -> Job:
    def loss(output: Any, target: Tensor) -> Any:
        each = functional.cross_entropy(output[0], target, reduction="none")
        return (each * output[1]).sum(), output[1].sum()

    return job(of(lambda self, x: (self.net(x), self.gate(x).sigmoid()[:, 0]), net=mlp,
                  gate=lambda: nn.Linear(WIDTH, 1)), loss)  # fmt: skip


@handed("parameters() of the model gives those that are to be trained", own_optimizer=True)
def own_parameters() -> Job:
    class Some(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.frozen, self.net = nn.Linear(WIDTH, WIDTH), mlp()

        def parameters(self, recurse: bool = True) -> Any:
            return self.net.parameters(recurse)

        def forward(self, x: Tensor) -> Tensor:
            return self.net(self.frozen(x))  # type: ignore[no-any-return]

    return job(Some)


@handed("the first forward makes the head")
def head_at_first() -> Job:
    class Growing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = mlp(), None

        def forward(self, x: Tensor) -> Tensor:
            h = self.net(x)
            if self.head is None:
                self.head = nn.Linear(CLASSES, CLASSES).to(h)
            return self.head(h)

    return job(Growing)


@handed("evaluations are of another output than the loss")
def scored_by_chance() -> Job:
    class Chances(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = mlp()

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.net(x)
            return out if self.training else out.softmax(1)

    return job(Chances, evaluation_dataset=points,
               metric=lambda o, t: float(o.gather(1, t[:, None]).mean()))  # fmt: skip


# ------------------------------------------------------------------------------------------------------ hooks on a step


def clip_groups(optimizer: Any, *_: Any) -> None:
    for group in optimizer.param_groups:
        nn.utils.clip_grad_norm_(group["params"], 0.1)


def to_unit_rows(optimizer: Any, *_: Any) -> None:
    with torch.no_grad():
        for one in (one for group in optimizer.param_groups for one in group["params"] if one.dim() > 1):
            one.div_(one.norm(dim=1, keepdim=True).clamp(min=1.0))


def hooked(parameters: Any, pre: Any = None, post: Any = None) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9)
    if pre is not None:
        optimizer.register_step_pre_hook(pre)
    if post is not None:
        optimizer.register_step_post_hook(post)
    return optimizer


for _name, _note, _hooks in (
    ("step_pre_hook", "a hook before the step clips each group", {"pre": clip_groups}),
    ("step_post_hook", "a hook after the step puts rows on a ball", {"post": to_unit_rows}),
):
    HANDED.entry(_note, own_optimizer=True)(named(_name, partial(job, mlp, optimizer=partial(hooked, **_hooks))))


@handed("the schedule registers a hook before the step", own_optimizer=True)
def step_hook_of_schedule() -> Job:
    def schedule(optimizer: Any) -> Any:
        optimizer.register_step_pre_hook(clip_groups)
        return torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)

    return job(mlp, optimizer=hooked, lr_schedule=schedule)


@handed("a callback registers a hook before the step", own_optimizer=True)
def step_hook_of_callback() -> Job:
    def register(session: Any, step: int, found: dict[str, float]) -> None:
        if step == 0 and session.optimizer is not None:
            session.optimizer.register_step_pre_hook(clip_groups)

    return job(mlp, optimizer=hooked, on_step=register)


class ByFigure:
    """A schedule that sets rates by a figure of what its optimizer has."""

    def __init__(self, optimizer: Any, figure: Any) -> None:
        self.optimizer, self.figure = optimizer, figure

    def step(self) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = 0.05 / (1 + self.figure(self.optimizer))


def of_weights(optimizer: Any) -> float:
    return sum(float(one.detach().norm()) for group in optimizer.param_groups for one in group["params"])


def of_state(optimizer: Any) -> float:
    return sum(float(one["momentum_buffer"].norm()) for one in optimizer.state.values())


for _name, _note, _figure in (
    ("rate_by_weights", "a rate by the norm of the weights", of_weights),
    ("rate_by_momentum", "a rate by the norm of the momentum", of_state),
):
    HANDED.entry(_note, own_optimizer=True)(
        named(_name, partial(job, mlp, lr_schedule=partial(ByFigure, figure=_figure)))
    )


@handed("a rate by the norm of a layer of the model", own_optimizer=True)
def rate_by_model() -> Job:
    held: dict[str, Any] = {}

    def make() -> nn.Module:
        held["model"] = mlp()
        return held["model"]  # type: ignore[no-any-return]

    def rate(step: int) -> float:
        return 1.0 / (1 + float(held["model"][2].weight.detach().norm()))

    return job(make, lr_schedule=lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, rate))


@handed("the step of the optimizer moves a target network that it knows by the factory (BYOL)", own_optimizer=True)
def target_in_step() -> Job:
    held: dict[str, Any] = {}

    class Follows(torch.optim.SGD):
        @torch.no_grad()
        def step(self, closure: Any = None) -> Any:  # type: ignore[override]
            super().step(closure)
            model = held["model"]
            for slow, fast in zip(model.target.parameters(), model.net.parameters(), strict=True):
                slow.lerp_(fast, 0.1)

    def forward(self: Any, x: Tensor) -> Any:
        with torch.no_grad():
            wanted = self.target(x.flip(1))
        return self.head(self.net(x)), wanted

    def make() -> nn.Module:
        held["model"] = of(forward, net=mlp, target=lambda: mlp().requires_grad_(False),
                           head=lambda: nn.Linear(CLASSES, CLASSES))()  # fmt: skip
        return held["model"]  # type: ignore[no-any-return]

    return job(make, lambda o, t: 2 - 2 * functional.cosine_similarity(o[0], o[1]).mean(),
               optimizer=lambda parameters: Follows(parameters, lr=0.05))  # fmt: skip


@handed("samples follow the weights of the model")
def samples_by_model() -> Job:
    held: dict[str, Any] = {}

    def make() -> nn.Module:
        held["model"] = mlp()
        return held["model"]  # type: ignore[no-any-return]

    class Harder(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            x, y = points()[index]
            return x * (1 + float(held["model"][4].weight.detach().abs().mean())), y

    return job(make, dataset=Harder)


@handed("hooks rename the entries of the state_dict")
def state_renamed() -> Job:
    def rename(_: Any, state: Any, *__: Any) -> None:
        for key in list(state):
            state[f"net.{key}"] = state.pop(key)

    def make() -> nn.Module:
        model = mlp()
        model.register_state_dict_post_hook(rename)
        return model

    return job(make)


# -------------------------------------------------------------------------------------- callbacks, from a later step on


class Frozen(nn.Module):
    """Runs its first layer without gradients, or with less of it, from when a callback says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.rest, self.frozen, self.share = nn.Linear(WIDTH, WIDTH), mlp(), False, 1.0

    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(not self.frozen):
            h = torch.tanh(self.first(x)) * self.share
        return self.rest(h)  # type: ignore[no-any-return]


def freeze_later(session: Any, step: int, found: dict[str, float]) -> None:
    if step == 2:
        session.model.frozen = True


def lessen_later(session: Any, step: int, found: dict[str, float]) -> None:
    if step == 2:
        session.model.share = 0.5


def replace_forward(session: Any, step: int, found: dict[str, float]) -> None:
    if step == 2:
        session.model.first.forward = torch.no_grad()(session.model.first.forward)


for _name, _note, _callback in (
    ("frozen_later", "a callback has a layer run without gradients from the third step on", freeze_later),
    ("lessened_later", "a callback sets a number from the third step on", lessen_later),
    ("forward_replaced", "a callback puts another forward into a layer", replace_forward),
):
    HANDED.entry(_note)(named(_name, partial(job, Frozen, on_step=_callback)))
