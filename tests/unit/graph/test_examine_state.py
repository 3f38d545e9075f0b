"""What a job does outside of its forward, and what it keeps outside of its buffers, decides which plans are exact."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from trimaran.base.job import Job
from trimaran.graph.behaviour import Behaviour
from trimaran.graph.capture.capture import capture_and_look
from trimaran.graph.examine import examine
from trimaran.graph.user_model import make_model
from trimaran.program.exactness import KINDS, objection

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


def half_of_the_samples(output: Tensor, target: Tensor) -> Tensor:
    losses = functional.cross_entropy(output, target, reduction="none")
    return losses.topk(max(1, len(losses) // 2)).values.mean()


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


JOBS: dict[str, tuple[Callable[[], Job], frozenset[str], str]] = {
    "mask by a hook": (lambda: make_job(model=with_hook(lambda one: one * 0.5)), PARTS, "hook on the gradient of 2"),
    "clip by a hook": (
        # Far from the first gradients.
        lambda: make_job(model=with_hook(lambda one: one.clamp(-100.0, 100.0))),
        REPLICAS | MICROBATCHES | PARTS,
        "hook on the gradient of 2.weight would",
    ),
    "clip of an accumulated gradient": (
        after_accumulation,
        REPLICAS | MICROBATCHES | PARTS,
        "hook on the gradient of 0",
    ),
    "hook on a module": (centred_by_a_hook, REPLICAS | MICROBATCHES, "gradients differ"),
    "steps are counted": (lambda: make_job(model=Counting), MICROBATCHES | GRAPHS, "steps of the model"),
    "steps are counted in a global": (
        lambda: make_job(model=CountingOutside),
        MICROBATCHES | GRAPHS,
        "STEPS of the model",
    ),
    "hidden state": (lambda: make_job(model=Recurrent), REPLICAS | MICROBATCHES | GRAPHS, "hidden of the model"),
    "list of earlier batches": (lambda: make_job(model=Remembering), REPLICAS | MICROBATCHES | GRAPHS, "bank"),
    "last output": (lambda: make_job(model=Showing), frozenset(), ""),
    "loss counts": (counted_by_the_loss, MICROBATCHES, "calls['number'] of the loss"),
    "loss follows an average": (averaged_by_the_loss, REPLICAS | MICROBATCHES, "average of the loss"),
    "loss reads the weights": (decayed_by_the_loss, GRAPHS | SHARDS, "the loss holds the model"),
    "flooding": (lambda: bent(lambda loss: (loss - 0.1).abs() + 0.1), REPLICAS | MICROBATCHES, '"abs" is applied'),
    "hinge of a mean": (lambda: bent(lambda loss: (loss - 0.1).relu()), REPLICAS | MICROBATCHES, '"relu" is applied'),
    "hard samples": (lambda: make_job(loss=half_of_the_samples), REPLICAS | MICROBATCHES, "gradients differ"),
    "data draw by themselves": (lambda: make_job(dataset=Drawing), REPLICAS, "a sample that is read again differs"),
    "data change": (lambda: make_job(dataset=Changing), REPLICAS, "a sample that is read again differs"),
    "data draw": (lambda: make_job(dataset=Augmenting), frozenset(), ""),
}


@pytest.mark.parametrize("name", JOBS)
def test_what_is_no_buffer_is_seen(name: str) -> None:
    make, kinds, reason = JOBS[name]
    found = refused(make())
    assert found.keys() == kinds
    assert all(reason in one for one in found.values()), found


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


scale = 2.0


class Scaled(nn.Linear):
    """A global of the name of its attribute is not its attribute."""

    def __init__(self) -> None:
        super().__init__(6, 3)
        self.scale = 1.0

    def forward(self, inputs: Tensor) -> Tensor:
        self.scale += 1.0
        return super().forward(inputs) * scale / self.scale


def test_a_global_does_not_hide_the_attribute_of_its_name() -> None:
    assert look(make_job(model=Scaled)).carried_by_model == ("scale of the model",)


def test_what_follows_a_buffer_is_not_carried_in_python() -> None:
    """A weight that is divided by its norm in each forward is computed from parameters and buffers."""

    def model() -> Any:
        return nn.Sequential(nn.utils.spectral_norm(nn.Linear(6, 8)), nn.Linear(8, 3))

    seen = look(make_job(model=model))
    assert seen.carried == ()
    assert "0.weight_u" in seen.buffers


class Logging:
    """A loss that appends to a list, and perhaps reads it."""

    def __init__(self) -> None:
        self.seen_losses = []  # type: ignore[var-annotated]
        self.read_losses = []  # type: ignore[var-annotated]

    def unread(self, output: Tensor, target: Tensor) -> Tensor:
        loss = functional.cross_entropy(output, target)
        self.seen_losses.append(loss.item())
        return loss

    def read(self, output: Tensor, target: Tensor) -> Tensor:
        loss = functional.cross_entropy(output, target)
        self.read_losses.append(loss.item())
        return loss * (0.5 if len(self.read_losses) > 1000 else 1.0)


def test_a_list_that_nothing_reads_is_no_state() -> None:
    """What reads it, if only after a thousand steps, is told by the source."""
    assert refused(make_job(loss=Logging().unread)) == {}
    assert refused(make_job(loss=Logging().read)).keys() == REPLICAS | MICROBATCHES


@pytest.mark.parametrize("kept", ["under a key", "detached", "in a list"])
def test_what_hooks_hand_to_the_loss_is_refused_in_parts_of_a_network(kept: str) -> None:
    """A loss that reads features fails in a capture, where no hook fires; replicas train it all the same."""
    features: dict[str, Any] = {}
    several: list[Any] = []

    def keep(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if kept == "in a list":
            several.append(output)
        else:
            features["hidden"] = output.detach() if kept == "detached" else output

    def model() -> Any:
        made = layers()
        made[0].register_forward_hook(keep)
        return made

    def loss(output: Tensor, target: Tensor) -> Tensor:
        hidden = several if kept == "in a list" else [features["hidden"]]
        each = sum(one.square().mean(1) for one in hidden)
        several.clear()
        return (functional.cross_entropy(output, target, reduction="none") * (1.0 + each)).mean()

    job = make_job(model=model, loss=loss)
    captured = capture_and_look(job)
    assert captured.graph.split_points == () or kept == "in a list"
    assert bool(features) is False
    found = refused(job)
    assert found.keys() == GRAPHS
    assert "behind for a loss that reads it" in found["pipeline"]
