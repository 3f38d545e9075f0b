"""A graph whose backward is not that of the model is not used: torch.export keeps what a forward computes alone."""

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.graph.networks import make_job
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from trimaran.graph.capture.capture import capture, unused_parameters
from trimaran.graph.capture.constants import Constants
from trimaran.program.lowering.tensor_parallel import why_not


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return -gradients[0]


class Leaf(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        reversed_: Tensor = Reversed.apply(x)  # type: ignore[no-untyped-call]
        return reversed_


class Network(nn.Module):
    def __init__(self, between: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second, self.factor = nn.Linear(6, 6), nn.Linear(6, 4), 1.0
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.between(self.first(x)) * self.factor
        output: Tensor = self.second(torch.tanh(hidden))
        return output


def scaled_by_a_hook(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda gradient: 0.1 * gradient)
    return x


class Clamped(torch.autograd.Function):
    """Against gradients that explode, which those of a look do not."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0].clamp(-100.0, 100.0)


def small_ones_left_out_by_a_hook(x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda gradient: torch.where(gradient.abs() < 1e-5, 0.0, gradient))
    return x


@pytest.mark.parametrize(
    "between",
    [lambda x: Reversed.apply(x), scaled_by_a_hook, lambda x: Clamped.apply(x), small_ones_left_out_by_a_hook],
    ids=["function", "hook", "clamped", "left-out"],
)
def test_a_backward_that_export_drops_is_seen(between: Callable[[Tensor], Tensor]) -> None:
    found = capture(make_job(lambda: Network(between)))
    assert not found.graph.split_points
    assert "the gradient of first.weight differs from the model's" in found.graph.notes[-1]


class Deciding(torch.autograd.Function):
    """Goes another way where a gradient is seldom, so that here it is that of the graph."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0] if gradients[0].abs().max() == 7.0 else gradients[0]


def test_a_backward_that_decides_by_a_value_is_in_no_graph() -> None:
    """Gradients were those of the model as long as they were compared, and no longer in the training."""
    found = capture(make_job(lambda: Network(lambda x: Deciding.apply(x)))).graph
    assert not found.split_points
    assert "its backward reads values" in found.notes[-1]


def test_a_loss_with_a_reentrant_checkpoint_has_its_unused_parameters_told() -> None:
    """It failed, as a backward to some tensors alone does there."""
    inside = torch.nn.functional.cross_entropy
    loss = lambda output, target: checkpoint(inside, output, target, use_reentrant=True)  # noqa: E731
    job = make_job(lambda: Network(torch.tanh), loss=loss)
    made = capture(job)
    assert unused_parameters(job, made) == frozenset()
    assert all(one.grad is None for one in made.model.parameters())


def recomputed(normalized: bool) -> Callable[[Tensor], Tensor]:
    part = nn.Sequential(nn.BatchNorm1d(6) if normalized else nn.LayerNorm(6), nn.Tanh())

    class Recomputed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.part = part

        def forward(self, x: Tensor) -> Any:
            return checkpoint(self.part, x, use_reentrant=False)

    return Recomputed()


def test_running_statistics_that_a_checkpointed_part_takes_twice_are_in_no_graph() -> None:
    found = capture(make_job(lambda: Network(recomputed(normalized=True)))).graph
    assert not found.split_points
    assert "between.part.0.running_mean is a buffer, and the backward changes it once more" in found.notes[-1]
    assert "between.part.0.running_mean" in why_not(found, 2)
    assert capture(make_job(lambda: Network(recomputed(normalized=False)))).graph.split_points


@pytest.mark.parametrize("between", [Leaf(), torch.relu], ids=["module", "relu"])
def test_other_networks_are_cut(between: Any) -> None:
    assert capture(make_job(lambda: Network(between))).graph.split_points


class Masked(nn.Module):
    """A transformer of torch's that is not told that its mask is causal, and looks."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.Transformer(6, 2, 1, 1, 8, 0.0, batch_first=True), nn.Linear(18, 4)

    def forward(self, x: Tensor) -> Tensor:
        words = torch.stack((x, x + 1.0, x - 1.0), 1)
        made: Tensor = self.head(self.layers(words, words, tgt_mask=nn.Transformer.generate_square_subsequent_mask(3))
                                 .flatten(1))  # fmt: skip
        return made


def test_a_mask_whose_values_nobody_tells_is_applied_as_it_is() -> None:
    found = capture(make_job(Masked))
    assert found.flow is not None, found.graph.notes
    assert found.graph.split_points
    x = torch.randn(5, 6)
    (made,) = found.flow(x, torch.zeros(5, dtype=torch.long))
    torch.testing.assert_close(made, found.model(x), rtol=1e-5, atol=1e-6)


def test_attributes_that_a_graph_has_as_constants() -> None:
    model = Network(Leaf())
    constants = Constants(model, {"first", "second", "between"})
    assert constants.take_over() == []
    model.factor = 2.0
    model.between.training = False  # type: ignore[attr-defined]
    assert constants.take_over() == ["factor of session.model"]


class OtherInTraining(Network):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * 1.5 if self.training else x)


def test_the_mode_is_a_constant_of_a_graph_that_stands_for_one() -> None:
    """Ranks that share tensors trained on in training mode after a callback had called `eval()`."""
    found = capture(make_job(lambda: OtherInTraining(torch.relu)))
    assert not found.one_for_both_modes
    constants = Constants(found.model, {"first", "second"}, modes=found.one_for_both_modes)
    assert constants.take_over() == []
    found.model.train(not found.model.training)
    assert constants.take_over() == ["session.model.training"]


def test_another_tensor_in_the_place_of_a_buffer_is_written_to_the_buffer() -> None:
    """The graph has the buffer: a temperature that a callback set changed nothing in it."""
    model = Network(Leaf())
    model.register_buffer("scale", torch.tensor(2.0))
    buffer, constants = model.scale, Constants(model, {"first", "second", "between"})
    model.scale = 0.5 * buffer
    assert constants.take_over() == []
    assert model.scale is buffer
    assert float(buffer) == 1.0
    model.scale = torch.ones(2)
    assert constants.take_over() == ["session.model.scale"]


def test_modules_and_hooks_that_a_graph_does_not_have() -> None:
    model = Network(Leaf())
    called = {"first", "second", "between"}
    constants, of_all = Constants(model, called), Constants(model, called, rewritten={"first"})
    handle = model.first.register_forward_hook(lambda *_: None)
    assert (constants.take_over(), of_all.take_over()) == ([], ["the hooks of session.model.first"])
    handle.remove()
    model.register_forward_pre_hook(lambda *_: None)
    assert constants.take_over() == ["the hooks of session.model"]
    model.second = nn.Linear(8, 4)
    assert "session.model.second" in constants.take_over()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda model: setattr(model, "forward", lambda x: x), "forward of session.model"),
        (lambda model: setattr(model, "forward", functools.partial(model.forward)), "forward of session.model"),
        (lambda model: setattr(model, "between", torch.tanh), "between of session.model"),
        (lambda model: setattr(model.first, "forward", lambda x: x), "the forward of session.model.first"),
    ],
)
def test_another_function_is_not_in_a_graph(change: Any, said: str) -> None:
    """Pipelines, placements and shared tensors went on without a forward that a loop put on its model."""
    model = Network(torch.relu)
    constants = Constants(model, {"first", "second"}, rewritten={"first"})
    assert constants.take_over() == []
    change(model)
    assert said in constants.take_over()


class Settings:
    alpha = 1.0


SETTINGS = {"beta": 1.0}


def test_what_forwards_of_containers_hold_is_constant_in_a_graph() -> None:
    """Globals are not told: which of them a forward reads is not known, and a script changes some in each step."""
    settings, namespace = Settings(), types.SimpleNamespace(gamma=1.0)

    class Scaled(Network):
        def forward(self, x: Tensor) -> Tensor:
            x = Weakened.apply(x)
            return super().forward(x) * settings.alpha * SETTINGS["beta"] * namespace.gamma * type(self).delta

        delta = 1.0

    strength = {"epsilon": 1.0}

    class Weakened(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0] * strength["epsilon"]

    constants = Constants(Scaled(torch.relu), {"first", "second"})
    assert constants.take_over() == []
    settings.alpha = SETTINGS["beta"] = namespace.gamma = Scaled.delta = strength["epsilon"] = 2.0
    found = constants.take_over()
    SETTINGS["beta"] = 1.0
    assert {one.removesuffix(" of session.model") for one in found} == {
        "settings.alpha", "namespace.gamma", "Scaled.delta", "strength['epsilon']"
    }  # fmt: skip
