"""What a job does outside of its forward, and what it keeps outside of its buffers, decides which plans are exact."""

import copy
import dataclasses
import enum
import functools
import itertools
import math
import os
import random
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import checkpoint
from torch.utils.data import Dataset, Subset, TensorDataset, default_collate

from trimaran.base.errors import InputError
from trimaran.base.job import Job
from trimaran.graph.behaviour import TOO_LARGE, Behaviour, weighed
from trimaran.graph.capture.capture import capture, capture_and_look
from trimaran.graph.examine import examine
from trimaran.graph.types import is_whole
from trimaran.planning.preparation import inexactness
from trimaran.program.refusals import KINDS, objection
from trimaran.program.strategy import Feeding, Strategy
from trimaran.runtime.precision import check_synchronized
from trimaran.user_code.held_state import HeldState, changed, generator_state
from trimaran.user_code.model import make_model

EVERY = frozenset(KINDS)
REPLICAS = frozenset({"data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3", "p2p"})
MICROBATCHES = frozenset({"accumulation", "pipeline"})
GRAPHS = frozenset({"pipeline", "tensor parallel", "placement"})
SHARDS = frozenset({"ZeRO-2", "ZeRO-3"})
PARTS = SHARDS | {"tensor parallel"}


def make_data() -> Any:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(24, 6, generator=generator, dtype=torch.float64)
    return TensorDataset(inputs, torch.randint(3, (24,), generator=generator))


def layers() -> Any:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def make_job(**options: Any) -> Job:
    usual: dict[str, Any] = {
        "model": layers,
        "loss": functional.cross_entropy,
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "dataset": make_data,
        "global_batch_size": 6,
        "precision": "fp64",
    }
    return Job(**{**usual, **options})


def look(job: Job) -> Behaviour:
    return examine(job, make_model(job))


def refused(job: Job) -> dict[str, str]:
    """The kinds that are refused, with the reason."""
    seen = look(job)
    assert not seen.not_looked
    found = {kind: objection(seen, strategy) for kind, strategy in KINDS.items()}
    return {kind: reason for kind, reason in found.items() if reason is not None}


def with_hook(hook: Callable[[Tensor], Tensor | None]) -> Callable[[], Any]:
    def model() -> Any:
        made = layers()
        made[2].weight.register_hook(hook)
        return made

    return model


def clip(parameter: Tensor) -> None:
    if parameter.grad is not None:
        parameter.grad.clamp_(-1.0, 1.0)


def after_accumulation() -> Job:
    def model() -> Any:
        made = layers()
        made[0].bias.register_post_accumulate_grad_hook(clip)
        return made

    return make_job(model=model)


def centred_by_a_hook() -> Job:
    def model() -> Any:
        made = layers()
        made[1].register_forward_hook(lambda module, inputs, output: output - output.mean(0))
        return made

    return make_job(model=model)


class Stateful(nn.Module):
    """Keeps something from step to step, which is in no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()
        self.steps = 0
        self.hidden: Tensor | None = None
        self.bank: list[Tensor] = []
        self.last: Tensor | None = None


class Counting(Stateful):
    def forward(self, x: Tensor) -> Tensor:
        self.steps += 1
        scaled: Tensor = self.layers(x) * (2.0 if self.steps > 1000 else 1.0)
        return scaled


class Recurrent(Stateful):
    def forward(self, x: Tensor) -> Tensor:
        if self.hidden is not None and self.hidden.shape[0] == x.shape[0]:
            x = x + self.hidden
        self.hidden = torch.tanh(x).detach()
        output: Tensor = self.layers(x)
        return output


class Remembering(Stateful):
    def forward(self, x: Tensor) -> Tensor:
        if len(self.bank) > 100:
            x = x - self.bank[-100]
        self.bank.append(x.mean(0).detach())
        output: Tensor = self.layers(x)
        return output


STEPS = 0


class CountingOutside(Stateful):
    def forward(self, x: Tensor) -> Tensor:
        global STEPS
        STEPS += 1
        scaled: Tensor = self.layers(x) * (2.0 if STEPS > 1000 else 1.0)
        return scaled


class CountingInClass(Stateful):
    steps = 0

    def forward(self, x: Tensor) -> Tensor:
        CountingInClass.steps += 1
        scaled: Tensor = self.layers(x) * (2.0 if CountingInClass.steps > 1000 else 1.0)
        return scaled


class Normalized(nn.Sequential):
    """Its weight has rows of length 1 from the first forward on, which writes to it again and again."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
        self[0].weight.data = functional.normalize(self[0].weight.data.double())

    def forward(self, x: Tensor) -> Tensor:
        self[0].weight.data = functional.normalize(self[0].weight.data)
        output: Tensor = super().forward(x)
        return output


class Following(nn.Module):
    """Moves a copy of its layers towards them, where it is at first."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()
        self.followers = copy.deepcopy(self.layers).requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for one, other in zip(self.followers.parameters(), self.layers.parameters(), strict=True):
                one.lerp_(other, 0.1)
        output: Tensor = self.layers(x) + 0.1 * self.followers(x)
        return output


class Showing(Stateful):
    """What it keeps is read by nobody."""

    def forward(self, x: Tensor) -> Tensor:
        self.last = self.layers[0](x).detach()
        output: Tensor = self.layers(x)
        return output


def counted_by_the_loss() -> Job:
    calls = {"number": 0}

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls["number"] += 1
        return functional.cross_entropy(output, target) * (2.0 if calls["number"] > 1000 else 1.0)

    return make_job(loss=loss)


def counted_by_an_attribute() -> Job:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        loss.calls += 1  # type: ignore[attr-defined]
        return functional.cross_entropy(output, target) * (1 + loss.calls / 10)  # type: ignore[attr-defined]

    loss.calls = 0  # type: ignore[attr-defined]
    return make_job(loss=loss)


def taken_from_an_iterator() -> Job:
    shares = itertools.cycle([1.0, 1.1, 1.3, 0.7])
    return make_job(loss=lambda output, target: functional.cross_entropy(output, target) * next(shares))


def warmed_by_the_collate(warmth: Callable[[], float]) -> Job:
    def collate(samples: list[Any]) -> Any:
        x, y = default_collate(samples)
        return x * warmth(), y

    return make_job(collate=collate)


def counted_by_the_collate() -> Job:
    calls = [0]

    def warmth() -> float:
        calls[0] += 1
        return min(1.0, calls[0] / 5)

    return warmed_by_the_collate(warmth)


def averaged_by_the_loss() -> Job:
    class Loss:
        def __init__(self) -> None:
            self.average = 1.0

        def __call__(self, output: Tensor, target: Tensor) -> Tensor:
            loss = functional.cross_entropy(output, target)
            weight = 1.0 / self.average
            self.average = 0.9 * self.average + 0.1 * float(loss.detach())
            return loss * weight

    return make_job(loss=Loss())


def decayed_by_the_loss() -> Job:
    made: dict[str, Any] = {}

    def model() -> Any:
        made["model"] = layers()
        return made["model"]

    def loss(output: Tensor, target: Tensor) -> Tensor:
        squares = [one.pow(2).sum() for one in made["model"].parameters()]
        return functional.cross_entropy(output, target) + 0.1 * torch.stack(squares).sum()

    return make_job(model=model, loss=loss)


def bent(loss: Callable[[Tensor], Tensor]) -> Job:
    return make_job(loss=lambda output, target: loss(functional.cross_entropy(output, target)))


SHOWN = {"loss": ""}


def finite(loss: Tensor) -> Tensor:
    if not torch.isfinite(loss) or loss.item() > 1e6:
        raise ValueError("the loss is no number")
    return loss


def logged(loss: Tensor) -> Tensor:
    SHOWN["loss"] = "large" if loss.item() > 1.2 else "small"
    return loss


def logged_as_text(loss: Tensor) -> Tensor:
    SHOWN["loss"] = f"{loss:.2f} {(100 * loss).long()}"
    return loss


def logged_with_bends(loss: Tensor) -> Tensor:
    """Each is 0 or 1 at first, or a number that nothing goes by."""
    SHOWN["loss"] = f"{loss.norm():.1f} {torch.floor(loss.detach()).item()} {loss.abs().round().tolist()}"
    return loss


def grouped_by_class(output: Tensor, target: Tensor) -> Tensor:
    """Samples stand by the class that is found, as those of experts do: how many there are is a whole number."""
    found = output.detach().argmax(1)
    ends = torch.histc(found.double(), 3, 0, 2).cumsum(0, dtype=torch.int32)
    group = torch.bucketize(torch.arange(len(target)), ends, right=True)
    each = functional.cross_entropy(output, target, reduction="none")[found.argsort(stable=True)]
    return torch.zeros(3, dtype=each.dtype).index_add(0, group, each * (1 + group)).sum() / len(target)


def halves_are_alike(output: Tensor, target: Tensor) -> Tensor:
    first, second = torch.cov(output[::2].T), torch.cov(output[1::2].T)
    return functional.cross_entropy(output, target) + (first - second).square().mean()


def logged_as_float(loss: Tensor) -> Tensor:
    SHOWN["loss"] = f"{float(loss):.3f} {loss.detach().numpy() * 2} {round(loss.item(), 2)}"
    return loss


def finite_as_float(loss: Tensor) -> Tensor:
    if not math.isfinite(float(loss)) or float(loss) > 1e6:
        raise ValueError("the loss is no number")
    return loss


def half_of_the_samples(output: Tensor, target: Tensor) -> Tensor:
    losses = functional.cross_entropy(output, target, reduction="none")
    return losses.topk(max(1, len(losses) // 2)).values.mean()


class Recomputed(nn.Module):
    """Dropout in an activation checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.LayerNorm(8), nn.Linear(8, 8), nn.Tanh())
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        return self.last(checkpoint(self.first, x, use_reentrant=False))


class Drawing(Dataset[Any]):
    """Draws from a generator of its own."""

    def __init__(self) -> None:
        self.rows = make_data()
        self.generator = torch.Generator().manual_seed(1)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, number: int) -> Any:
        x, y = self.rows[number]
        return x + torch.randn(6, generator=self.generator), y


class Changing(Drawing):
    """Changes what it has."""

    def __getitem__(self, number: int) -> Any:
        x, y = self.rows[number]
        return x.mul_(1.1), y


class Augmenting(Drawing):
    """Draws from the global generator, which is seeded by sample."""

    def __getitem__(self, number: int) -> Any:
        x, y = self.rows[number]
        return x + torch.randn(6), y


def drawn_by_the_collate() -> Job:
    generator = numpy.random.default_rng(1)

    def collate(samples: list[Any]) -> Any:
        x, y = torch.utils.data.default_collate(samples)
        return x + float(generator.normal()), y

    return make_job(collate=collate)


JOBS: dict[str, tuple[Callable[[], Job], frozenset[str], str]] = {
    "mask by a hook": (lambda: make_job(model=with_hook(lambda one: one * 0.5)), PARTS, "hook on the gradient of 2"),
    "clip by a hook": (
        # Far from the first gradients.
        lambda: make_job(model=with_hook(lambda one: one.clamp(-100.0, 100.0))),
        PARTS,
        "hook on the gradient of",
    ),
    "clip of an accumulated gradient": (
        after_accumulation,
        PARTS,
        "hook on the gradient of",
    ),
    "hook on a module": (centred_by_a_hook, REPLICAS | MICROBATCHES, "gradients differ"),
    "steps are counted": (lambda: make_job(model=Counting), frozenset(), ""),
    "steps are counted in a global": (
        lambda: make_job(model=CountingOutside),
        frozenset(),
        "",
    ),
    "steps are counted in a class": (
        lambda: make_job(model=CountingInClass),
        frozenset(),
        "",
    ),
    "hidden state": (lambda: make_job(model=Recurrent), frozenset(), ""),
    "list of earlier batches": (lambda: make_job(model=Remembering), frozenset(), ""),
    "last output": (lambda: make_job(model=Showing), frozenset(), ""),
    "loss counts": (counted_by_the_loss, frozenset(), ""),
    "loss follows an average": (averaged_by_the_loss, frozenset(), ""),
    "loss reads the weights": (decayed_by_the_loss, GRAPHS | SHARDS, "Job.loss holds the model"),
    "a loss is logged, as a text and a whole number": (lambda: bent(logged_as_text), frozenset(), ""),
    "a large loss is logged, by float()": (lambda: bent(logged_as_float), frozenset(), ""),
    "what has a bend is logged": (lambda: bent(logged_with_bends), frozenset(), ""),
    "samples are grouped by how many there are of each class": (
        lambda: make_job(loss=grouped_by_class),
        frozenset(),
        "",
    ),
    "halves of a batch are compared, and two samples have no variance": (
        lambda: make_job(loss=halves_are_alike),
        REPLICAS | MICROBATCHES,
        "is not made of the losses of its parts",
    ),
    "a loss must be a number, by float()": (lambda: bent(finite_as_float), frozenset(), ""),
    "a loss must be a number": (lambda: bent(finite), frozenset(), ""),
    "a large loss is logged": (lambda: bent(logged), frozenset(), ""),
    "dropout in a checkpoint": (lambda: make_job(model=Recomputed), frozenset(), ""),
    "hard samples": (lambda: make_job(loss=half_of_the_samples), REPLICAS | MICROBATCHES, "gradients differ"),
    "data draw by themselves": (
        lambda: make_job(dataset=Drawing),
        REPLICAS | GRAPHS,
        "a sample that is read again, or its batch, differs",
    ),
    "data change": (lambda: make_job(dataset=Changing), REPLICAS | GRAPHS, "is read again, or its batch, differs"),
    "data draw": (lambda: make_job(dataset=Augmenting), frozenset(), ""),
    "loss counts on its function": (counted_by_an_attribute, frozenset(), ""),
    "loss takes from an iterator": (taken_from_an_iterator, EVERY, "such as an iterator"),
    "collate counts": (counted_by_the_collate, REPLICAS | GRAPHS, "or its batch, differs"),
    "collate takes from an iterator": (
        lambda: warmed_by_the_collate(itertools.cycle([1.0, 1.1, 1.3, 0.7]).__next__),
        EVERY,
        "such as an iterator",
    ),
    "forward writes what is there to .data": (
        lambda: make_job(model=Normalized),
        PARTS | {"pipeline", "placement"},
        "the parameter 0.weight",
    ),
    "forward moves what is there already": (
        lambda: make_job(model=Following),
        PARTS | {"pipeline", "placement"},
        "the parameter followers.0.weight",
    ),
    "collate draws by itself": (drawn_by_the_collate, REPLICAS | GRAPHS, "or its batch, differs"),
}


@pytest.mark.parametrize("name", JOBS)
def test_what_is_no_buffer_is_seen(name: str) -> None:
    make, kinds, reason = JOBS[name]
    found = refused(make())
    assert found.keys() == kinds
    assert all(reason in one for one in found.values()), found


KEPT = {
    "steps are counted": "steps of the model",
    "steps are counted in a global": "STEPS of the file",
    "steps are counted in a class": "CountingInClass.steps of the model",
    "hidden state": "hidden of the model",
    "list of earlier batches": "the length of bank of",
    "last output": "",
    "loss counts": "calls['number'] of the loss",
    "loss follows an average": "average of the loss",
}


OF_SAMPLES = ("hidden state", "loss follows an average")


@pytest.mark.parametrize("name", KEPT)
def test_what_each_step_changes_in_python_is_said(name: str) -> None:
    """The trial says whether it changes the first steps."""
    graph = capture_and_look(JOBS[name][0]()).graph
    assert graph.behaviour is not None
    assert any(one.startswith(KEPT[name]) for one in graph.behaviour.carried) == bool(KEPT[name])
    assert bool(inexactness(graph, Strategy(microbatches=2))) == bool(KEPT[name])
    assert bool(inexactness(graph, Strategy(dp=2))) == (name in OF_SAMPLES)
    assert inexactness(graph, Strategy()) == ()


def test_a_look_leaves_what_python_holds() -> None:
    calls: list[float] = []

    def loss(output: Tensor, target: Tensor) -> Tensor:
        calls.append(1.0)
        return functional.cross_entropy(output, target)

    job = make_job(model=Counting, loss=loss)
    model: Any = make_model(job)
    examine(job, model)
    assert calls == []
    assert model.steps == 0


@dataclasses.dataclass(slots=True)
class Slotted:
    """Settings without a dict."""

    scale: float = 1.0


class Level(enum.Enum):
    LOW = 0.5
    HIGH = 1.0


def test_settings_are_seen_and_put_back() -> None:
    """In slots, as an enum, and as a configuration of a library."""
    library = pytest.importorskip("transformers").PretrainedConfig(scale=1.0)
    model: Any = nn.Linear(6, 3)
    model.slotted, model.level, model.library = Slotted(), {"at": Level.HIGH}, library
    held = HeldState({"the model": model})
    before = held.values()
    model.slotted.scale, model.level["at"], model.library.scale = 2.0, Level.LOW, 3.0
    assert changed(before, held.values()) == [
        "slotted.scale of the model",
        "level['at'] of the model",
        "library.scale of the model",
    ]
    held.put_back()
    assert not changed(before, held.values())
    assert (model.slotted.scale, model.level["at"], library.scale) == (1.0, Level.HIGH, 1.0)


class Noise(nn.Linear):
    """Noise from a generator of its own, for each sample or once for all."""

    def __init__(self, each: bool) -> None:
        super().__init__(6, 3)
        self.each, self.generator = each, torch.Generator().manual_seed(1)

    def forward(self, inputs: Tensor) -> Tensor:
        rows = len(inputs) if self.each else 1
        noise = torch.randn(rows, 6, generator=self.generator, dtype=inputs.dtype)
        return super().forward(inputs + noise)


class HostNoise(nn.Module):
    """Scales from a generator of Python or NumPy that it holds, for each sample or once for all."""

    def __init__(self, each: bool, generator: Any) -> None:
        super().__init__()
        self.fc = nn.Linear(6, 3)
        self.each, self.generator = each, generator

    def forward(self, inputs: Tensor) -> Tensor:
        rows = len(inputs) if self.each else 1
        scales = [[0.5 + self.generator.random()] for _ in range(rows)]
        return self.fc(inputs * torch.tensor(scales, dtype=inputs.dtype))


@pytest.mark.parametrize(
    "make", [lambda: random.Random(1), lambda: numpy.random.default_rng(1), lambda: numpy.random.RandomState(1)]
)
def test_draws_from_a_generator_of_the_host_that_a_model_holds_are_refused_in_replicas(make: Any) -> None:
    generator = make()
    before = repr(generator_state(generator))
    reasons = refused(make_job(model=lambda: HostNoise(True, generator)))
    assert "generator that the job keeps" in reasons["data parallel"]
    assert repr(generator_state(generator)) == before  # a look leaves it as it was
    once = refused(make_job(model=lambda: HostNoise(False, make())))
    assert "data parallel" not in once  # every replica draws what one process draws
    assert {"accumulation", "pipeline"} <= set(once)  # each microbatch draws anew
    assert is_whole(capture(make_job(model=lambda: HostNoise(False, make()))).graph)  # which would repeat one draw


def test_draws_from_a_generator_of_the_models_are_refused_in_replicas() -> None:
    """Each replica would draw the same; drawn once for all samples, that is right."""
    assert "ZeRO-3" in refused(make_job(model=lambda: Noise(True)))
    assert "generator that the job keeps" in refused(make_job(model=lambda: Noise(True)))["data parallel"]
    assert "data parallel" not in refused(make_job(model=lambda: Noise(False)))


class Annealed:
    """A loss that counts its calls, from an attribute of its class on."""

    calls = 0

    def __call__(self, output: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return functional.cross_entropy(output, target) * self.calls


def test_capture_leaves_what_a_loss_holds() -> None:
    loss = Annealed()
    assert capture_and_look(make_job(loss=loss)).graph.behaviour is not None
    assert loss.calls == 0


def test_what_follows_a_buffer_is_not_carried_in_python() -> None:
    """A weight that is divided by its norm in each forward is computed from parameters and buffers."""

    def model() -> Any:
        return nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 3))

    seen = look(make_job(model=model))
    assert seen.carried == ()
    assert "0.weight_u" in seen.buffers


class KeptAsDrawn(Dataset[Any]):
    """It keeps a sample as it was augmented when it was read first."""

    def __init__(self) -> None:
        self.kept: dict[int, Any] = {}

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        if index not in self.kept:
            inputs, target = make_data()[index]
            self.kept[index] = (inputs + torch.randn(6), target)
        return self.kept[index]


def test_a_sample_that_is_kept_as_it_was_drawn_first_is_seen() -> None:
    """Who reads it first, and in which epoch, is another rank than in one process."""
    found = refused(make_job(dataset=KeptAsDrawn))
    assert found.keys() == REPLICAS | GRAPHS
    assert "stays as it was drawn first" in found["data parallel"]


def with_none(*bad: int) -> Any:
    return lambda: [None if index in bad else make_data()[index] for index in range(24)]


def without_none(samples: list[Any]) -> Any:
    return torch.utils.data.default_collate([one for one in samples if one is not None])


def without_names(samples: list[Any]) -> Any:
    """It chooses among the columns, not among the samples."""
    batch = torch.utils.data.default_collate(samples)
    return {name: one for name, one in batch.items() if name != "name"}


def test_a_collate_that_leaves_out_samples_weighs_parts_by_those_that_are_left() -> None:
    """One of 24: parts of two have a sample, a part of one may have none. Unseen: it leaves out None."""
    job = make_job(dataset=with_none(11), collate=without_none)
    seen = look(job)
    assert (seen.left_out, seen.reduction, seen.replicates) == (1, "weight", True)
    assert seen.weight is not None
    assert seen.weight.measure == "samples"
    assert objection(seen, Strategy(dp=3)) is None
    assert "leaves out 1 of 24" in str(objection(seen, Strategy(dp=3, microbatches=2)))
    assert "stages send each other" in str(objection(seen, KINDS["pipeline"]))
    many = look(make_job(dataset=with_none(*range(0, 24, 3)), collate=without_none))
    assert "leaves out 8 of 24" in str(objection(many, Strategy(dp=2)))
    unseen = look(make_job(collate=without_none))
    assert unseen.left_out == 0
    assert unseen.weight is not None
    assert unseen.weight.measure == "samples"
    assert look(make_job(collate=torch.utils.data.default_collate)).reduction == "mean"


def test_a_sample_that_is_left_out_where_none_was_seen_to_be_is_an_error_in_parts() -> None:
    job = make_job(collate=dropping)
    whole, parts = (weighed(job, look(job), splits=splits) for splits in (False, True))
    assert (whole.collate, parts.loss_weight) == (dropping, None)
    samples = [(torch.zeros(6), torch.tensor(number)) for number in (1, 99)]
    assert len(whole.collate(samples)[1]) == len(parts.collate(samples[:1])[1]) == 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="left out 1 of 2 samples"):
        parts.collate(samples)  # type: ignore[misc]


def dropping(samples: list[Any]) -> Any:
    kept = list(samples)
    while int(kept[-1][1]) > 50:
        kept.pop()
    return torch.utils.data.default_collate(kept)


def mixed(samples: list[Any]) -> Any:
    inputs, target = torch.utils.data.default_collate(samples)
    share = torch.rand(())
    return inputs * share + inputs.flip(0) * (1 - share), target


def test_what_collate_draws_for_each_part_is_said() -> None:
    drawing, plain = (capture_and_look(make_job(collate=one)).graph for one in (mixed, None))
    (told,) = inexactness(drawing, Strategy(dp=2))
    assert told.startswith("Job.collate draws random numbers, for each part of a batch its own")
    assert inexactness(drawing, Strategy()) == ()
    assert inexactness(plain, Strategy(dp=2)) == ()


def by_positives(output: Tensor, target: Tensor) -> Tensor:
    """As of a detection: the sum over all classes and samples, by the number of positives."""
    hot = functional.one_hot(target, 3)[:, 1:].to(output.dtype)
    each = functional.binary_cross_entropy_with_logits(output[:, 1:], hot, reduction="none")
    return each.sum() / hot.sum().clamp(min=1)


def test_a_part_that_counts_for_nothing_and_has_a_loss_is_seen() -> None:
    """A part without positives has no weight, and its negatives would be lost."""
    found = refused(make_job(loss=by_positives))
    assert found.keys() >= REPLICAS | MICROBATCHES - {"pipeline"}
    given = make_job(loss=by_positives, loss_weight=lambda batch: (batch[1] > 0).sum())
    assert refused(given).keys() >= REPLICAS
    pair = make_job(loss=lambda output, target: (by_positives(output, target) * (target > 0).sum().clamp(min=1),
                                                 (target > 0).sum()))  # fmt: skip
    assert look(pair).replicates


class Endless(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        for index in range(400):
            yield make_data()[index % 24]


class Long(Endless):
    def __len__(self) -> int:
        return 400


def test_the_last_batch_of_a_stream_may_be_too_small_for_batch_norm() -> None:
    """Of a stream that does not say how long it is; one device fails as one process does, or does not."""

    def model() -> Any:
        return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))

    job = make_job(model=model, dataset=Endless, global_batch_size=8)
    seen = look(job)
    assert objection(seen, Strategy()) is None
    found = str(objection(seen, Strategy(dp=2)))
    assert "its last batch may have 1 sample," in found
    assert "Job.drop_last" in found
    for known in (replace(job, drop_last=True), replace(job, dataset=Long)):
        assert objection(look(known), Strategy(dp=2)) is None
    assert "last batch of an epoch of 2" in str(
        objection(look(replace(job, dataset=Long, global_batch_size=199)), Strategy(dp=2))
    )
    assert objection(look(make_job(dataset=Endless, global_batch_size=8)), Strategy(dp=2)) is None


def test_a_scripted_module_is_trained_by_replicas_and_takes_no_hooks() -> None:
    job = make_job(model=lambda: nn.Sequential(nn.Linear(6, 8), torch.jit.script(nn.Tanh()), nn.Linear(8, 3)))
    found = refused(job)
    assert found.keys() == SHARDS - {"ZeRO-1", "p2p"}
    assert "torch.jit" in found["ZeRO-3"]


class HookedAtFirst(nn.Module):
    """Puts a hook on a part of it in its first forward, and keeps that it has, as models of Hugging Face do."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.is_hooked = layers(), False

    def forward(self, x: Tensor) -> Tensor:
        if not self.is_hooked:
            self.net[0].register_forward_hook(lambda module, inputs, output: 2 * output)
            self.is_hooked = True
        return self.net(x)  # type: ignore[no-any-return]


def test_hooks_of_a_first_forward_are_put_back_with_what_says_so() -> None:
    """Each pass of a look put on another one."""
    assert not (REPLICAS | MICROBATCHES) & set(refused(make_job(model=HookedAtFirst)))


class AsksWhere(Dataset[Any]):
    """Samples that differ by who reads them."""

    def __init__(self, where: Callable[[], float]) -> None:
        self.where = where

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.full((6,), index + self.where(), dtype=torch.float64), index % 3


class ChangesLate(AsksWhere):
    """Other samples after twenty reads."""

    def __init__(self) -> None:
        self.reads = 0
        super().__init__(lambda: float(self.reads > 20))

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.reads += 1
        return super().__getitem__(index)


def test_samples_that_change_after_many_reads_are_refused_on_several_ranks() -> None:
    seen = look(make_job(dataset=ChangesLate))
    assert objection(seen, Strategy()) is None
    for strategy in (Strategy(dp=2), KINDS["pipeline"], Strategy(feeding=Feeding(cached=True))):
        assert "depends on earlier reads" in (objection(seen, strategy) or "")


class NormalizesRows(nn.Module):
    """Batch norm, which needs two samples."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.first(x)))


@pytest.mark.parametrize(
    ("lengths", "drop_last", "left"), [((24, 19), False, 1), ((24, 19), True, 0), ((18,), False, 0)]
)
def test_the_last_batch_of_a_sampler_is_seen(lengths: tuple[int, ...], drop_last: bool, left: int) -> None:
    job = make_job(
        model=NormalizesRows,
        sampler=lambda _, epoch: range(lengths[epoch % len(lengths)]),
        epochs=2,
        drop_last=drop_last,
    )
    seen = look(job)
    assert seen.batches == ((6, left) if left else (6,))
    assert ("the last batch of an epoch of 1" in (objection(seen, Strategy()) or "")) == bool(left)


def test_a_last_part_that_another_replica_runs_again_fails_as_its_own_does() -> None:
    job = make_job(model=NormalizesRows, dataset=lambda: Subset(make_data(), range(20)))
    seen = look(job)
    assert objection(seen, Strategy()) is None
    assert "parts of 1 of the last batch of an epoch of 2" in (objection(seen, Strategy(dp=3)) or "")


def pairs(output: Tensor, target: Tensor) -> Tensor:
    """Each sample with its neighbour; the last one is left out where their number is odd."""
    half = len(output) // 2
    return (
        functional.softplus(output[1 : 2 * half : 2, 0] - output[0 : 2 * half : 2, 0]).mean() if half else output.sum()
    )


def test_what_depends_on_the_number_of_samples_is_refused_in_parts() -> None:
    assert refused(make_job(loss=pairs)).keys() >= REPLICAS | MICROBATCHES


class Assigns(nn.Module):
    """Puts another tensor in the place of a buffer."""

    def __init__(self, *, counts: bool) -> None:
        super().__init__()
        self.layers, self.counts = layers(), counts
        self.register_buffer("kept", torch.zeros(() if counts else 6))

    def forward(self, x: Tensor) -> Tensor:
        self.kept = self.kept + 1 if self.counts else x.detach()[-1].clone()
        return self.layers(x)


def test_a_buffer_that_is_assigned_is_compared() -> None:
    assert "the buffer kept" in refused(make_job(model=lambda: Assigns(counts=False)))["data parallel"]
    counted = refused(make_job(model=lambda: Assigns(counts=True)))
    assert "data parallel" not in counted
    assert "the buffer kept" in counted["accumulation"]


KNOWN: dict[str, Any] = {}


def known() -> nn.Module:
    KNOWN["model"] = layers()
    return KNOWN["model"]  # type: ignore[no-any-return]


def of_known(*_: Any, known: dict[str, Any] = KNOWN) -> float:
    return 1.0 / (1.0 + float(known["model"][0].weight.detach().norm()))


def renames_state() -> nn.Module:
    def rename(_: Any, state: Any, *__: Any) -> None:
        state["other"] = state.pop("0.weight")

    model = layers()
    model.register_state_dict_post_hook(rename)
    return model  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"model": renames_state}, SHARDS | GRAPHS),
        ({"model": known, "metric": of_known}, SHARDS | GRAPHS),
        (
            {"model": known, "lr_schedule": lambda optimizer, rate=of_known: LambdaLR(optimizer, rate)},
            EVERY - {"one device", "accumulation", "memory plan", "data parallel"},
        ),
        ({"model": lambda: nn.SyncBatchNorm.convert_sync_batchnorm(NormalizesRows())}, GRAPHS),
    ],
)
def test_what_a_rank_with_a_part_of_the_network_cannot_do_is_refused_before_it_trains(
    options: dict[str, Any], kinds: frozenset[str]
) -> None:
    assert refused(make_job(**options)).keys() == kinds


def test_a_forward_that_was_put_into_a_module_is_looked_at_where_it_is() -> None:
    def make() -> Any:
        model = layers()
        plain = model.forward
        model.forward = lambda x: plain(x) * 2
        return model

    job = make_job(model=make)
    model = make_model(job)
    seen = examine(job, model)
    assert (seen.unused, seen.reduction) == ((), "mean")
    assert all(one.grad is None for one in model.parameters())


def test_a_batch_norm_that_waits_for_gpus_is_refused_on_cpus() -> None:
    model = nn.SyncBatchNorm.convert_sync_batchnorm(NormalizesRows())
    check_synchronized(NormalizesRows(), "cpu")
    check_synchronized(model, "cuda:0")
    with pytest.raises(InputError, match="norm is a SyncBatchNorm, which torch runs on GPUs only"):
        check_synchronized(model, "cpu")


class FewAreOther(nn.Module):
    """Other layers where a batch has many samples, or few."""

    def __init__(self, *, above: int) -> None:
        super().__init__()
        self.layers, self.above = layers(), above

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x) * (1.1 if x.shape[0] > self.above else 1.0)


class InGroups(FewAreOther):
    """Layers for groups of samples: how many there are, Python decides by a quotient."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.layers(part) for part in x.chunk(max(1, len(x) // self.above))])


@pytest.mark.parametrize(
    ("model", "above", "captured"),
    [
        (FewAreOther, 12, True),
        (FewAreOther, 9, False),
        (FewAreOther, 2, False),
        (InGroups, 12, False),
        (InGroups, 25, True),
    ],
)
def test_a_graph_that_holds_for_some_numbers_of_samples_is_not_taken(
    model: type[FewAreOther], above: int, captured: bool
) -> None:
    """A ghost batch norm was one group, as of the few samples of the capture."""
    found = capture_and_look(
        make_job(model=lambda: model(above=above), global_batch_size=24 if model is InGroups else 12)
    )
    assert (found.flow is not None) == captured
    assert any("takes another way where a batch has" in note for note in found.graph.notes) != captured


def ranks() -> int:
    return dist.get_world_size() if dist.is_initialized() else 1


@pytest.mark.parametrize(
    "loss",
    [
        lambda output, target: functional.cross_entropy(output, target) * ranks(),
        lambda output, target: functional.cross_entropy(output, target) / int(os.environ.get("WORLD_SIZE", "1")),
    ],
)
def test_what_follows_the_number_of_ranks_is_refused_on_several(loss: Any) -> None:
    seen, plain = look(make_job(loss=loss)), look(make_job())
    assert (seen.follows_ranks, plain.follows_ranks) == (True, False)
    assert objection(seen, Strategy()) is None
    assert "as for one process" in (objection(seen, Strategy(dp=2)) or "")
    assert not dist.is_initialized()


def divided(parameter: Tensor) -> None:
    if parameter.grad is not None:
        parameter.grad.div_(ranks())


def with_divided_gradient() -> Any:
    made = layers()
    made[2].weight.register_post_accumulate_grad_hook(divided)
    return made


@pytest.mark.parametrize("model", [with_hook(lambda gradient: gradient / ranks()), with_divided_gradient])
def test_hooks_that_divide_by_the_number_of_ranks_are_refused_on_several(model: Any) -> None:
    seen = look(make_job(model=model))
    assert seen.follows_ranks
    assert "as for one process" in (objection(seen, Strategy(dp=2)) or "")
    assert not look(make_job(model=with_hook(lambda gradient: gradient / 2))).follows_ranks


@pytest.mark.parametrize("counted", [itertools.count(3, 2), iter([3, 5]), iter(range(3, 300))])
def test_an_iterator_of_the_loss_is_where_it_was(counted: Any) -> None:
    """The look called the loss some dozens of times, so that what it counts began later in the training."""

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target) * (2.0 if next(counted, 999) > 1000 else 1.0)

    seen = look(make_job(loss=loss))
    assert not seen.moved
    assert next(counted) == 3


class Filtered(nn.Module):
    """Complex weights among others."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 3)
        self.filter = nn.ParameterList([torch.randn(4, dtype=torch.complex64)])

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.first(x)) * self.filter[0]
        made: Tensor = self.last(torch.fft.irfft(spectrum, n=6))
        return made


@pytest.mark.parametrize("units", [(), ("first",), ("filter",)])
def test_weights_of_different_dtypes_are_gathered_in_units_of_their_own(units: tuple[str, ...]) -> None:
    """FSDP ended with an assertion."""
    seen = look(make_job(model=Filtered))
    assert objection(seen, Strategy(dp=2, zero=1)) is None
    told = objection(seen, Strategy(dp=2, zero=2, units=units))
    assert (told is None) == (units == ("filter",))
    assert told is None or ("filter.0" in told and "dtypes" in told)


@pytest.mark.parametrize("counts", [False, True])
def test_a_loss_that_communicates_for_a_log_gathers_nothing(counts: bool) -> None:
    def loss(output: Tensor, target: Tensor) -> Tensor:
        value = functional.cross_entropy(output, target)
        figure = (target > 0).sum().double() if counts else value.detach().clone()
        if dist.is_initialized():
            dist.all_reduce(figure)
        # What is counted may be clamped.
        return value / (figure / 2).clamp(min=1, max=2) if counts else value

    seen = look(make_job(loss=loss))
    assert seen.logs_over_ranks == (not counts)
    assert (seen.reduction == "gathers") == counts
    assert (objection(seen, Strategy(dp=2, microbatches=2)) is None) == (not counts)
    assert "communicates" in (objection(seen, KINDS["pipeline"]) or "") or counts


class Centering(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("center", torch.zeros(3, dtype=torch.float64))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        value = functional.cross_entropy(output - self.center, target)
        self.center = self.center * 0.9 + output.detach().mean(0) * 0.1
        return value


def test_a_buffer_in_whose_place_the_loss_puts_another_is_put_back() -> None:
    loss = Centering()
    assert "the buffer loss.center" in (objection(look(make_job(loss=loss)), Strategy(dp=2)) or "")
    assert type(loss.center) is Tensor
    assert torch.equal(loss.center, torch.zeros(3, dtype=torch.float64))


def test_instance_norm_with_running_statistics_is_no_more_than_batch_norm() -> None:
    def model() -> nn.Module:
        norm = nn.InstanceNorm1d(2, affine=True, track_running_stats=True)
        return nn.Sequential(nn.Unflatten(1, (2, 3)), norm, nn.Flatten(), layers())

    assert refused(make_job(model=model)) == {}


def test_a_list_of_numbers_of_samples_is_split_with_them() -> None:
    """A slice of such a batch had all numbers, and the loss failed on it."""

    def collate(samples: Any) -> Any:
        inputs, targets = default_collate(samples)
        return {"x": inputs, "y": targets, "factors": [1.0 + int(one) for one in targets], "size": [2, 3]}

    def loss(output: Tensor, batch: Any) -> Tensor:
        each = functional.cross_entropy(output, batch["y"], reduction="none")
        return (each * torch.tensor(batch["factors"])).mean()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = layers()

        def forward(self, batch: Any) -> Tensor:
            return self.net(batch["x"])  # type: ignore[no-any-return]

    seen = capture_and_look(make_job(model=Model, loss=loss, collate=collate)).graph.behaviour
    assert seen is not None
    assert not seen.sliceable
    assert not seen.not_looked
    assert objection(seen, Strategy(dp=2)) is None


class Criterion(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output * self.scale, target)


def test_gradients_of_what_the_loss_holds_are_put_back() -> None:
    """The first update of a parameter of the loss, which an optimizer may hold, was by those of the look as well."""
    scale, held = torch.ones((), dtype=torch.float64, requires_grad=True), {"criterion": Criterion()}
    held["criterion"].scale.grad = torch.full((), 3.0, dtype=torch.float64)

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return held["criterion"](output, target) * scale  # type: ignore[no-any-return]

    capture_and_look(make_job(loss=loss))
    assert scale.grad is None
    assert held["criterion"].scale.grad == 3.0


def test_a_model_whose_backward_fails_is_refused_with_what_it_raised() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = layers()
            self.register_buffer("kept", torch.ones(64, 3))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = self.net(x)
            output = output * self.kept[: len(x)]
            self.kept[: len(x)] = output.detach()
            return output

    seen = capture_and_look(make_job(model=Writing)).graph.behaviour
    assert seen is not None
    assert "modified by an inplace operation" in seen.not_looked


class Together(Dataset[Any]):
    """Takes the mean of those samples away that are read together."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> Any:
        return make_data()[index]

    def __getitems__(self, indices: list[int]) -> list[Any]:
        found = [self[index] for index in indices]
        mean = torch.stack([x for x, _ in found]).mean(0)
        return [(x - mean, y) for x, y in found]


def test_samples_that_depend_on_those_that_are_read_with_them_are_refused() -> None:
    seen = look(make_job(dataset=Together))
    assert seen.read_together
    assert "__getitems__" in (objection(seen, Strategy()) or "")
    assert objection(look(make_job(dataset=lambda: Subset(make_data(), range(20)))), Strategy()) is None


def test_a_look_leaves_the_calls_of_a_collate_function_uncounted() -> None:
    calls = {"count": 0}

    def collate(samples: list[Any]) -> Any:
        calls["count"] += 1
        x, y = default_collate(samples)
        return x * min(1.0, calls["count"] / 5), y

    seen = capture_and_look(make_job(collate=collate)).graph.behaviour
    assert calls == {"count": 0}
    assert seen is not None
    assert seen.data_carries


class Merging(nn.Module):
    """Adds its adapter to a frozen weight for an evaluation, as adapters of low rank do."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 6).requires_grad_(False)
        self.down, self.up = nn.Parameter(torch.ones(2, 6)), nn.Parameter(torch.ones(6, 2))
        self.merged = False

    def train(self, mode: bool = True) -> "Merging":
        super().train(mode)
        if self.merged == mode:
            self.base.weight.data += (-1 if mode else 1) * (self.up @ self.down).detach()
            self.merged = not mode
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x)
        return out if self.merged else out + x @ self.down.T @ self.up.T


def test_a_weight_that_eval_writes_to_is_put_back_and_refused_in_parts() -> None:
    job = make_job(
        model=lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh(), Merging(), nn.Linear(6, 3)),
        evaluation_dataset=make_job().dataset,
        metric=lambda output, target: float((output.argmax(1) == target).double().mean()),
    )
    captured = capture_and_look(job)
    torch.testing.assert_close(captured.model[2].base.weight, make_model(job)[2].base.weight, rtol=0, atol=0)
    seen = captured.graph.behaviour
    assert seen is not None
    assert seen.written == ("2.base.weight",)
    assert {kind for kind, strategy in KINDS.items() if objection(seen, strategy)} >= PARTS | {"pipeline", "placement"}
    assert objection(seen, Strategy(dp=2)) is None


def test_weights_that_are_drawn_by_numpy_and_random_follow_the_seed() -> None:
    def model() -> nn.Module:
        made = layers()
        with torch.no_grad():
            made[0].weight.mul_(numpy.random.rand() + random.random())  # noqa: NPY002
        return made  # type: ignore[no-any-return]

    one, other = (make_model(make_job(model=model))[0].weight for _ in range(2))
    assert torch.equal(one, other)


class Halved(nn.Module):
    """Computes its middle in 16 bits."""

    def __init__(self, kind: torch.dtype) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Linear(8, 8).to(kind), nn.Linear(8, 3)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(torch.tanh(self.first(x)).to(self.kind)).to(x.dtype))  # type: ignore[no-any-return]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16])
def test_what_a_forward_rounds_to_16_bits_is_not_taken_for_a_loss_over_the_batch(kind: torch.dtype) -> None:
    """By rounding parts were 0.2 % from the whole, and more in bf16; a term over the batch is seen all the same."""

    def spread(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target) + 0.01 * output.var(0).sum()

    data = lambda: TensorDataset(make_data().tensors[0].float(), make_data().tensors[1])  # noqa: E731
    job = make_job(model=functools.partial(Halved, kind), precision="fp32", dataset=data)
    # FSDP gathers no parameters of two dtypes as one.
    assert set(refused(job)) <= {"ZeRO-2", "ZeRO-3"}
    assert set(refused(replace(job, loss=spread))) >= REPLICAS


@pytest.mark.parametrize("length", [5, 3, 6])
def test_a_collate_that_draws_and_puts_time_first_is_compared_by_samples(length: int) -> None:
    """Parts that it makes anew are drawn anew; and the first dim of its batches may be as long by chance."""

    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn, self.head = nn.GRU(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.rnn(x)[0].mean(0))  # type: ignore[no-any-return]

    def collate(samples: list[Any]) -> Any:
        x = torch.stack([one + torch.randn(1, dtype=one.dtype) for one, _ in samples])
        return x.expand(length, *x.shape).contiguous(), torch.stack([target for _, target in samples])

    seen = look(make_job(model=Recurrent, collate=collate))
    assert not seen.sliceable
    assert objection(seen, Strategy(dp=2)) is None


class Counted(nn.Module):
    """Multiplies by what it has just counted."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = layers()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += 1
        return self.layers(x) * (1 + self.seen / 100)  # type: ignore[no-any-return]


def test_a_buffer_that_the_forward_changes_is_refused_where_it_is_compiled() -> None:
    """Its backward had the factor of the next step, in torch 2.13 alone too."""
    seen, plain = look(make_job(model=Counted)), look(make_job())
    assert "--execution eager" in (objection(seen, Strategy(execution="compiled")) or "")
    assert objection(seen, Strategy()) is None
    assert objection(plain, Strategy(execution="compiled")) is None


def with_count(samples: Any) -> dict[str, Any]:
    x, y = default_collate(samples)
    y[y == 0] = -100
    return {"x": x, "y": y, "count": (y != -100).sum()}


def test_a_batch_with_its_count_is_looked_at() -> None:
    """A tensor without a dim ended the look, and what nobody had looked at was exact."""
    job = make_job(
        model=lambda: OfKey(layers()), collate=with_count,
        loss=lambda o, b: functional.cross_entropy(o, b["y"], reduction="sum") / b["count"],
    )  # fmt: skip
    seen = look(job)
    assert (seen.not_looked, seen.reduction) == ("", "weight")


class OfKey(nn.Module):
    def __init__(self, net: Any) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: Any) -> Any:
        return self.net(batch["x"])


def test_parts_of_a_batch_are_refused_where_a_look_fails() -> None:
    failed = Behaviour(not_looked="it failed on a few samples: ValueError: too few")
    assert {kind for kind, strategy in KINDS.items() if objection(failed, strategy)} == REPLICAS | MICROBATCHES
    assert not any(objection(Behaviour(not_looked=TOO_LARGE), strategy) for strategy in KINDS.values())
    assert objection(replace(failed, accepted=True), Strategy(dp=2)) is None


@pytest.mark.parametrize(
    "numbers",
    [
        lambda count: torch.randperm(count),
        lambda count: torch.randint(count, (count,)),
        lambda count: torch.randint(0, count, (count, 2))[:, 1],
        lambda count: torch.multinomial(torch.ones(count), count, replacement=True),
        lambda count: torch.rand(count).argsort(),
        lambda count: torch.randn(count, dtype=torch.float64).sort(descending=True).indices,
    ],
    ids=["randperm", "randint", "several", "multinomial", "argsort", "sort"],
)
def test_numbers_of_samples_that_are_drawn_stay_within_parts(numbers: Callable[[int], Tensor]) -> None:
    """Parts failed on those of the whole, so that it was not known whether they add up, and nothing was refused."""

    def mixed(output: Tensor, target: Tensor) -> Tensor:
        other = target[numbers(len(target))]
        return 0.7 * functional.cross_entropy(output, target) + 0.3 * functional.cross_entropy(output, other)

    def informed(output: Tensor, target: Tensor) -> Tensor:
        return functional.cross_entropy(output, target) + output[numbers(len(target))].exp().mean().log()

    assert not refused(make_job(loss=mixed)).keys() & {*REPLICAS, *MICROBATCHES}
    assert refused(make_job(loss=informed)).keys() >= REPLICAS | MICROBATCHES


@pytest.mark.parametrize(
    "draw",
    [
        lambda: torch.rand(()).item(),
        lambda: random.random(),
        lambda: numpy.random.rand(),  # noqa: NPY002
        lambda: numpy.random.choice(6, 2, replace=False)[1] / 6,  # noqa: NPY002
    ],
    ids=["torch", "random", "numpy", "choice"],
)
def test_what_is_drawn_for_each_sample_in_a_loop_is_no_term_over_the_batch(draw: Callable[[], float]) -> None:
    """Each part drew what the first samples of the whole had drawn, so that masks of spectrograms were refused."""

    def weighed(output: Tensor, target: Tensor) -> Tensor:
        shares = torch.tensor([draw() for _ in target]).to(output)
        return (functional.cross_entropy(output, target, reduction="none") * shares).mean()

    def informed(output: Tensor, target: Tensor) -> Tensor:
        others = [int(draw() * len(target)) for _ in target]
        return functional.cross_entropy(output + output[others], target)

    assert not refused(make_job(loss=weighed)).keys() & {*REPLICAS, *MICROBATCHES}
    assert refused(make_job(loss=informed)).keys() >= REPLICAS | MICROBATCHES


@pytest.mark.parametrize(
    "shares",
    [
        lambda count: numpy.random.beta(0.4, 0.4, (count, 1)),  # noqa: NPY002
        lambda count: numpy.random.permutation(count)[:, None] * 0.0 + numpy.random.rand(),  # noqa: NPY002
    ],
    ids=["samples", "batch"],
)
def test_what_numpy_draws_for_all_samples_is_that_of_its_samples_in_a_part(shares: Callable[[int], Any]) -> None:
    def mixed(output: Tensor, target: Tensor) -> Tensor:
        other = target[torch.from_numpy(numpy.random.permutation(len(target)))]  # noqa: NPY002
        losses = [functional.cross_entropy(output, one, reduction="none") for one in (target, other)]
        share = torch.from_numpy(shares(len(target)))[:, 0]
        return (share * losses[0] + (1 - share) * losses[1]).mean()

    assert not refused(make_job(loss=mixed)).keys() & {*REPLICAS, *MICROBATCHES}


class Attending(nn.Module):
    """Attention over samples of which the mean of the batch is taken away."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Any:
        hidden = self.first(x)
        hidden = (hidden - hidden.mean(0)).reshape(len(x), 1, 2, 4)
        return self.last(functional.scaled_dot_product_attention(hidden, hidden, hidden).flatten(1))


def test_attention_without_dropout_draws_nothing() -> None:
    """A part of a batch got what attention had made of the whole, as it gets draws."""
    seen = look(make_job(model=Attending))
    assert (seen.draws, seen.reduction) == (False, "batch")


def hardest(output: Tensor, target: Tensor, *, most: int) -> Tensor:
    return functional.cross_entropy(output, target, reduction="none").topk(most).values.mean()


def at_least_three(output: Tensor, target: Tensor) -> Tensor:
    if len(target) < 3:
        raise ValueError("too few")
    return functional.cross_entropy(output, target)


def test_halves_of_a_batch_are_looked_at_where_smaller_parts_fail() -> None:
    """A look had parts of 4 and 2 samples of 6, and where these failed nothing was refused."""
    usual = {"global_batch_size": 8, "drop_last": True}
    assert refused(make_job(loss=functools.partial(hardest, most=3), **usual)).keys() >= REPLICAS | MICROBATCHES
    assert not refused(make_job(loss=at_least_three, **usual))


def test_parts_that_are_larger_than_a_look_are_refused_where_its_own_fail() -> None:
    seen = look(make_job(loss=functools.partial(hardest, most=13), global_batch_size=96, drop_last=True))
    found = objection(seen, Strategy(dp=2))
    assert found is not None
    assert "it is not known" in found


def with_rows_of_classes(output: Tensor, target: Tensor) -> Tensor:
    rows = functional.one_hot(target, 3).to(output)
    return (functional.softmax(output, 1) * rows).sum(0).square().sum()


def test_the_bounds_of_classes_decide_nothing() -> None:
    """They were told as the reason of the refusal, in the place of a sum over the batch."""
    seen = look(make_job(loss=with_rows_of_classes))
    assert (seen.reduction, seen.branches) == ("batch", False)


def test_what_an_exception_says_is_left_as_it_was() -> None:
    """torch names the rank before each line, also that of a group that a look has made."""
    before = sys.excepthook
    capture_and_look(make_job())
    assert sys.excepthook is before


BEFORE: dict[str, Any] = {"calls": 0}


def test_globals_of_a_file_are_put_back_whoever_has_used_them() -> None:
    """A function that is called by another of the file, and a global that is made by the call."""

    def step() -> None:
        _writes()

    held = HeldState({"the loss": step})
    kept = HeldState({"the loss": step}, undoable=False)
    before, known = held.values(), kept.values()
    step()
    assert {one.partition(" of ")[0] for one in changed(before, held.values())} >= {"STEPS", "BEFORE['calls']", "MADE"}
    assert changed(known, kept.values()) == []
    held.put_back()
    assert (BEFORE, STEPS, "MADE" in globals()) == ({"calls": 0}, 0, False)


def _writes() -> None:
    global STEPS, MADE
    BEFORE["calls"] += 1
    STEPS += 1
    MADE = torch.ones(2)  # type: ignore[name-defined]
