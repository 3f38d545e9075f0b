"""Works by hand for the tests of this folder."""

from tests import builders

from trimaran.graph.kernels.workload import Gradient, Work, WorkKind, Workload
from trimaran.graph.types import Phase


def convolution(
    gradient: Gradient = Gradient.NONE, *, batch: int = 32, channels: int = 128, size: int = 28, window: int = 3
) -> Work:
    """A convolution that keeps the size of its images."""
    flops = 2.0 * batch * size * size * channels * channels * window * window
    nbytes = 4 * (2 * batch * channels * size * size + channels * channels * window * window)
    return builders.work(
        kind=WorkKind.CONVOLUTION,
        phase=Phase.FORWARD if gradient is Gradient.NONE else Phase.BACKWARD,
        gradient=gradient,
        module="conv",
        name="aten.convolution",
        flops=flops,
        nbytes=nbytes,
        dims=(batch, channels, size, size, channels, window, window, size, size, 1),
    )


def product(m: int, n: int, k: int, *, dtype: str = "float32", phase: Phase = Phase.FORWARD) -> Work:
    """A product of two matrices."""
    item = 4 if dtype == "float32" else 2
    return builders.work(
        kind=WorkKind.PRODUCT,
        phase=phase,
        module="fc",
        name="aten.addmm",
        dtype=dtype,
        flops=2.0 * m * n * k,
        nbytes=item * (m * n + m * k + n * k),
        dims=(1, m, n, k),
    )


def elementwise(elements: int, *, name: str = "aten.relu", phase: Phase = Phase.FORWARD, launches: int = 1) -> Work:
    """Reads and writes so many numbers of float32."""
    return builders.work(
        kind=WorkKind.ELEMENTWISE,
        phase=phase,
        module="act",
        name=name,
        nbytes=8 * elements,
        dims=(elements,),
        launches=launches,
    )


def update(elements: int, *, name: str = "SGD", bytes_each: int = 44, launches: int = 4) -> Work:
    """The optimizer of one parameter, kernel by kernel."""
    return builders.work(
        kind=WorkKind.OPTIMIZER,
        phase=Phase.UPDATE,
        module="fc",
        name=name,
        nbytes=bytes_each * elements,
        dims=(elements,),
        launches=launches,
    )


def workload(*works: Work, precision: str = "fp32", batch: int = 32) -> Workload:
    """A step of these works."""
    return builders.workload(batch=batch, precision=precision, works=works)
