"""Kernels go to the operations that asked for them, each once."""

import numpy
import pytest
from tests import builders

from trimaran.graph.kernels.workload import Work, WorkKind, Workload
from trimaran.graph.types import Affine, Graph, Op, Phase
from trimaran.pricing.kernels.attribution import attribute


def work(name: str, module: str, *, kind: WorkKind = WorkKind.ELEMENTWISE, phase: Phase = Phase.FORWARD) -> Work:
    return builders.work(kind=kind, phase=phase, module=module, name=name, flops=1.0, nbytes=4, dims=(1,))


def workload(*works: Work) -> Workload:
    return builders.workload(name="example", batch=2, works=works)


def graph(*ops: Op) -> Graph:
    return Graph(name="example", inputs=(), ops=ops, buffers={}, storages={})


def shares(graph: Graph, works: Workload, *, backward: bool = False) -> list[float]:
    found = attribute(graph, works).sums([1.0] * len(works.works), len(graph.ops), backward=backward)
    return [float(value) for value in found]


def test_kernels_of_a_leaf_module_are_those_of_its_call() -> None:
    ops = Op(id="conv", target="Conv2d", module="conv"), Op(id="loss", target="loss")
    works = workload(
        work("aten.convolution", "conv", kind=WorkKind.CONVOLUTION),
        work("aten.nll_loss", ""),
        work("aten.nll_loss_backward", "", phase=Phase.BACKWARD),
        work("aten.convolution_backward", "conv", phase=Phase.BACKWARD),
        work("aten.convolution_backward", "conv", phase=Phase.BACKWARD),
    )
    assert shares(graph(*ops), works) == [1.0, 1.0]
    assert shares(graph(*ops), works, backward=True) == [2.0, 1.0]


def test_operations_of_one_module_are_aligned_by_name_and_order() -> None:
    """Two reluctant adds of one container, with a softmax between them: the second add is not given to the first."""
    ops = (
        Op(id="add", target="aten.add.Tensor", module="block"),
        Op(id="softmax", target="aten.softmax.int", module="block"),
        Op(id="add_1", target="aten.add.Tensor", module="block"),
        Op(id="loss", target="loss"),
    )
    works = workload(
        work("aten.add", "block"),
        work("aten._softmax", "block", kind=WorkKind.SOFTMAX),
        work("aten.clone", "block"),
        work("aten.add", "block"),
    )
    assert shares(graph(*ops), works) == [1.0, 2.0, 1.0, 0.0]


def test_a_backward_is_shared_by_the_bytes_that_it_moves() -> None:
    ops = (
        Op(id="mul", target="aten.mul.Tensor", module="block", backward_bytes_moved=Affine(0.0, 30.0)),
        Op(id="cat", target="aten.cat.default", module="block", backward_bytes_moved=Affine(0.0, 10.0)),
        Op(id="loss", target="loss"),
    )
    works = workload(*(work("aten.any", "block", phase=Phase.BACKWARD) for _ in range(4)))
    assert shares(graph(*ops), works, backward=True) == pytest.approx([3.0, 1.0, 0.0])


def test_calls_of_one_module_take_turns() -> None:
    ops = (
        Op(id="drop", target="Dropout", module="drop"),
        Op(id="linear", target="Linear", module="linear"),
        Op(id="drop@1", target="Dropout", module="drop"),
        Op(id="loss", target="loss"),
    )
    works = workload(
        work("aten.native_dropout", "drop"),
        work("aten.addmm", "linear", kind=WorkKind.PRODUCT),
        work("aten.native_dropout", "drop"),
    )
    assert shares(graph(*ops), works) == [1.0, 1.0, 1.0, 0.0]


def test_kernels_inside_an_atomic_module_are_those_of_its_call() -> None:
    ops = Op(id="attention", target="MultiheadAttention", module="attention"), Op(id="loss", target="loss")
    works = workload(work("aten.addmm", "attention.out_proj", kind=WorkKind.PRODUCT))
    assert shares(graph(*ops), works) == [1.0, 0.0]


def test_every_kernel_is_given_out_once_whatever_its_module_is_called() -> None:
    ops = Op(id="conv", target="Conv2d", module="conv"), Op(id="loss", target="loss")
    works = workload(
        work("aten.convolution", "conv"),
        work("aten.strange", "nowhere.at.all"),
        work("aten.strange_backward", "nowhere", phase=Phase.BACKWARD),
    )
    found = attribute(graph(*ops), works)
    assert numpy.bincount(found.work, weights=found.fraction).tolist() == [1.0, 1.0, 1.0]
