"""Hooks of the user: those on leaves fire in segments, those on containers are named as lost."""

import re
from typing import Any

import pytest
import torch
from tests.unit.graph.chain import build_chain, evaluate_chain, make_batch, train_chain
from tests.unit.graph.networks import LeakyLeaf, make_job
from torch import Tensor, nn

from trimaran.base.job import Job
from trimaran.graph.capture.capture import Capture, capture
from trimaran.program.lowering.tensor_parallel import why_not


def nested() -> nn.Module:
    return nn.Sequential(nn.Sequential(nn.Linear(6, 6), nn.Identity(), nn.ReLU()), nn.Linear(6, 4))


def named_as_lost(found: Capture) -> str:
    """The modules whose hooks forbid a cut, as the note of the graph names them; empty: the model can be cut."""
    if found.graph.split_points:
        return ""
    names = re.fullmatch(r"no pipeline: hooks on (.+) would not fire in parts of the model; .*", found.graph.notes[-1])
    assert names is not None
    return names[1]


def seen_in_training(job: Job, model: nn.Module, register: Any) -> list[str]:
    found = capture(job, model)
    seen: list[str] = []
    register(model, seen)
    train_chain(job, build_chain(found, ("0.2",)), model, make_batch(job, 4))
    return seen


def test_forward_hooks_on_leaves_fire() -> None:
    def register(model: Any, seen: list[str]) -> None:
        model[0][0].register_forward_hook(lambda *_: seen.append("first"))
        model[1].register_forward_pre_hook(lambda *_: seen.append("last"))

    job = make_job(nested)
    assert seen_in_training(job, nested(), register) == ["first", "last"]


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # the data wants no gradient
def test_backward_hooks_on_leaves_fire() -> None:
    def register(model: Any, seen: list[str]) -> None:
        model[0][0].register_full_backward_hook(lambda *_: seen.append("first"))
        model[1].register_full_backward_hook(lambda *_: seen.append("last"))

    job = make_job(nested)
    assert seen_in_training(job, nested(), register) == ["last", "first"]


def test_hooks_do_not_fire_while_the_model_is_captured() -> None:
    model: Any = nested()
    seen: list[str] = []
    model[1].register_forward_hook(lambda *_: seen.append("leaf"))
    found = capture(make_job(nested), model)
    assert seen == []
    evaluate_chain(build_chain(found, ("0.2",)), make_batch(make_job(nested), 2))
    assert seen == ["leaf"]


def test_hooks_on_containers_and_dropped_identities_are_lost() -> None:
    model: Any = nested()
    model[1].register_forward_hook(lambda *_: None)
    assert named_as_lost(capture(make_job(nested), model)) == ""
    model[0].register_forward_pre_hook(lambda *_: None)
    model[0][1].register_forward_hook(lambda *_: None)
    model.register_full_backward_hook(lambda *_: None)
    assert named_as_lost(capture(make_job(nested), model)) == "the model itself, 0, 0.1"


def test_a_model_with_hooks_on_containers_is_not_cut() -> None:
    model: Any = nested()
    found = capture(make_job(nested), model).graph
    assert found.split_points
    assert why_not(found, 2) == ""
    model[0].register_forward_hook(lambda *_: None)
    graph = capture(make_job(nested), model).graph
    assert graph.split_points == graph.regions == ()
    assert "0: a hook on it would not fire" in why_not(graph, 2)
    assert "hooks on 0 would not fire" in graph.notes[-1]


def test_hook_on_a_leaf_that_leaves_a_tensor_behind_is_lost() -> None:
    """The model reads an attribute that the leaf sets, so the leaf is taken apart into its operations."""
    found = capture(make_job(LeakyLeaf))
    assert "leaf" not in [op.id for op in found.graph.ops]
    found.model.get_submodule("leaf").register_forward_hook(lambda *_: None)
    assert named_as_lost(capture(make_job(LeakyLeaf), found.model)) == "leaf"


def test_hooks_by_which_torch_computes_a_weight_are_not_the_users() -> None:
    def make() -> nn.Module:
        return nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(6, 6)),
            nn.Tanh(),
            nn.utils.parametrizations.spectral_norm(nn.Linear(6, 4)),
        )

    job = make_job(make)
    found = capture(job)
    assert [op.id for op in found.graph.ops] == ["0", "1", "2", "loss"]
    assert named_as_lost(found) == ""


class Returning(nn.Linear):
    """It returns a parameter that only the loss uses."""

    def __init__(self) -> None:
        super().__init__(6, 4)
        self.scale = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Any:
        return super().forward(x).relu(), self.scale


def test_a_parameter_that_the_forward_returns_is_in_no_stage() -> None:
    """No operation has its gradient, which replicas of a pipeline would not add up."""
    graph = capture(make_job(Returning, loss=lambda output, target: output[0].square().mean() + output[1].sum())).graph
    assert graph.split_points == graph.regions == ()
    assert "scale is a parameter" in graph.notes[-1]
