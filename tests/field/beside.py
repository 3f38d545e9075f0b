"""Jobs that keep what they need where a look does not expect it, each beside its plain loop."""

import copy
import itertools
from typing import Any

import torch
import torch.distributed as dist
from tests.field.entry import Family
from tests.field.strangers import CLASSES, WIDTH, WORDS, job, mlp, per_token, points, tokens
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset, default_collate

from trimaran.base.job import Job

BESIDE = Family("beside")
beside = BESIDE.entry


@beside("the loss counts its calls in an attribute of its function")
def counts_on_function() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        loss.calls += 1  # type: ignore[attr-defined]
        return functional.cross_entropy(output, target) * (1 + loss.calls / 10)  # type: ignore[attr-defined]

    loss.calls = 0  # type: ignore[attr-defined]
    return job(mlp, loss)


@beside("the loss takes other samples from an iterator")
def takes_from_iterator() -> Job:
    others = itertools.cycle([torch.full((CLASSES,), float(number)) for number in range(7)])

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target) + 0.01 * (output * next(others).to(output)).mean()

    return job(mlp, loss)


@beside("the loss draws from a Sobol engine")
def draws_from_sobol() -> Job:
    engine = torch.quasirandom.SobolEngine(CLASSES, scramble=True, seed=1)  # type: ignore[no-untyped-call]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target) + (output * engine.draw(1).to(output)).mean()

    return job(mlp, loss)


@beside("collate takes a scale from an iterator")
def collates_from_iterator() -> Job:
    scales = itertools.cycle([1.0, 2.0, 3.0])

    def collate(samples: list[Any]) -> Any:
        x, y = default_collate(samples)
        return x * next(scales), y

    return job(mlp, collate=collate)


class Normalized(nn.Module):
    """Puts rows of length 1 in the place of its weight, also where they have that length."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.weight = nn.Linear(WIDTH, 16), nn.Parameter(torch.randn(CLASSES, 16))

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data = functional.normalize(self.weight.data, dim=1)
        return torch.tanh(self.net(x)) @ self.weight.T * 5


@beside("the forward normalizes its weight by .data")
def normalizes_data() -> Job:
    return job(Normalized)


class Dropped(nn.Module):
    """An LSTM of whose weight each forward drops some (AWD), as a plain attribute in the place of the parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.rnn = nn.Embedding(WORDS, 16), nn.LSTM(16, 16, batch_first=True)
        self.head, self.raw = nn.Linear(16, WORDS), nn.Parameter(self.rnn.weight_hh_l0.detach().clone())
        del self.rnn._parameters["weight_hh_l0"]

    def forward(self, ids: Tensor) -> Tensor:
        self.rnn.weight_hh_l0 = functional.dropout(self.raw, 0.3, self.training)
        out: Tensor = self.head(self.rnn(self.embed(ids))[0])
        return out


@beside("weight drop, as of AWD", by_microbatch=True)
def weight_drop() -> Job:
    return job(Dropped, per_token, dataset=tokens)


@beside("the loss is added up over ranks, for a log")
def logs_over_ranks() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        found = functional.cross_entropy(output, target)
        if dist.is_initialized():
            dist.all_reduce(found.detach().clone())
        return found

    return job(mlp, loss)


@beside("a callback reads its state back")
def reloads() -> Job:
    def reload(session: Any, step: int, found: dict[str, float]) -> None:
        if step == 2:
            session.model.load_state_dict(session.model.state_dict())

    return job(mlp, on_step=reload)


class Extra(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()

    def get_extra_state(self) -> Any:
        return {"version": 1}

    def set_extra_state(self, state: Any) -> None:
        """Nothing depends on it."""

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.net(x)
        return out


@beside("a state that is no tensor")
def extra_state() -> Job:
    return job(Extra)


@beside("two samples, to see that the loss falls")
def two_samples() -> Job:
    return job(mlp, dataset=lambda: TensorDataset(*(one[:2] for one in points().tensors)), global_batch_size=2)


@beside("the loss takes the gradient of its value by features that the forward returns")
def feature_penalty() -> Job:
    class Featured(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.head = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            features = torch.tanh(self.net(x))
            return self.head(features), features

    def loss(output: Any, target: Tensor) -> Tensor:
        logits, features = output
        total = functional.cross_entropy(logits, target, reduction="sum")
        (found,) = torch.autograd.grad(total, features, create_graph=True)
        return total / len(target) + found.square().sum(1).mean()

    return job(Featured, loss)


class Taught(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.student = mlp()
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            for one, other in zip(self.teacher.parameters(), self.student.parameters(), strict=True):
                one.lerp_(other, 0.1)
            taught = self.teacher(x)
        return self.student(x), taught


@beside("a teacher that begins as its student, and that each forward moves")
def moving_teacher() -> Job:
    def loss(output: Any, target: Tensor) -> Tensor:
        return functional.cross_entropy(output[0], target) + (output[0] - output[1]).square().mean()

    return job(Taught, loss)


def half(output: Tensor, target: Tensor) -> Tensor:
    """The mean of the larger half of a batch."""
    each = functional.cross_entropy(output, target, reduction="none")
    return each.topk(max(1, len(each) // 2)).values.mean()


@beside("a callback sets a text, by which the loss takes the hardest samples")
def phase_by_callback() -> Job:
    held = {"phase": "warm"}

    def step(session: Any, step: int, found: dict[str, float]) -> None:
        held["phase"] = "hard" if step >= 1 else "warm"

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target) if held["phase"] == "warm" else half(output, target)

    return job(mlp, loss, on_step=step)


@beside("a callback puts another function in the place of the loss")
def loss_by_callback() -> Job:
    held = {"loss": functional.cross_entropy}

    def step(session: Any, step: int, found: dict[str, float]) -> None:
        held["loss"] = half

    return job(mlp, lambda output, target: held["loss"](output, target), on_step=step)


@beside("a callback appends a term to the loss")
def term_by_callback() -> Job:
    terms: list[Any] = [functional.cross_entropy]

    def step(session: Any, step: int, found: dict[str, float]) -> None:
        if step == 1:
            terms.append(lambda output, target: (output.mean(0) - 0.1).square().sum())

    return job(mlp, lambda output, target: sum(term(output, target) for term in terms), on_step=step)


@beside("a callback sets the weights of classes, which are all one at first")
def classes_by_callback() -> Job:
    loss = nn.CrossEntropyLoss(weight=torch.ones(CLASSES, dtype=torch.float64))

    def step(session: Any, step: int, found: dict[str, float]) -> None:
        loss.weight = torch.linspace(1, 2, CLASSES, dtype=torch.float64)

    return job(mlp, loss, on_step=step)


class Centered(nn.Module):
    """Puts another tensor in the place of its center in each call (DINO)."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(CLASSES))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        chance = ((output.detach() - self.center) / 0.5).softmax(1)
        self.center = self.center * 0.9 + output.detach().mean(0) * 0.1
        return functional.cross_entropy(output, target) - (chance * output.log_softmax(1)).sum(1).mean()


@beside("a loss that centers what it compares, by another buffer each time")
def centered_loss() -> Job:
    return job(mlp, Centered())


class AdaptedNorm(nn.Module):
    """Normalizes by the batch in evaluation alone (AdaBN); in training by its running mean."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.head = nn.Linear(WIDTH, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.net(x))
        return self.head(h if self.training else h - h.mean(0))  # type: ignore[no-any-return]


@beside("evaluations normalize by their batch")
def evaluates_by_batch() -> Job:
    return job(AdaptedNorm, evaluation_dataset=points, metric=lambda o, t: float(o.gather(1, t[:, None]).mean()))


class Tempered(nn.Module):
    """Its temperature is a property."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self._heat = mlp(), 1.0

    @property
    def heat(self) -> float:
        return self._heat

    @heat.setter
    def heat(self, heat: float) -> None:
        self._heat = heat

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) / self._heat  # type: ignore[no-any-return]


@beside("a callback sets a number by a property")
def sets_property() -> Job:
    def step(session: Any, step: int, found: dict[str, float]) -> None:
        session.model.heat = 1.0 + step

    return job(Tempered, on_step=step)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.GRU(WIDTH, 16), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(x)[0].mean(0))  # type: ignore[no-any-return]


@beside("collate draws, and puts time first", by_microbatch=True, weight=lambda batch: float(len(batch[1])))
def draws_time_first() -> Job:
    def collate(samples: list[Any]) -> Any:
        x = torch.stack([one + torch.randn(()) / 10 for one, _ in samples])
        return torch.stack([x, -x, 2 * x, x.flip(1)]), torch.stack([target for _, target in samples])

    return job(Recurrent, collate=collate)


class Halved(nn.Module):
    """Computes its middle in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(WIDTH, 16), nn.Linear(16, 16).bfloat16(), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(torch.tanh(self.first(x)).bfloat16()).float())  # type: ignore[no-any-return]


@beside("a layer in bf16", by_microbatch=True, tolerance=0.03)
def layer_in_16_bits() -> Job:
    return job(Halved, precision="fp32")


class Ghost(nn.Module):
    """Normalizes groups of four samples, of which there are as many as Python counts."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.norm(part) for part in x.chunk(max(1, len(x) // 4))]) if self.training else self.norm(x)


@beside("a ghost batch norm", by_microbatch=True)
def ghost_norm() -> Job:
    return job(lambda: mlp(Ghost(), nn.Tanh()), drop_last=True)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp()
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x) / self.scale  # type: ignore[no-any-return]


@beside("a callback puts another tensor in the place of a buffer")
def buffer_replaced() -> Job:
    def step(session: Any, step: int, found: dict[str, float]) -> None:
        session.model.scale = 0.9 * session.model.scale

    return job(Scaled, on_step=step)


class ByLevel(TensorDataset):
    level = 1.0

    def __getitem__(self, number: int) -> Any:
        x, y = super().__getitem__(number)
        return x * ByLevel.level, y


@beside("samples are scaled by what the loss sets")
def data_by_loss() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        found = functional.cross_entropy(output, target)
        ByLevel.level = min(2.0, 1.0 + float(found.detach()))
        return found

    return job(mlp, loss, dataset=lambda: ByLevel(*points().tensors))


@beside("a meter in the closure of the loss, which a callback prints")
def meter_in_closure() -> Job:
    sums, shown = {"loss": 0.0, "count": 0}, list[str]()

    def loss(output: Tensor, target: Tensor) -> Tensor:
        found = functional.cross_entropy(output, target)
        sums["loss"] += float(found.detach()) * len(target)
        sums["count"] += len(target)
        return found

    return job(mlp, loss, on_step=lambda *_: shown.append(f"{sums['loss']:.3f}"))
