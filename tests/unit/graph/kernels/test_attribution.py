"""Kernels go to the operations that launch them, each once."""

import dataclasses
import functools

import numpy
import pytest
import torch
from tests import builders
from tests.unit.graph import networks
from tests.unit.graph.chain import NETWORKS, captured
from torch import Tensor, nn
from torch.nn import functional

from trimaran.base.job import Job
from trimaran.graph.capture.capture import capture
from trimaran.graph.kernels.attribution import attribute
from trimaran.graph.kernels.convert import workload_of
from trimaran.graph.kernels.workload import Work, WorkKind, Workload
from trimaran.graph.types import OUTSIDE, Affine, Graph, Op, Phase
from trimaran.planning.tracing.meta_trace import JobTracer

ADD = "method_descriptor.add"


def work(name: str, origin: str, *, phase: Phase = Phase.FORWARD) -> Work:
    return builders.work(kind=WorkKind.ELEMENTWISE, phase=phase, name=name, origin=origin, flops=1.0, dims=(1,))


def workload(*works: Work) -> Workload:
    return builders.workload(name="example", batch=2, works=works)


def graph(*ops: Op) -> Graph:
    loss = Op(id="loss", target="loss", origins=(OUTSIDE,))
    return Graph(name="example", inputs=(), ops=(*ops, loss), buffers={}, storages={})


def shares(graph: Graph, works: Workload, *, backward: bool = False) -> list[float]:
    found = attribute(graph, works).sums([1.0] * len(works.works), len(graph.ops), backward=backward)
    return [float(value) for value in found]


def traced(job: Job) -> Workload:
    """A step of 4 samples."""
    trace = JobTracer(dataclasses.replace(job, clip_norm=None)).trace(4)
    return workload_of(trace, name="example", batch=4, precision="fp32", input_bytes=0)


def kernels(graph: Graph, works: Workload, phase: Phase) -> dict[str, list[str]]:
    """Names of the kernels of each operation that has any."""
    found: dict[str, list[str]] = {}
    given = attribute(graph, works)
    for place, op in zip(given.work, given.op, strict=True):
        if works.works[place].phase is phase:
            found.setdefault(graph.ops[op].id, []).append(works.works[place].name.removeprefix("aten."))
    return found


def test_kernels_of_a_leaf_module_are_those_of_its_call() -> None:
    conv = Op(id="conv", target="Conv2d", module="conv", parameters=("conv.weight",), origins=("conv",))
    works = workload(
        work("aten.convolution", "conv/builtin_function_or_method.conv2d_1"),
        work("aten.nll_loss", f"{OUTSIDE}/function.cross_entropy_1"),
        work("aten.nll_loss_backward", f"{OUTSIDE}/function.cross_entropy_1", phase=Phase.BACKWARD),
        work("aten.convolution_backward", "conv/builtin_function_or_method.conv2d_1", phase=Phase.BACKWARD),
        work("aten.add_", "conv.weight", phase=Phase.BACKWARD),
    )
    assert shares(graph(conv), works) == [1.0, 1.0]
    assert shares(graph(conv), works, backward=True) == [2.0, 1.0]


def test_torch_functions_are_told_apart_by_their_number() -> None:
    """A function that the graph lacks, such as one that copies a tensor, counts with the operation before it."""
    ops = (
        Op(id="add", target="aten.add.Tensor", module="block", origins=(f"block/{ADD}_1",)),
        Op(id="softmax", target="aten.softmax.int", module="block", origins=("block/function.softmax_1",)),
        Op(id="add_1", target="aten.add.Tensor", module="block", origins=(f"block/{ADD}_2",)),
    )
    works = workload(
        work("aten.add", f"block/{ADD}_1"),
        work("aten._softmax", "block/function.softmax_1"),
        work("aten.clone", "block/method_descriptor.contiguous_1"),
        work("aten.add", f"block/{ADD}_2"),
    )
    assert shares(graph(*ops), works) == [1.0, 2.0, 1.0, 0.0]


def test_operations_of_one_function_share_its_kernels_by_the_bytes_that_they_move() -> None:
    ops = (
        Op(id="mul", target="aten.mul.Tensor", origins=("f",), backward_bytes_moved=Affine(0.0, 30.0)),
        Op(id="cat", target="aten.cat.default", origins=("f",), backward_bytes_moved=Affine(0.0, 10.0)),
    )
    works = workload(work("aten.any", "f"), *(work("aten.any", "f", phase=Phase.BACKWARD) for _ in range(4)))
    assert shares(graph(*ops), works) == [0.5, 0.5, 0.0]
    assert shares(graph(*ops), works, backward=True) == pytest.approx([3.0, 1.0, 0.0])


def test_every_kernel_is_given_out_once_wherever_it_comes_from() -> None:
    conv = Op(id="conv", target="Conv2d", module="conv", origins=("conv",))
    works = workload(
        work("aten.convolution", "conv"),
        work("aten.strange", "nowhere.at.all"),
        work("aten.strange_backward", "nowhere", phase=Phase.BACKWARD),
    )
    found = attribute(graph(conv), works)
    assert numpy.bincount(found.work, weights=found.fraction).tolist() == [1.0, 1.0, 1.0]


def test_a_model_that_could_not_be_captured_has_all_kernels_but_those_of_the_loss() -> None:
    job = networks.make_job(networks.BranchesOnData)
    found = capture(job).graph
    works = workload(
        work("aten.addmm", "first/builtin_function_or_method.linear_1"),
        work("aten.mse_loss", f"{OUTSIDE}/function.mse_loss_1"),
        work("aten.mse_loss_backward", f"{OUTSIDE}/function.mse_loss_1", phase=Phase.BACKWARD),
        work("aten.mm", "first/builtin_function_or_method.linear_1", phase=Phase.BACKWARD),
    )
    assert [shares(found, works, backward=backward) for backward in (False, True)] == [[1.0, 1.0], [1.0, 1.0]]


class Shared(networks.Layers):
    """One module that is called twice, an addition of each result, a parameter of the model itself."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.act = nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(x * self.scale) + x
        y = self.act(self.first(y)) + y
        return self.last(functional.softmax(y, dim=-1))


def test_calls_of_one_module_and_calls_of_one_function_are_told_apart_in_both_directions() -> None:
    job = networks.make_job(Shared)
    found, works = capture(job).graph, traced(job)
    forward = kernels(found, works, Phase.FORWARD)
    assert forward.pop("loss")[0] == "mse_loss"
    assert forward == {
        "mul": ["mul"],
        "act": ["tanh"],
        "add": ["add"],
        "first": ["addmm"],
        "act@1": ["tanh"],
        "add_1": ["add"],
        "softmax": ["_softmax"],
        "last": ["addmm"],
    }
    backward = kernels(found, works, Phase.BACKWARD)
    assert [backward[name].count("tanh_backward") for name in ("act", "act@1")] == [1, 1]
    kernel = {"softmax": "_softmax_backward_data", "first": "mm", "mul": "mul", "loss": "mse_loss_backward"}
    assert all(name in backward[op] for op, name in kernel.items())


@functools.cache
def _example(name: str) -> tuple[Graph, Workload]:
    job, found = captured(name)
    return found.graph, traced(job)


@pytest.mark.parametrize("name", NETWORKS)
def test_the_graph_has_every_origin_of_a_trace(name: str) -> None:
    graph, works = _example(name)
    known = {origin for op in graph.ops for origin in (*op.origins, *op.parameters)}
    asked = {work.origin for work in works.works if work.phase is not Phase.UPDATE}
    assert {origin for origin in asked if not {origin, origin.rpartition("/")[0]} & known} == set()


class Sliced(nn.Module):
    """Layers that are reached through a slice of their list; one of them has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.LSTM(6, 6), nn.Linear(6, 4)])
        self.other = self.layers[0]

    def forward(self, x: Tensor) -> Tensor:
        y = self.other(self.layers[0](x))
        lstm, last = self.layers[1:]
        result: Tensor = last(lstm(y.unsqueeze(0))[0].squeeze(0))
        return result


def test_layers_of_a_sliced_list_are_called_whole_and_calls_by_two_names_are_told_apart() -> None:
    job = networks.make_job(Sliced)
    found, works = capture(job).graph, traced(job)
    assert [op.parameters for op in found.ops if op.id == "layers.1"] == [
        ("layers.1.weight_ih_l0", "layers.1.weight_hh_l0", "layers.1.bias_ih_l0", "layers.1.bias_hh_l0")
    ]
    names = kernels(found, works, Phase.FORWARD)
    assert names["layers.1"][-1] == "trimaran.lstm_forward"
    assert names["layers.0"] == ["addmm"]
    assert sorted(name for name, run in names.items() if "addmm" in run) == ["layers.0", "layers.2", "linear"]
