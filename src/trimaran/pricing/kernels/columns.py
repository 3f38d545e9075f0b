"""Works of a step as columns of figures, so that the time of all of them is a few array operations.

The units compute products, convolutions and attention as products of matrices; they differ in how their shapes become
`(m, n, k)`:

    convolution, forward            m = batch × height out × width out   n = channels out of a group   k = window × in
    convolution, input gradient     m = batch × height in × width in     n = channels in of a group    k = the rest
    convolution, weight gradient    m = channels out of a group          n = window × in               k = pixels out
    attention                       m = queries   n = keys   k = size of a head, once for each head and sample

"The rest" keeps the FLOP: a strided convolution's gradient reads only one output in `stride²` for each input.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy
from numpy.typing import NDArray

from trimaran.graph.kernels.workload import Gradient, Work, WorkKind

Column = NDArray[numpy.float64]
Flags = NDArray[numpy.bool_]

MATRIX_KINDS = frozenset({WorkKind.CONVOLUTION, WorkKind.PRODUCT, WorkKind.ATTENTION})
"""Kinds that are products of matrices to the device. Recurrent layers are too, but step by step."""

COMPOSITES = ("layer_norm", "gelu", "dropout")
"""Parts of names of operators that some frameworks make of many."""

ELEMENT_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4}


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernels:
    """Works of a step, one entry of each column a work.

    Attributes:
        kind: family
        name: of the operator, or of the optimizer
        gradient: result of a backward kernel
        dtype: in which it computes
        flops: floating-point operations [FLOP]
        nbytes: read and written [bytes]
        element_bytes: of one element of its operands [bytes]
        elements: of a parameter, of an optimizer's work; elsewhere the first size of its shape
        launches: kernels
        composite: several operators where a framework has no kernel for it: layer norm, GELU, dropout
        m: rows of the product
        n: columns of the product
        k: depth of the product
        count: products of that shape at once
        steps: one after another, of a recurrent layer; 1 elsewhere
        window: elements of a convolution's window; 0 where there is none
        stride: area of a convolution's stride; 1 where there is none
        pixels: (samples, height, width) of the output of a convolution, or, of a weight gradient, of its input
        channels_in: of a group of a convolution
        channels_out: of a group of a convolution
    """

    kind: NDArray[numpy.str_]
    name: NDArray[numpy.str_]
    gradient: NDArray[numpy.str_]
    dtype: NDArray[numpy.str_]
    flops: Column
    nbytes: Column
    element_bytes: Column
    elements: Column
    launches: Column
    composite: Flags
    m: Column
    n: Column
    k: Column
    count: Column
    steps: Column
    window: Column
    stride: Column
    pixels: NDArray[numpy.float64]
    channels_in: Column
    channels_out: Column

    def __len__(self) -> int:
        return len(self.flops)


def kernels(works: Sequence[Work]) -> Kernels:
    """The works as columns."""
    shapes = [_shape(work) for work in works]
    return Kernels(
        kind=numpy.array([work.kind.value for work in works], dtype=str),
        name=numpy.array([work.name for work in works], dtype=str),
        elements=_column([work.dims[0] if work.dims else 0 for work in works]),
        gradient=numpy.array([work.gradient.value for work in works], dtype=str),
        dtype=numpy.array([work.dtype for work in works], dtype=str),
        flops=_column([work.flops for work in works]),
        nbytes=_column([work.nbytes for work in works]),
        element_bytes=_column([ELEMENT_BYTES.get(work.dtype, 4) for work in works]),
        launches=_column([work.launches for work in works]),
        composite=numpy.array([any(name in work.name for name in COMPOSITES) for work in works], dtype=bool),
        pixels=numpy.array([shape.pixels for shape in shapes], dtype=float).reshape(-1, 3),
        **{name: _column([getattr(shape, name) for shape in shapes]) for name in _SHAPE_COLUMNS},
    )


@dataclass(frozen=True, slots=True)
class _Shape:
    m: float = 0.0
    n: float = 0.0
    k: float = 0.0
    count: float = 1.0
    steps: float = 1.0
    window: float = 0.0
    stride: float = 1.0
    pixels: tuple[float, float, float] = (0.0, 0.0, 0.0)
    channels_in: float = 0.0
    channels_out: float = 0.0


_SHAPE_COLUMNS = ("m", "n", "k", "count", "steps", "window", "stride", "channels_in", "channels_out")


def _shape(work: Work) -> _Shape:
    if work.kind is WorkKind.CONVOLUTION and len(work.dims) == 10:
        return _convolution(work)
    if work.kind is WorkKind.PRODUCT and len(work.dims) == 4:
        count, m, n, k = work.dims
        return _Shape(m, n, k, count)
    if work.kind is WorkKind.ATTENTION and len(work.dims) == 5:
        batch, heads, queries, keys, size = work.dims
        return _Shape(
            queries, keys, size, batch * heads * max(1.0, work.flops / (2.0 * batch * heads * queries * keys * size))
        )
    if work.kind is WorkKind.RECURRENT and len(work.dims) == 6:
        steps, batch, inputs, hidden, gates, directions = work.dims
        return _Shape(batch, gates * hidden, hidden, directions, steps, channels_in=inputs, channels_out=hidden)
    return _Shape()


def _convolution(work: Work) -> _Shape:
    batch, inputs, height, width, outputs, window_h, window_w, height_out, width_out, groups = work.dims
    inputs, outputs, window = inputs // groups, outputs // groups, window_h * window_w
    written, read = (batch, height_out, width_out), (batch, height, width)
    stride = max(1.0, round(height / max(height_out, 1)) * round(width / max(width_out, 1)))
    if work.gradient is Gradient.INPUT:
        m, n = batch * height * width, inputs
        pixels = read
    elif work.gradient is Gradient.WEIGHT:
        m, n = outputs, inputs * window
        pixels = written
    else:
        m, n = batch * height_out * width_out, outputs
        pixels = written
    k = work.flops / (2.0 * m * n * groups)
    return _Shape(m, n, k, groups, 1.0, window, stride, pixels, inputs, outputs)


def _column(values: Sequence[Any]) -> Column:
    return numpy.array(values, dtype=float)
