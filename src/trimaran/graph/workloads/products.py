"""Convolutions and matrix products: shapes, and the two gradients apart.

A convolution's backward is one operator and two or three kernels: the gradient of its input, that of its weight, and
that of its bias, in the order in which torch runs them. The first layer has no gradient of its input. The backward of a
product is two products, which are told apart by where their results go.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trimaran.graph.trace.types import Shape, TraceOp
from trimaran.graph.types import Phase
from trimaran.graph.workload import Gradient, Work, WorkKind
from trimaran.graph.workloads.kinds import ITEM_BYTES, count, short_name

CONVOLUTIONS = frozenset(["convolution", "convolution_overrideable", "cudnn_convolution", "mkldnn_convolution"])
CONVOLUTION_BACKWARDS = frozenset(["convolution_backward", "convolution_backward_overrideable"])
_FACTORS = {"mm": 0, "bmm": 0, "addmm": 1, "addmm_": 1, "baddbmm": 1, "addbmm": 1, "_addmm_activation": 1, "mv": 0,
            "addmv": 1, "dot": 0, "vdot": 0}  # fmt: skip
"""Products, and the place of their first factor."""

PRODUCTS = frozenset(_FACTORS)


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A convolution as a forward, whatever it is a part of."""

    source: Shape
    weight: Shape
    result: Shape

    @property
    def groups(self) -> int:
        return max(1, self.source[1] // self.weight[1])

    @property
    def dims(self) -> tuple[int, ...]:
        """As `Work.dims` has them; in one dim the height is 1, in three it takes the depth in."""
        high_in, wide_in = _plane(self.source[2:])
        high, wide = _plane(self.weight[2:])
        high_out, wide_out = _plane(self.result[2:])
        return (
            self.source[0], self.source[1], high_in, wide_in, self.result[1], high, wide, high_out, wide_out,
            self.groups,
        )  # fmt: skip

    @property
    def flops(self) -> float:
        """Of each of the three kernels [FLOP]."""
        return 2.0 * math.prod(self.result) * math.prod(self.weight[1:])


def convolution(op: TraceOp) -> Iterator[Work]:
    """The works of a convolution's forward."""
    shape = _as_forward(op.operands[0][1], op.operands[1][1], op.results[0] or ())
    biased = len(op.operands) > 2
    yield _work(op, shape, Gradient.NONE, op.nbytes, launches=1 + biased)


def convolution_backward(op: TraceOp) -> Iterator[Work]:
    """The works of a convolution's backward: gradients of input, weight and bias, as far as they were asked for."""
    (_, grad), (_, source), (_, weight) = op.operands[:3]
    item = ITEM_BYTES.get(op.dtype, 4)
    shape = _as_forward(source, weight, grad)
    of_source, of_weight, of_bias = (*op.results, None, None, None)[:3]
    if of_source is not None:
        nbytes = (count(grad) + count(weight) + count(source)) * item
        yield _work(op, shape, Gradient.INPUT, nbytes)
    if of_weight is not None:
        nbytes = (count(grad) + count(source) + count(weight)) * item
        yield _work(op, shape, Gradient.WEIGHT, nbytes)
    if of_bias is not None:
        yield Work(
            kind=WorkKind.REDUCTION,
            phase=op.phase,
            gradient=Gradient.WEIGHT,
            module=op.module,
            name="aten.convolution_backward",
            dtype=op.dtype,
            flops=0.0,
            nbytes=(count(grad) + count(of_bias)) * item,
            dims=(count(grad),),
        )


def product(op: TraceOp, *, makes_weight_gradient: bool) -> Iterator[Work]:
    """The work of a matrix product.

    Args:
        op: the operation
        makes_weight_gradient: whether what it makes is, or is added to, the gradient of a parameter
    """
    name = short_name(op)
    first = _FACTORS[name]
    dims = _product_dims(op.operands[first][1], op.operands[first + 1][1])
    gradient = Gradient.NONE
    if op.phase is Phase.BACKWARD:
        gradient = Gradient.WEIGHT if makes_weight_gradient else Gradient.INPUT
    yield Work(
        kind=WorkKind.PRODUCT,
        phase=op.phase,
        gradient=gradient,
        module=op.module,
        name=f"aten.{name}",
        dtype=op.dtype,
        flops=2.0 * math.prod(dims),
        nbytes=op.nbytes,
        dims=dims,
    )


def _product_dims(a: Shape, b: Shape) -> tuple[int, int, int, int]:
    """`(batch, m, n, k)` of the product of two tensors of one to three dims.

    Example:
        >>> _product_dims((8, 16, 64), (8, 64, 32)), _product_dims((5, 7), (7,))
        ((8, 16, 32, 64), (1, 5, 1, 7))
    """
    batch = a[0] if len(a) == 3 else 1
    m = a[-2] if len(a) > 1 else 1
    n = b[-1] if len(b) > 1 else 1
    return batch, m, n, a[-1]


def _as_forward(source: Shape, weight: Shape, result: Shape) -> _Convolution:
    """A transposed convolution is the gradient of a forward that leads from its result to its source."""
    normal = weight[0] == result[1] and source[1] % weight[1] == 0
    if normal and weight[0] == source[1] and math.prod(result[2:]) > math.prod(source[2:]):
        normal = False  # it enlarges; by channels alone both would do
    return _Convolution(source, weight, result) if normal else _Convolution(result, weight, source)


def _work(op: TraceOp, shape: _Convolution, gradient: Gradient, nbytes: int, launches: int = 1) -> Work:
    return Work(
        kind=WorkKind.CONVOLUTION,
        phase=op.phase,
        gradient=gradient,
        module=op.module,
        name=f"aten.{short_name(op)}",
        dtype=op.dtype,
        flops=shape.flops,
        nbytes=nbytes,
        dims=shape.dims,
        launches=launches,
    )


def _plane(size: Shape) -> tuple[int, int]:
    return (math.prod(size[:-1]), size[-1]) if size else (1, 1)
