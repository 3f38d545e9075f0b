"""Work of a step against published multiplications and parameters, and against rules that papers use."""

from dataclasses import dataclass

import pytest

from trimaran.graph.kernels.workload import Gradient, WorkKind
from trimaran.graph.types import Phase
from trimaran.planning.tracing.workloads import workload
from trimaran_studies.specification.hybrid_parallelism import PUBLISHED_WORK

pytestmark = pytest.mark.published

TORCHVISION = "torchvision's table of weights, GFLOPS (multiplications and additions counted as one)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A published amount of work.

    Attributes:
        macs: multiplications of the forward of one sample
        parameters: number of them
        source: where it stands
        tolerance: relative, on `macs`; half of the last digit that is printed
    """

    macs: float
    parameters: int
    source: str = TORCHVISION
    tolerance: float = 0.01


NETWORKS = {
    "alexnet": Published(macs=PUBLISHED_WORK["alexnet"], parameters=61_100_840),
    "vgg16": Published(macs=PUBLISHED_WORK["vgg16"], parameters=138_357_544),
    "resnet50": Published(macs=PUBLISHED_WORK["resnet50"], parameters=25_557_032),
    "inception_v3": Published(macs=PUBLISHED_WORK["inception_v3"], parameters=23_834_568),
    "googlenet": Published(macs=PUBLISHED_WORK["googlenet"], parameters=6_624_904),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_forward_work_and_gradients(name: str) -> None:
    published, one = NETWORKS[name], workload(name, batch=1)
    assert one.flops(Phase.FORWARD) == pytest.approx(2 * published.macs, rel=published.tolerance)
    assert sum(gradient.elements for gradient in one.gradients) == published.parameters


@pytest.mark.parametrize("name", NETWORKS)
def test_the_backward_is_twice_the_forward_less_the_first_gradient_of_the_input(name: str) -> None:
    one = workload(name, batch=3)
    first = next(work for work in one.works if work.kind is WorkKind.CONVOLUTION)
    assert one.flops(Phase.BACKWARD) == 2 * one.flops(Phase.FORWARD) - first.flops
    inputs = [work.dims for work in one.works if work.gradient is Gradient.INPUT and work.kind is first.kind]
    assert first.dims not in inputs


@pytest.mark.parametrize("name", ["llama3:1b", pytest.param("gpt2:355m", marks=pytest.mark.sweep)])
def test_a_transformer_works_six_times_a_parameter_and_token(name: str) -> None:
    """Forward 2, backward 4 for every weight but those of which only rows are taken, and biases and norms.

    Source:
        Kaplan et al., arXiv:2001.08361, section 2.1. Attention comes on top, 12 x layers x width x window a token: here
        less than a tenth.
    """
    one = workload(name, batch=1, precision="bf16", options={"sequence": "512"})
    multiplied = sum(gradient.elements for gradient in one.gradients if not gradient.sparse)
    products = sum(work.flops for work in one.works if work.kind is WorkKind.PRODUCT)
    rule = 6.0 * multiplied * 512
    assert products == pytest.approx(rule, rel=0.005)
    assert one.flops() == pytest.approx(rule, rel=0.1)
