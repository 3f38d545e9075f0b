"""Which family of kernels an operator belongs to, and how many bytes it really moves.

An operator is known by its name alone, such as "aten.relu_". What no table names is elementwise: most operators are.
"""

import math

from trimaran.graph.trace.types import Shape, TraceOp
from trimaran.graph.workload import WorkKind

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
