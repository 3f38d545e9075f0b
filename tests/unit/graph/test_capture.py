"""The captured flow is the user's model, and the graph says the truth about it."""

import copy
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.raising import raises
from tests.unit.graph.chain import NETWORKS, captured, gradients, make_batch, train_whole
from tests.unit.graph.networks import Layers, NestedOutput, OwnLoss, ReadsDict, RecurrentLoop, TwoInputs, make_job
from torch import nn
from torch.nn import functional

from trimaran.graph.capture.capture import capture
from trimaran.user_code.batches import call_model, compute_loss, name_tensors


@pytest.mark.parametrize("samples", [2, 7])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_flow_equals_model_to_the_last_bit(name: str, training: bool, samples: int) -> None:
    job, found = captured(name)
    assert found.flow is not None
    twin = copy.deepcopy(found.model).train(training)
    batch = make_batch(job, samples)
    expected = call_model(job, twin, batch)
    before = copy.deepcopy(found.model.state_dict())
    found.model.train(training)
    (output,) = found.flow(*name_tensors(batch).values())
    assert torch.equal(output, expected)
    assert all(map(torch.equal, found.model.buffers(), twin.buffers()))
    found.model.load_state_dict(before)


@pytest.mark.parametrize("name", NETWORKS)
def test_gradients_of_flow_equal_those_of_model(name: str) -> None:
    job, found = captured(name)
    assert found.flow is not None
    assert found.structure is not None
    twin = copy.deepcopy(found.model).train()
    batch = make_batch(job, 6)
    train_whole(job, twin, batch)
    before = copy.deepcopy(found.model.state_dict())
    found.model.train().zero_grad()
    total, weight = compute_loss(job, found.structure.rebuild(found.flow(*name_tensors(batch).values())), batch)
    (total / weight).backward()
    torch.testing.assert_close(gradients(found.model), gradients(twin), rtol=0.0, atol=0.0)
    found.model.zero_grad()
    found.model.load_state_dict(before)


@pytest.mark.parametrize("name", NETWORKS)
def test_ids_are_unique_and_leaves_have_their_paths(name: str) -> None:
    _, found = captured(name)
    ids = [op.id for op in found.graph.ops]
    assert len(set(ids)) == len(ids)
    assert ids[-1] == "loss"
    modules = dict(found.model.named_modules())
    leaves = [op for op in found.graph.ops if op.id in modules]
    assert {op.target for op in leaves} == {type(modules[op.id]).__name__ for op in leaves}
    assert len(leaves) >= 4


@pytest.mark.parametrize("name", NETWORKS)
def test_every_tensor_is_made_before_it_is_read(name: str) -> None:
    graph = captured(name)[1].graph
    known = {spec.name for spec in graph.inputs}
    for op in graph.ops:
        assert set(op.inputs) <= known
        known |= {spec.name for spec in op.outputs}
    assert graph.targets == ("target",)
    assert "head" in graph.ops[-1].inputs


def test_parameters_are_counted_once_with_their_aliases() -> None:
    graph = captured("gpt")[1].graph
    tied = next(parameter for parameter in graph.parameters if parameter.name == "token.weight")
    assert tied.aliases == ("head.weight",)
    users = [op.id for op in graph.ops if "token.weight" in op.parameters]
    assert users == ["token", "head"]
    assert next(op for op in graph.ops if op.id == "slice").parameters == ("position",)


def test_buffers_have_their_sizes() -> None:
    """Six batch norms of 8, 8, 8, 8, 16 and 16 channels: two fp32 rows each, and an int64 counter each."""
    graph = captured("cnn")[1].graph
    assert sum(graph.buffers.values()) == 2 * 4 * (4 * 8 + 2 * 16) + 6 * 8
    assert graph.buffers["stem.norm.running_mean"] == 32


def test_shapes_are_expressions_in_the_batch() -> None:
    graph = captured("lstm")[1].graph
    specs = {spec.name: spec for op in graph.ops for spec in op.outputs}
    assert specs["lstm2:1.0"].shape == (1, "B", 32)
    assert specs["lstm2:0"].shape == ("B", 12, 32)
    assert specs["lstm2:0"].nbytes.at(3) == 3 * 12 * 32 * 4


def test_masks_are_not_sent() -> None:
    """The causal mask depends on nothing but sizes: no operation lists it, so that no cut makes it cross."""
    graph = captured("gpt")[1].graph
    assert {"ones", "triu"} <= {op.id for op in graph.ops}
    assert not any({"ones", "triu"} & set(op.inputs) for op in graph.ops)


def test_zeros_shaped_after_the_data_are_not_sent() -> None:
    graph = capture(make_job(RecurrentLoop)).graph
    inputs = {op.id: op.inputs for op in graph.ops}
    assert inputs["new_zeros"] == inputs["zeros_like"] == ()
    assert inputs["cell"] == ("input",)
    assert inputs["cell@1"] == ("input", "cell:0", "cell:1")
    assert graph.split_points == ("cell", "cell@1", "cell@2")


def test_a_flag_of_rounding_that_torch_refuses_to_read_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after `torch.backends.fp32_precision = "ieee"`, which cannot be taken back."""

    def refuse(*_: bool) -> None:
        raise RuntimeError("cuDNN conv and cuDNN RNN have different TF32 flags")

    monkeypatch.setattr(torch._C, "_get_cudnn_allow_tf32", refuse)
    monkeypatch.setattr(torch._C, "_set_cudnn_allow_tf32", refuse)
    assert capture(make_job(lambda: nn.Linear(6, 4))).flow is not None


def test_capture_leaves_no_trace() -> None:
    job = make_job(lambda: nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4)))
    model = job.model().eval()
    model[1].train()
    state = copy.deepcopy(model.state_dict())
    torch.manual_seed(7)
    random.seed(7)
    capture(job, model)
    drawn = torch.rand(()), random.random()
    torch.manual_seed(7)
    random.seed(7)
    assert drawn == (torch.rand(()), random.random())
    torch.testing.assert_close(model.state_dict(), state, rtol=0.0, atol=0.0)
    assert [module.training for module in model] == [False, True, False, False]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_model_is_made_under_the_seed_of_the_job() -> None:
    job = make_job(Layers, seed=11)
    torch.manual_seed(11)
    expected = Layers()
    assert torch.equal(capture(job).model.first.weight, expected.first.weight)


def test_fp64_job_is_fp64_throughout() -> None:
    found = capture(make_job(Layers, precision="fp64"))
    assert {spec.dtype for op in found.graph.ops for spec in op.outputs} == {"float64"}


def test_bf16_crosses_as_autocast_makes_it() -> None:
    """Linear layers give bf16 under autocast, the loss fp32; the weights stay fp32."""
    found = capture(make_job(Layers, precision="bf16"))
    dtypes = {spec.name: spec.dtype for op in found.graph.ops for spec in op.outputs}
    assert (dtypes["first"], dtypes["loss"]) == ("bfloat16", "float32")
    assert {parameter.dtype for parameter in found.graph.parameters} == {"float32"}


def test_several_inputs_have_names() -> None:
    data = [((torch.randn(6), torch.randn(3)), torch.randn(4)) for _ in range(4)]
    graph = capture(make_job(TwoInputs, dataset=lambda: data)).graph
    assert [spec.name for spec in graph.inputs] == ["input.0", "input.1", "target"]
    assert next(op for op in graph.ops if op.id == "side").inputs == ("input.1",)


def test_dict_batch_names_inputs_by_key() -> None:
    data = [{"x": torch.randn(6), "y": torch.randn(4)} for _ in range(4)]
    loss = lambda output, batch: functional.mse_loss(output, batch["y"])  # noqa: E731
    graph = capture(make_job(ReadsDict, dataset=lambda: data, loss=loss)).graph
    assert [spec.name for spec in graph.inputs] == ["x", "y"]
    assert graph.targets == ("y",)


def test_own_loss_is_part_of_the_model() -> None:
    data = [{"x": torch.randn(6), "y": torch.randn(4)} for _ in range(4)]
    graph = capture(make_job(OwnLoss, dataset=lambda: data, loss=None)).graph
    assert graph.targets == ()
    assert graph.ops[-1].inputs == ("mean", "last")


def test_output_keeps_its_structure() -> None:
    loss = lambda output, target: functional.mse_loss(output["parts"][0], target)  # noqa: E731
    job = make_job(NestedOutput, loss=loss)
    found = capture(job)
    assert found.flow is not None
    assert found.structure is not None
    batch = make_batch(job, 4)
    output = found.structure.rebuild(found.flow(*name_tensors(batch).values()))
    assert output["parts"][1] is batch[0]
    assert (output["nothing"], output["number"]) == (None, 3)


def test_two_views_of_each_sample_make_the_model_one_operation() -> None:
    """The first dim of such a batch does not count its samples, so that nothing can be cut by it."""

    def two_views(samples: list[Any]) -> Any:
        inputs, targets = (torch.stack(part) for part in zip(*samples, strict=True))
        return inputs.repeat(2, 1), targets.repeat(2, 1)

    found = capture(make_job(Layers, collate=two_views))
    assert found.flow is None
    assert found.graph.inputs[0].shape == ("2*B", 6)


@pytest.mark.parametrize(
    ("changes", "code", "figures"),
    [
        ({"dataset": list}, "dataset.too-few-samples", {"samples": 0}),
        ({"dataset": lambda: iter([])}, "dataset.is-iterator", {}),
        ({"dataset": lambda: 1 / 0}, "user.raised", {"match": "Job.dataset.*ZeroDivisionError"}),
        (
            {"collate": lambda samples: samples[9]},
            "dataset.collate-fails",
            {"match": r"Job.collate.*\b0\b.*\b1\b.*\b2\b.*IndexError"},
        ),
        ({"model": lambda: 1 / 0}, "user.raised", {"match": "Job.model.*ZeroDivisionError"}),
        ({"model": lambda: "model"}, "model.not-a-module", {}),
        ({"model": lambda: nn.Linear(5, 4)}, "job.fails-on-batch", {"match": r"\b2\b.*RuntimeError"}),
        ({"loss": lambda output, target: (output - target) ** 2}, "loss.not-a-scalar", {}),
        ({"loss": lambda output, target: output.nothing}, "job.fails-on-batch", {"match": r"\b2\b.*AttributeError"}),
    ],
)
def test_bad_jobs_are_refused_with_the_reason(changes: dict[str, Any], code: str, figures: dict[str, Any]) -> None:
    model = changes.pop("model", Layers)
    with raises(code, **figures):
        capture(make_job(model, **changes))


def test_digest_is_the_same_in_another_process() -> None:
    """Another hash seed: nothing may depend on the order of a set or on an address."""
    code = """from tests.zoo import cnn
from trimaran.graph.capture.capture import capture
print(capture(cnn()).graph.digest)"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        cwd=Path(__file__).parents[3],
        env={"PYTHONHASHSEED": "99", "PYTHONPATH": "src", "OMP_NUM_THREADS": "1"},
    )
    assert result.stdout.strip() == captured("cnn")[1].graph.digest


class Counting(nn.Module):
    """A loss that counts its calls in a buffer, in place."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return functional.cross_entropy(output, target)


def test_a_loss_that_is_a_module_is_left_as_it_was() -> None:
    job = make_job(Layers, loss=Counting())
    assert isinstance(job.loss, Counting)
    capture(job)
    assert job.loss.calls == 0
