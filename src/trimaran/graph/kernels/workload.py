"""What a training step asks of a device, apart from how fast any device is: kernels with shapes, gradients with sizes.

A `Workload` is one rank's step at one batch size, in the order in which it runs: forward, backward, update. It is what
is left of a trace once lives and storages are dropped and the shapes are kept. It holds no torch object, and everything
in it but the shapes of weights grows with the batch, so a workload at any batch follows from two.

A workload at any batch, from those at two batches.

A step does the same kernels at every batch, and every size in it is `a + b * batch`: weights do not grow, everything
else grows with the samples. What depends on the batch otherwise, such as a model that takes another path for a small
one, has another structure at another batch; that is seen, and has no such form.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from trimaran.base.precision import Precision
from trimaran.graph.types import OUTSIDE, Phase

KERNEL_PRECISIONS: tuple[Precision, ...] = ("ieee", "fp32", "tf32", "bf16", "fp16")
"""Those that the kernel model prices."""


class WorkKind(StrEnum):
    """Families of kernels that are limited by the same things."""

    CONVOLUTION = "convolution"
    PRODUCT = "product"
    ATTENTION = "attention"
    RECURRENT = "recurrent"
    NORMALIZATION = "normalization"
    POOLING = "pooling"
    SOFTMAX = "softmax"
    EMBEDDING = "embedding"
    REDUCTION = "reduction"
    ELEMENTWISE = "elementwise"
    COPY = "copy"
    OPTIMIZER = "optimizer"


class Gradient(StrEnum):
    """What a backward kernel of a product or convolution makes."""

    NONE = ""
    INPUT = "input"
    WEIGHT = "weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One kernel of a step, or several alike that follow one another.

    Attributes:
        kind: family
        phase: forward, backward or update
        gradient: which one it makes, of products, convolutions and recurrent layers in the backward
        module: path of the module that asked for it
        name: of the operator, such as "aten.convolution"
        dtype: of the tensors that it computes with: "float32", "bfloat16" or "float16"
        flops: floating-point operations, a multiplication and an addition counted as two [FLOP]
        nbytes: bytes read and written [bytes]
        dims: shape, by kind. Convolution: (batch, channels in, height in, width in, channels out, kernel height, kernel
            width, height out, width out, groups), of the forward also where this is a gradient; transposed ones as the
            forward that they are the gradient of. Product: (batch, m, n, k). Recurrent: (steps, batch, input, hidden,
            gates, directions), one layer. Attention: (batch, heads, queries, keys, size). Others: (elements,)
        launches: kernels that an eager framework starts for it
        origin: see `TraceOp`; not compared
        moments: of its operations in the trace that it was made from, ascending; not compared. Of an update that was
            not traced, those of the one that stands for it
    """

    kind: WorkKind
    phase: Phase
    gradient: Gradient = Gradient.NONE
    module: str
    name: str
    dtype: str
    flops: float
    nbytes: int
    dims: tuple[int, ...]
    launches: int = 1
    origin: str = field(default=OUTSIDE, compare=False)
    moments: tuple[int, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGradient:
    """A parameter and the moment at which its gradient is complete.

    Attributes:
        name: of the parameter
        module: path of the module that owns it
        elements: of the parameter
        nbytes: of the gradient as the step makes it [bytes]
        work: index in `Workload.works` of the last work that adds to it
        sparse: only some rows of it are touched in a step (an embedding): frameworks that can, exchange those rows
    """

    name: str
    module: str
    elements: int
    nbytes: int
    work: int
    sparse: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One rank's step.

    Attributes:
        name: of the network
        batch: samples of the step on this rank
        precision: one of `KERNEL_PRECISIONS`
        optimizer: class name, such as "SGD" or "Adam"; "" without an update
        works: in the order in which they run
        gradients: of all trained parameters, in the order in which they are complete
        parameter_bytes: of all parameters [bytes]
        buffer_bytes: of all buffers [bytes]
        optimizer_bytes: state of the optimizer [bytes]
        input_bytes: what is copied to the device for a step [bytes]
    """

    name: str
    batch: int
    precision: Precision
    optimizer: str
    works: tuple[Work, ...]
    gradients: tuple[WeightGradient, ...]
    parameter_bytes: int
    buffer_bytes: int
    optimizer_bytes: int
    input_bytes: int

    @property
    def gradient_bytes(self) -> int:
        """Bytes of all gradients [bytes]."""
        return sum(gradient.nbytes for gradient in self.gradients)

    def flops(self, phase: Phase | None = None) -> float:
        """Work of a phase, or of the whole step [FLOP]."""
        return sum(work.flops for work in self.works if phase is None or work.phase is phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkGrowth:
    """What a work gains with one sample more.

    Attributes:
        flops: [FLOP]
        nbytes: [bytes]
        dims: each of its shape
    """

    flops: float
    nbytes: int
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AffineWorkload:
    """A workload as a function of the batch.

    Attributes:
        base: at one batch
        growth: by place of the works that grow with the batch
        input_bytes: of one sample [bytes]
    """

    base: Workload
    growth: Mapping[int, WorkGrowth]
    input_bytes: int

    def at(self, batch: int) -> Workload:
        """The workload at a batch.

        Args:
            batch: samples
        """
        more = batch - self.base.batch
        works = tuple(
            work if (growth := self.growth.get(place)) is None else _grown(work, growth, more)
            for place, work in enumerate(self.base.works)
        )
        return replace(self.base, batch=batch, works=works, input_bytes=self.base.input_bytes + more * self.input_bytes)


def affine(low: Workload, high: Workload) -> AffineWorkload | None:
    """The function through two workloads of one step.

    Args:
        low: at some batch; it may lack the update, which depends on no batch
        high: at the next larger batch

    Returns:
        It; None: the two differ in more than sizes.
    """
    before = tuple(work for work in low.works if work.phase is not Phase.UPDATE)
    after = tuple(work for work in high.works if work.phase is not Phase.UPDATE)
    if high.batch != low.batch + 1 or low.gradients != high.gradients or not _alike(before, after):
        return None
    growth = {
        place: WorkGrowth(
            flops=large.flops - small.flops,
            nbytes=large.nbytes - small.nbytes,
            dims=tuple(b - a for a, b in zip(small.dims, large.dims, strict=True)),
        )
        for place, (small, large) in enumerate(zip(before, after, strict=True))
        if small != large
    }
    return AffineWorkload(base=high, growth=growth, input_bytes=high.input_bytes - low.input_bytes)


def _form(work: Work) -> tuple[object, ...]:
    """What must not change with the batch."""
    return work.kind, work.phase, work.gradient, work.module, work.name, work.dtype, work.launches, len(work.dims)


def _alike(low: tuple[Work, ...], high: tuple[Work, ...]) -> bool:
    return len(low) == len(high) and all(_form(a) == _form(b) for a, b in zip(low, high, strict=True))


def _grown(work: Work, growth: WorkGrowth, more: int) -> Work:
    return replace(
        work,
        flops=work.flops + more * growth.flops,
        nbytes=work.nbytes + more * growth.nbytes,
        dims=tuple(size + more * gain for size, gain in zip(work.dims, growth.dims, strict=True)),
    )
