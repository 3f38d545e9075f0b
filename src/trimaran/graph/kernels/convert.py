"""From the trace of a step on meta tensors to its workload. Nothing here needs torch.

Operations become works in order; those that only take memory are left out. Products and convolutions know which
gradient they make; the update becomes one work a parameter. Of a script that ran as it is, each operation is a work by
itself (`works_alone`), those on lists of tensors too.

Which family of kernels an operator belongs to, and how many bytes it really moves.

An operator is known by its name alone, such as "aten.relu_". What no table names is elementwise: most operators are.

Convolutions and matrix products: shapes, and the two gradients apart.

A convolution's backward is one operator and two or three kernels: the gradient of its input, that of its weight, and
that of its bias, in the order in which torch runs them. The first layer has no gradient of its input. The backward of a
product is two products, which are told apart by where their results go.

The optimizer: one work a parameter, with as many launches as it has operations.

An optimizer that runs parameter by parameter starts every one of these kernels; one that takes lists of parameters
(`foreach`) moves the same bytes with few launches; a fused one moves fewer. Which a framework does is for the cost
model to say: `launches` and `nbytes` are those of the first.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from trimaran.base.precision import Precision
from trimaran.graph.kernels.workload import Gradient, WeightGradient, Work, WorkKind, Workload
from trimaran.graph.trace.types import (
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    GATES,
    RECURRENT,
    Role,
    Shape,
    StepTrace,
    TraceOp,
)
from trimaran.graph.types import OUTSIDE, Phase

# ---------------------------------------------------------------------------------------------------------------------
# Operators: their families, shapes and bytes


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
        "lift_fresh_copy",
        "resize_as_",
        "_resize_output_",
        "is_same_size",
        "_unsafe_view",
        "_reshape_alias",
        "detach",
        "detach_",
        "alias",
        "view",
    ]
)
"""Take memory, or look at what is there, and start nothing."""

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
    "diagonal_backward gather_backward repeat_interleave split_with_sizes_copy _chunk_cat chunk_cat "
    "all_gather_copy_in",
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
    if name == "all_gather_copy_in" and op.results:
        return 2 * count(op.results[0]) * item  # its second result is the whole buffer, of which it writes this part
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
            "addmv": 1, "dot": 0, "vdot": 0, "_scaled_mm": 0, "_scaled_mm_v2": 0, "_grouped_mm": 0,
            "_scaled_grouped_mm": 0}  # fmt: skip
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
        >>> _product_dims((8, 16, 64), (8, 64, 32)), _product_dims((5, 7), (7,)), _product_dims((80, 16), (8, 16, 32))
        ((8, 16, 32, 64), (1, 5, 1, 7), (8, 10, 32, 16))
    """
    if len(a) == 2 and len(b) == 3:  # rows are shared out over matrices, as over experts
        return b[0], max(1, round(a[0] / b[0])), b[-1], a[-1]
    if len(a) == 2 and len(b) == 2 and a[-1] != b[0]:
        return 1, a[0], b[-1], min(a[-1], b[0])
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
    return "_scaled_dot_product" in op.name or _keeps_heads_inside(op)


def _keeps_heads_inside(op: TraceOp) -> bool:
    """Whether tensors of an attention are [batch, length, heads, size], as the kernels below torch's own take them."""
    name = short_name(op)
    return name.startswith(_PLAIN_ATTENTION) and len(op.operands) > 2


_PLAIN_ATTENTION = ("_flash_attention_", "_efficient_attention_", "_flash_attn_", "flash_attn_")


def is_recurrent(op: TraceOp) -> bool:
    """Whether an operation is a recurrent layer, or a part of its backward."""
    return op.name.rpartition(".")[0] in RECURRENT


def attention(op: TraceOp) -> Iterator[Work]:
    """The work of a fused attention. Its backward makes the gradients of queries, keys and values at once."""
    backward = "backward" in op.name
    (_, query), (_, key) = op.operands[backward : backward + 2]
    if _keeps_heads_inside(op):
        query, key = (_with_heads_first(shape) for shape in (query, key))
    batch, heads, queries, size = query
    yield work_of(
        op,
        WorkKind.ATTENTION,
        gradient=Gradient.INPUT if backward else Gradient.NONE,
        flops=op.flops or (5 if backward else 2) * 2.0 * batch * heads * queries * key[2] * size,
        nbytes=op.nbytes,
        dims=(batch, heads, queries, key[2], size),
        launches=3 if backward else 1,  # the backward sums over rows first, and converts the queries' gradient last
    )


def _with_heads_first(shape: Shape) -> Shape:
    """[batch, heads, length, size] of a tensor that has the length in front of its heads, with or without a batch."""
    length, heads, size = shape[-3:]
    return (math.prod(shape[:-3]), heads, length, size)


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


# ---------------------------------------------------------------------------------------------------------------------
# The optimizer: one work a parameter


_TENSORS_OF_A_LAUNCH = 110


class TracedUpdates:
    """The update of a traced step, parameter by parameter.

    Args:
        trace: the step

    Attributes:
        separate: whether no operation touches several parameters, as clipping does and optimizers that take lists
    """

    def __init__(self, trace: StepTrace) -> None:
        self._trace = trace
        self._groups = _Groups(trace)
        kept = [op for op in trace.ops if op.phase is Phase.UPDATE and has_kernel(op) and _on_device(trace, op)]
        for op in kept:
            self._groups.join(op)
        self._own: dict[int, Work] = {}
        self._loose: list[Work] = []
        for op in kept:
            owner = self._groups.owner(op)
            if owner is None:
                self._loose.append(_work(op, trace.optimizer, "", _changed_elements(op)))
            else:
                module = trace.names.get(owner, "").rpartition(".")[0]
                elements = self._groups.elements.get(owner, 0)
                self._own[owner] = _work(op, trace.optimizer, module, elements, self._own.get(owner))
        self.separate = not self._loose

    def works(self, like: Mapping[str, str]) -> list[Work]:
        """One work a parameter, in the order of their first operations; then those of several parameters.

        Args:
            like: by name of each parameter, the one whose update was traced for it; empty: all were
        """
        if not like:
            return [*self._own.values(), *self._loose]
        numbers = {self._trace.names.get(number, ""): number for number in self._trace.gradients}
        each = [
            replace(self._own[numbers[traced]], module=name.rpartition(".")[0])
            for name, traced in like.items()
            if name in numbers and numbers.get(traced) in self._own
        ]
        return [*each, *self._loose]

    def untraced_bytes(self, like: Mapping[str, str]) -> int:
        """State of the parameters whose update was not traced [bytes].

        Args:
            like: as for `works`
        """
        named = {name for number, name in self._trace.names.items() if number in self._trace.gradients}
        state = self._groups.state_bytes()
        return sum(state.get(traced, 0) for name, traced in like.items() if name != traced and name in named)


def unscaling(gradients: Sequence[WeightGradient]) -> Work:
    """Losses are scaled in fp16: all gradients are divided by the scale and looked through, some tensors a launch.

    Source:
        torch.amp.GradScaler; pytorch aten/src/ATen/native/cuda/MultiTensorApply.cuh: 110 tensors of one list a launch.
    """
    return Work(
        kind=WorkKind.OPTIMIZER,
        phase=Phase.UPDATE,
        module="",
        name="GradScaler",
        dtype="float32",
        flops=0.0,
        nbytes=2 * sum(gradient.nbytes for gradient in gradients),
        dims=(sum(gradient.elements for gradient in gradients),),
        launches=-(-len(gradients) // _TENSORS_OF_A_LAUNCH),
    )


# Operations that take lists of tensors, as optimizers of scripts do: a few launches for all of them.

_LISTS = {"addcmul": 3, "addcdiv": 3, "lerp": 2, "copy": 2, "ternary": 3}
"""Lists that an operation on lists takes, whatever its overload; others take two if that is named "List"."""

_FUSED_LISTS = {"sgd": (3, 2), "adagrad": (3, 2), "adam": (4, 3), "adamw": (4, 3)}
"""Lists that a fused optimizer reads, and those that it writes: parameters, gradients and state."""

_TENSORS_BY_LISTS = (110, 64, 48, 36, 30)
_BLOCKS, _CHUNK = 320, 65536
"""Tensors of a launch by the number of lists; blocks of it, and elements of each.

Source:
    pytorch, aten/src/ATen/native/cuda/MultiTensorApply.cuh."""


def takes_lists(op: TraceOp) -> bool:
    """Whether an operation does the same to each tensor of a list."""
    return short_name(op).startswith(("_foreach_", "_fused_adam", "_fused_sgd", "_fused_adagrad"))


def of_lists(op: TraceOp) -> Iterator[Work]:
    """The work of an operation on lists of tensors."""
    name, item = short_name(op), ITEM_BYTES.get(op.dtype, 4)
    sizes = [count(shape) for _, shape in op.operands]
    read = op.nbytes
    if name.startswith("_fused_"):
        lists, written = _FUSED_LISTS.get(name.split("_")[2], (4, 3))
        own = [size for size in sizes if size > 1] or sizes
        elements, tensors, written_bytes = sum(own) // lists, len(own) // lists, round(read * written / lists)
    else:
        plain = name.removeprefix("_foreach_").rstrip("_")
        lists = _LISTS.get(plain, 2 if op.name.endswith(".List") else 1)
        tensors = len(sizes) // lists
        elements = sum(sizes[:tensors])
        # What gives no new list changes its first one.
        written_bytes = 0 if op.results or plain == "norm" else elements * item
        read -= elements * item if plain in ("copy", "zero") else 0
    launches = max(
        -(-tensors // _TENSORS_BY_LISTS[min(lists, len(_TENSORS_BY_LISTS)) - 1]), -(-elements // (_BLOCKS * _CHUNK)), 1
    )
    yield work_of(op, WorkKind.OPTIMIZER, nbytes=read + written_bytes, dims=(elements,), launches=launches)


def _work(op: TraceOp, optimizer: str, module: str, elements: int, before: Work | None = None) -> Work:
    return Work(
        kind=WorkKind.OPTIMIZER,
        phase=Phase.UPDATE,
        module=module,
        name=optimizer,
        dtype=op.dtype if before is None else before.dtype,
        flops=0.0,
        nbytes=op.nbytes + (before.nbytes if before else 0),
        dims=(elements,),
        launches=1 + (before.launches if before else 0),
        moments=(*(before.moments if before else ()), op.moment),
    )


def _changed_elements(op: TraceOp) -> int:
    """Elements that an operation on several tensors makes or changes."""
    written = {number for number, _ in op.writes}
    changed = sum(count(shape) for number, shape in op.operands if number in written)
    return changed or sum(map(count, op.results))


def _on_device(trace: StepTrace, op: TraceOp) -> bool:
    return any(trace.storages[number].nbytes for number, _ in (*op.operands, *op.writes))


class _Groups:
    """Storages that belong to one parameter: its own, its gradient, its state and what is made from these."""

    def __init__(self, trace: StepTrace) -> None:
        self._trace = trace
        self._parent: dict[int, int] = {}
        self._owner = dict.fromkeys(trace.gradients, 0)
        self.elements: dict[int, int] = {}
        for parameter, gradient in trace.gradients.items():
            self._parent[self._root(gradient)] = self._root(parameter)

    def join(self, op: TraceOp) -> None:
        """The storages of an operation belong together, unless it takes several parameters' at once."""
        roots = {self._root(number) for number in self._touched(op)}
        owned = [root for root in roots if root in self._owner]
        if len(owned) <= 1:
            top = owned[0] if owned else min(roots, default=-1)
            for root in roots:
                self._parent[root] = top
        for number, shape in op.operands:
            if number in self._owner:
                self.elements[number] = count(shape)

    def owner(self, op: TraceOp) -> int | None:
        """The parameter of an operation; None: several, or none."""
        owned = {root for number in self._touched(op) if (root := self._root(number)) in self._owner}
        return owned.pop() if len(owned) == 1 else None

    def state_bytes(self) -> dict[str, int]:
        """State of the optimizer by name of the parameter that it belongs to [bytes]."""
        found: dict[str, int] = {}
        for storage in self._trace.storages:
            root = self._root(storage.number)
            if storage.role is Role.OPTIMIZER and root in self._owner:
                name = self._trace.names.get(root, "")
                found[name] = found.get(name, 0) + storage.nbytes
        return found

    def _touched(self, op: TraceOp) -> Iterable[int]:
        numbers = {number for number, _ in (*op.reads, *op.writes)}
        return [n for n in numbers if self._trace.storages[n].role is not Role.INPUT]

    def _root(self, number: int) -> int:
        while (above := self._parent.get(number, number)) != number:
            number = above
        return number


# ---------------------------------------------------------------------------------------------------------------------
# Which operations make which parameter's gradient, and which is the last of them


_CARRIES = frozenset(["_to_copy", "add", "add_", "clone", "copy_"])
"""Bring what others made into a gradient, and change nothing but its precision or its place, or add to it."""


def makers(trace: StepTrace) -> frozenset[int]:
    """Storages of the backward that are gradients of parameters, or are added or converted to one."""
    wanted = set(trace.gradients.values())
    for op in reversed(trace.ops):
        if op.phase is Phase.BACKWARD and short_name(op) in _CARRIES:
            written = {number for number, _ in op.writes}
            if written & wanted:
                wanted |= {
                    number for number, _ in op.reads if trace.storages[number].role in (Role.ACTIVATION, Role.GRADIENT)
                }
    return frozenset(wanted)


def weight_gradients(trace: StepTrace, work_of: Mapping[int, int]) -> tuple[WeightGradient, ...]:
    """The gradients in the order in which they are complete: when the node of autograd that makes them has run.

    The node of a linear layer makes the gradient of its input after that of its weight, and returns both.

    Args:
        trace: the step
        work_of: by moment of an operation, the index of its last work
    """
    owners = {gradient: parameter for parameter, gradient in trace.gradients.items()}
    last: dict[int, int] = {}
    shapes: dict[int, tuple[str, int]] = {}
    tables: dict[int, bool] = {}
    made: set[int] = set()
    node, origin, incoming = set[int](), OUTSIDE, set[int]()
    for op in trace.ops:
        if op.phase is not Phase.BACKWARD:
            continue
        taken = {number for number, _ in op.reads} & made
        if op.origin != origin or op.origin == OUTSIDE or not taken & incoming:
            node, origin, incoming = set(), op.origin, taken
        made.update(number for number, _ in op.writes)
        node.update(number for number, _ in op.writes if number in owners)
        for number in node if op.moment in work_of else ():
            last[number] = work_of[op.moment]
        for number, _ in op.writes:
            if number in owners and op.moment in work_of:
                shapes.setdefault(number, (op.dtype, trace.storages[number].nbytes))
                tables[number] = tables.get(number, True) and short_name(op) == "embedding_dense_backward"
    gradients = []
    # Of one layer the last parameter comes first, as in buckets of a graph.
    for number, work in sorted(last.items(), key=lambda one: (one[1], -owners[one[0]])):
        name = trace.names.get(owners[number], "")
        dtype, nbytes = shapes[number]
        gradients.append(
            WeightGradient(
                name=name,
                module=name.rpartition(".")[0],
                elements=nbytes // ITEM_BYTES.get(dtype, 4),
                nbytes=nbytes,
                work=work,
                sparse=tables[number],
            )
        )
    return tuple(gradients)


def workload_of(
    trace: StepTrace,
    *,
    name: str,
    batch: int,
    precision: Precision,
    input_bytes: int,
    like: Mapping[str, str] | None = None,
) -> Workload:
    """The workload of a traced step.

    Args:
        trace: the step, with the shapes of its operations
        name: of the network
        batch: samples of the step
        precision: see `Workload`
        input_bytes: of a batch [bytes]
        like: by name of each parameter, the one whose update was traced for it; None: all were
    """
    wanted = makers(trace)
    works: list[Work] = []
    work_of: dict[int, int] = {}
    updates = TracedUpdates(trace)
    update = updates.works(like or {})
    for op in trace.ops:
        if op.phase is not Phase.UPDATE and has_kernel(op):
            works.extend(_works(op, makes_weight_gradient=any(number in wanted for number, _ in op.writes)))
            work_of[op.moment] = len(works) - 1
    gradients = weight_gradients(trace, work_of)
    if update and precision == "fp16":
        works.append(replace(unscaling(gradients), moments=update[0].moments))
    works.extend(update)
    return Workload(
        name=name,
        batch=batch,
        precision=precision,
        optimizer=trace.optimizer,
        works=tuple(works),
        gradients=gradients,
        parameter_bytes=_bytes(trace, Role.PARAMETER),
        buffer_bytes=_bytes(trace, Role.BUFFER),
        optimizer_bytes=_bytes(trace, Role.OPTIMIZER) + updates.untraced_bytes(like or {}),
        input_bytes=input_bytes,
    )


def works_alone(op: TraceOp) -> tuple[Work, ...]:
    """The works of an operation by itself, as a device is asked for it by a script: nothing is known of its neighbours.

    Args:
        op: any operation, those on lists of tensors and of updates included

    Example:
        >>> op = TraceOp(moment=0, name="aten._foreach_add_.List", phase=Phase.UPDATE, module="", reads=(), writes=(),
        ...     flops=0.0, nbytes=64, dtype="float32", repeatable=False, operands=((0, (8,)), (1, (8,))))
        >>> [(str(work.kind), work.nbytes, work.launches) for work in works_alone(op)]  # both read, the first written
        [('optimizer', 96, 1)]
    """
    if not has_kernel(op):
        return ()
    if takes_lists(op):
        return tuple(of_lists(op))
    return tuple(_works(op, makes_weight_gradient=False))


def _works(op: TraceOp, *, makes_weight_gradient: bool) -> Iterator[Work]:
    name = short_name(op)
    if name in CONVOLUTIONS:
        return convolution(op)
    if name in CONVOLUTION_BACKWARDS:
        return convolution_backward(op)
    if name in PRODUCTS:
        return product(op, makes_weight_gradient=makes_weight_gradient)
    if is_attention(op):
        return attention(op)
    if is_recurrent(op):
        return recurrent(op)
    return _other(op, makes_weight_gradient=makes_weight_gradient)


def _other(op: TraceOp, *, makes_weight_gradient: bool) -> Iterator[Work]:
    name = short_name(op)
    kind = kind_of(name)
    alone = op.phase is Phase.BACKWARD and makes_weight_gradient and kind is not WorkKind.NORMALIZATION
    yield work_of(
        op,
        kind,
        gradient=Gradient.WEIGHT if alone else Gradient.NONE,
        flops=op.flops,
        nbytes=moved_bytes(op),
        dims=(elements(op),),
        launches=2 if name in ("native_layer_norm_backward", "embedding_dense_backward") else 1,
    )


def _bytes(trace: StepTrace, role: Role) -> int:
    return sum(storage.nbytes for storage in trace.storages if storage.role is role)
