"""Which family of kernels an operator belongs to, and how many bytes it really moves.

An operator is known by its name alone, such as "aten.relu_". What no table names is elementwise: most operators are.

Convolutions and matrix products: shapes, and the two gradients apart.

A convolution's backward is one operator and two or three kernels: the gradient of its input, that of its weight, and
that of its bias, in the order in which torch runs them. The first layer has no gradient of its input. The backward of a
product is two products, which are told apart by where their results go.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from trimaran.graph.kernels.workload import Gradient, Work, WorkKind
from trimaran.graph.trace.types import BACKWARD_INPUT, BACKWARD_WEIGHT, FORWARD, GATES, RECURRENT, Shape, TraceOp
from trimaran.graph.types import Phase

ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
    "uint8": 1, "bool": 1, "complex64": 8, "complex128": 16,
}  # fmt: skip
"""Size of an element by dtype [bytes]."""

_NO_KERNEL = frozenset(
    [
        "empty",
        "empty_like",
        "empty_strided",
        "new_empty",
        "new_empty_strided",
        "resize_",
        "set_",
        "record_stream",
        "_local_scalar_dense",
        "lift_fresh",
    ]
)
"""Take memory, and start nothing."""

_KINDS = (
    (
        WorkKind.NORMALIZATION,
        "batch_norm layer_norm group_norm instance_norm rms_norm local_response_norm _batch_norm _weight_norm",
    ),
    (WorkKind.POOLING, "max_pool avg_pool"),
    (WorkKind.SOFTMAX, "softmax nll_loss cross_entropy"),
    (WorkKind.EMBEDDING, "embedding"),
    (WorkKind.COPY, "_to_copy slice_backward select_backward constant_pad reflection_pad im2col col2im"),
)
"""By parts of the name."""

_EXACT = {
    WorkKind.REDUCTION: "sum mean amax amin max min any all norm linalg_vector_norm var var_mean std std_mean prod "
    "logsumexp cumsum cumprod argmax argmin topk sort bincount nansum",
    WorkKind.COPY: "copy_ clone cat stack fill fill_ zero_ zeros zeros_like ones ones_like full full_like new_zeros "
    "new_ones new_full index index_put index_put_ _index_put_impl_ index_add index_add_ index_copy index_copy_ "
    "index_select index_select_backward gather scatter scatter_ scatter_add scatter_add_ repeat roll flip arange eye "
    "tril triu slice_scatter select_scatter as_strided_scatter _foreach_copy_ scalar_tensor contiguous "
    "diagonal_backward gather_backward repeat_interleave",
}
_BY_NAME = {name: kind for kind, names in _EXACT.items() for name in names.split()}

_TAKES_ROWS = frozenset(["embedding", "index_select", "index", "gather"])


def short_name(op: TraceOp) -> str:
    """The operator without its namespace and overload.

    Example:
        >>> short_name(TraceOp(moment=0, name="aten.relu_.default", phase="FP", module="", reads=(), writes=(),
        ...     flops=0.0, nbytes=0, dtype="float32", repeatable=True))
        'relu_'
    """
    return op.name.split(".")[1]


def has_kernel(op: TraceOp) -> bool:
    """Whether a device runs anything for an operation."""
    return short_name(op) not in _NO_KERNEL


def kind_of(name: str) -> WorkKind:
    """Family of an operator.

    Args:
        name: short name

    Example:
        >>> str(kind_of("native_batch_norm_backward")), str(kind_of("sum")), str(kind_of("gelu"))
        ('normalization', 'reduction', 'elementwise')
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    for kind, parts in _KINDS:
        if any(part in name for part in parts.split()):
            return kind
    return WorkKind.ELEMENTWISE


def count(shape: Shape | None) -> int:
    """Elements of a shape; 0 of none."""
    return 0 if shape is None else math.prod(shape)


def elements(op: TraceOp) -> int:
    """Elements that an operation works on: of its first argument or result, whichever is larger; of tables, the rows.

    What it takes from a table counts, not the table: the larger of the two would depend on the batch.
    """
    name = short_name(op)
    taken, made = count(op.operands[0][1] if op.operands else None), count(op.results[0] if op.results else None)
    if name in _TAKES_ROWS:
        return made
    return taken if name == "embedding_dense_backward" else max(taken, made)


def moved_bytes(op: TraceOp) -> int:
    """Bytes that an operation reads and writes [bytes].

    The trace counts every argument whole. Of a table only some rows are read; what scatters rows into a new tensor
    fills that first; what makes a tensor in the shape of another does not read that.
    """
    name, item = short_name(op), ITEM_BYTES.get(op.dtype, 4)
    made = sum(map(count, op.results)) * item
    if name in _TAKES_ROWS and op.operands:
        places = sum(count(shape) for _, shape in op.operands[1:])
        return 2 * made + 8 * places
    if name == "embedding_dense_backward" and len(op.operands) > 1:
        rows, places = count(op.operands[0][1]), count(op.operands[1][1])
        return made + 3 * rows * item + 8 * places  # fill; read the rows, and read and write where they go
    if name.endswith(("slice_backward", "select_backward")):
        return made + 2 * sum(count(shape) for _, shape in op.operands) * item
    if name in ("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full", "fill_", "zero_"):
        return made
    return op.nbytes


def work_of(
    op: TraceOp,
    kind: WorkKind,
    *,
    nbytes: int,
    dims: Shape,
    name: str = "",
    gradient: Gradient = Gradient.NONE,
    flops: float = 0.0,
    launches: int = 1,
) -> Work:
    """A work of an operation.

    Args:
        op: the operation
        kind: see `Work`
        nbytes: see `Work` [bytes]
        dims: see `Work`
        name: see `Work`; "": the operator without its overload
        gradient: see `Work`
        flops: see `Work` [FLOP]
        launches: see `Work`
    """
    return Work(
        kind=kind,
        phase=op.phase,
        gradient=gradient,
        module=op.module,
        name=name or op.name.rpartition(".")[0],
        dtype=op.dtype,
        flops=flops,
        nbytes=nbytes,
        dims=dims,
        launches=launches,
        origin=op.origin,
        moments=(op.moment,),
    )


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
    yield work_of(op, WorkKind.CONVOLUTION, flops=shape.flops, nbytes=op.nbytes, dims=shape.dims, launches=1 + biased)


def convolution_backward(op: TraceOp) -> Iterator[Work]:
    """The works of a convolution's backward: gradients of input, weight and bias, as far as they were asked for."""
    (_, grad), (_, source), (_, weight) = op.operands[:3]
    item = ITEM_BYTES.get(op.dtype, 4)
    shape = _as_forward(source, weight, grad)
    of_source, of_weight, of_bias = (*op.results, None, None, None)[:3]
    nbytes = (count(grad) + count(source) + count(weight)) * item
    for asked, gradient in ((of_source, Gradient.INPUT), (of_weight, Gradient.WEIGHT)):
        if asked is not None:
            yield work_of(
                op, WorkKind.CONVOLUTION, gradient=gradient, flops=shape.flops, nbytes=nbytes, dims=shape.dims
            )
    if of_bias is not None:
        yield work_of(
            op,
            WorkKind.REDUCTION,
            name="aten.convolution_backward",
            gradient=Gradient.WEIGHT,
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
    yield work_of(op, WorkKind.PRODUCT, gradient=gradient, flops=2.0 * math.prod(dims), nbytes=op.nbytes, dims=dims)


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


def _plane(size: Shape) -> tuple[int, int]:
    return (math.prod(size[:-1]), size[-1]) if size else (1, 1)


# ---------------------------------------------------------------------------------------------------------------------
# Attention and recurrent layers, each one work: a fused kernel, or a library's call


_MAKES = {FORWARD: Gradient.NONE, BACKWARD_INPUT: Gradient.INPUT, BACKWARD_WEIGHT: Gradient.WEIGHT}


def is_attention(op: TraceOp) -> bool:
    """Whether an operation is a fused attention, or its backward."""
    return "_scaled_dot_product" in op.name


def is_recurrent(op: TraceOp) -> bool:
    """Whether an operation is a recurrent layer, or a part of its backward."""
    return op.name.rpartition(".")[0] in RECURRENT


def attention(op: TraceOp) -> Iterator[Work]:
    """The work of a fused attention. Its backward makes the gradients of queries, keys and values at once."""
    backward = "backward" in op.name
    (_, query), (_, key) = op.operands[backward : backward + 2]
    batch, heads, queries, size = query
    yield work_of(
        op,
        WorkKind.ATTENTION,
        gradient=Gradient.INPUT if backward else Gradient.NONE,
        flops=op.flops,
        nbytes=op.nbytes,
        dims=(batch, heads, queries, key[2], size),
        launches=3 if backward else 1,  # the backward sums over rows first, and converts the queries' gradient last
    )


def recurrent(op: TraceOp) -> Iterator[Work]:
    """The work of one recurrent layer of one or both directions.

    Where the state is projected to fewer numbers than the cell has, `flops` counts the projection, `dims` does not.
    """
    name = op.name.rpartition(".")[0]
    cell, part = RECURRENT[name]
    matrices = [shape for _, shape in op.operands if len(shape) == 2]
    steps, batch, _ = op.operands[0][1]
    directions = op.operands[1][1][0]
    rows, width = matrices[0]
    yield work_of(
        op,
        WorkKind.RECURRENT,
        gradient=_MAKES[part],
        flops=2.0 * steps * batch * sum(map(math.prod, matrices)),
        nbytes=op.nbytes,
        dims=(steps, batch, width, rows // GATES[cell], GATES[cell], directions),
        launches=2 * directions if part == BACKWARD_WEIGHT else (1 + 2 * steps) * directions,
    )
