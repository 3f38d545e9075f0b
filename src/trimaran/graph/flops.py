"""FLOP and bytes of an operation's forward and backward.

FLOP are those of matrix products, convolutions, attention and recurrent layers (a multiplication and an addition are
two). Elementwise work has no FLOP: its time is that of its bytes. Bytes are what the kernels that torch runs
read and write, each kernel on its own; views cost nothing, and look-ups read only the rows that they need.

How much work an operation is: floating-point operations and bytes.

Counted are matrix products, convolutions, attention and recurrent cells, twice the multiplications; everything else has
0, as its time is that of its bytes. The formulas are torch's own where it has one for the operation.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._C import _autograd
from torch._ops import OpOverload
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from trimaran.base.errors import InputError
from trimaran.graph.trace.storages import element_bytes
from trimaran.graph.trace.types import RECURRENT

Formula = Callable[..., float]


def flops_of(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any], out: Any) -> float:
    """Floating-point operations of a call [FLOP].

    Source:
        torch.utils.flop_counter for the operations that it knows.
    """
    packet = op._overloadpacket
    formula = OWN.get(str(op._schema.name)) or flop_registry.get(packet)
    if formula is None:
        return 0.0
    return float(formula(*args, **kwargs, out_val=out))


def bytes_of(inputs: Iterable[torch.Tensor], outputs: Iterable[torch.Tensor]) -> int:
    """Bytes that a call reads and writes [bytes]."""
    return sum(map(element_bytes, inputs)) + sum(map(element_bytes, outputs))


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> float:
    return float(sdpa_flop_count(query.shape, *_with_heads(query, key, value)))


def _attention_backward(
    grad: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> float:
    return float(sdpa_backward_flop_count(grad.shape, query.shape, *_with_heads(query, key, value)))


def _with_heads(query: torch.Tensor, *tensors: torch.Tensor) -> list[tuple[int, ...]]:
    """Shapes [batch, heads, length, size] with as many heads as the query has: torch 2.11's formulas want that."""
    heads = query.shape[1]
    return [(tensor.shape[0], heads, *tensor.shape[2:]) for tensor in tensors]


def _recurrent_layer(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *_: Any, **__: Any) -> float:
    """A layer over time: each step multiplies its input and its state by a matrix. `x` is [time, batch, size]."""
    steps = math.prod(x.shape[:-1])
    return 2.0 * steps * (w1.numel() + w2.numel())


def _recurrent_layer_backward(x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, *_: Any, **__: Any) -> float:
    return 2.0 * _recurrent_layer(x, w1, w2)


def _recurrent_stack(x: torch.Tensor, weights: list[torch.Tensor], *_: Any, **__: Any) -> float:
    elements: int = sum(weight.numel() for weight in weights if weight.dim() == 2)
    return 2.0 * math.prod(x.shape[:-1]) * elements


def _recurrent_stack_backward(x: torch.Tensor, weights: list[torch.Tensor], *_: Any, **__: Any) -> float:
    return 2.0 * _recurrent_stack(x, weights)


def _recurrent_call(x: torch.Tensor, *args: Any, **_: Any) -> float:
    """Any part of a layer: each multiplies every row by every matrix."""
    weights = next(arg for arg in args if isinstance(arg, list | tuple))
    elements: int = sum(weight.numel() for weight in weights if weight.dim() == 2)
    return 2.0 * math.prod(x.shape[:-1]) * elements


_KERNELS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")

OWN: dict[str, Formula] = {
    **{name.replace(".", "::"): _recurrent_call for name in RECURRENT},
    **{f"aten::_scaled_dot_product_{kernel}": _attention for kernel in _KERNELS},
    **{f"aten::_scaled_dot_product_{kernel}_backward": _attention_backward for kernel in _KERNELS},
    "aten::mkldnn_rnn_layer": _recurrent_layer,
    "aten::mkldnn_rnn_layer_backward": _recurrent_layer_backward,
    "aten::_cudnn_rnn": _recurrent_stack,
    "aten::_cudnn_rnn_backward": _recurrent_stack_backward,
}


aten = torch.ops.aten


@dataclass(frozen=True, slots=True, kw_only=True)
class Tally:
    """Work of an operation.

    Attributes:
        flops: of the forward [FLOP]
        backward_flops: of the backward [FLOP]
        nbytes: read and written by the forward [bytes]
        backward_nbytes: read and written by the backward [bytes]
        saved_nbytes: kept from the forward for the backward, each storage once, the state left out [bytes]
        kernels: names of the kernels of the forward, in order
    """

    flops: int
    backward_flops: int
    nbytes: int
    backward_nbytes: int
    saved_nbytes: int
    kernels: tuple[str, ...]

    def beyond(self, other: "Tally") -> "Tally":
        """What this has more than another, with whose kernels it begins.

        Args:
            other: of the first part of the operation
        """
        more = {
            name: max(0, getattr(self, name) - getattr(other, name))
            for name in ("flops", "backward_flops", "nbytes", "backward_nbytes", "saved_nbytes")
        }
        return Tally(**more, kernels=self.kernels[len(other.kernels) :])


def tally_operation(call: Callable[..., Any], values: Any, state: Sequence[Tensor] = ()) -> tuple[Tally, Any]:
    """Run an operation and its backward by itself, and count.

    Args:
        call: the operation, given arguments like `values`
        values: nested arguments; tensors among them that require a gradient get one
        state: the parameters and buffers that it uses; parameters that require a gradient get one

    Returns:
        The counts, and what it returned.
    """
    sources = [tensor for tensor in pytree.tree_leaves(values) if isinstance(tensor, Tensor) and tensor.requires_grad]
    starts = [tensor.detach().requires_grad_() for tensor in sources]
    # An operation may write its arguments in place, which torch refuses on a leaf of autograd: so they are copies.
    copies = {id(source): start.clone() for source, start in zip(sources, starts, strict=True)}
    arguments = pytree.tree_map(lambda value: copies.get(id(value), value), values)
    forward, backward = _Counter(), _Counter()
    saved = _Saved(state)
    with forward, hooks_where_allowed(saved.pack):
        result = call(*arguments)
    ends = [
        tensor for tensor in pytree.tree_leaves(result) if isinstance(tensor, Tensor) and tensor.grad_fn is not None
    ]
    wanted = [*starts, *(tensor for tensor in state if tensor.requires_grad)]
    if ends and wanted:
        gradients = [torch.empty_like(tensor) for tensor in ends]
        with backward:
            _propagate(ends, wanted, gradients)
    return Tally(
        flops=forward.flops,
        backward_flops=backward.flops,
        nbytes=forward.nbytes,
        backward_nbytes=backward.nbytes,
        saved_nbytes=saved.nbytes,
        kernels=tuple(forward.kernels),
    ), result


def _propagate(ends: Sequence[Tensor], wanted: Sequence[Tensor], gradients: Sequence[Tensor]) -> None:
    """A backward that leaves no gradients behind."""
    if not _is_reentrant(ends):
        torch.autograd.grad(ends, wanted, gradients, allow_unused=True)
        return
    before = [(tensor, tensor.grad) for tensor in wanted if tensor.is_leaf]
    torch.autograd.backward(list(ends), list(gradients))
    for tensor, gradient in before:
        tensor.grad = gradient


def _is_reentrant(ends: Sequence[Tensor]) -> bool:
    """Whether activations are checkpointed so that no other backward is possible than one into `.grad`."""
    seen: set[Any] = set()
    pending: list[Any] = [tensor.grad_fn for tensor in ends]
    while pending:
        node = pending.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        seen.add(node)
        pending += [following for following, _ in node.next_functions]
    return False


@contextmanager
def hooks_where_allowed(pack: Callable[[Tensor], Tensor]) -> Iterator[None]:
    """Be told of the tensors that autograd saves, but under transforms of `torch.func`, which run under no such hooks.

    Args:
        pack: is told; it returns the tensor
    """
    disable, enable = _autograd._saved_tensors_hooks_disable, _autograd._saved_tensors_hooks_enable
    hooks: tuple[Any, Any] = (pack, lambda packed: packed)
    pushed = parked = False

    def push() -> None:
        nonlocal pushed
        _autograd._push_saved_tensors_default_hooks(*hooks)
        pushed = True

    def park(message: str, fail_if_non_empty: bool = True) -> None:
        nonlocal pushed, parked
        if pushed and _autograd._top_saved_tensors_default_hooks(False) == hooks:
            _autograd._pop_saved_tensors_default_hooks()
            pushed, parked = False, True
        disable(message, fail_if_non_empty)

    def go_on() -> None:
        nonlocal parked
        enable()
        if parked:
            parked = False
            push()

    push()
    _autograd._saved_tensors_hooks_disable, _autograd._saved_tensors_hooks_enable = park, go_on
    try:
        yield
    finally:
        _autograd._saved_tensors_hooks_disable, _autograd._saved_tensors_hooks_enable = disable, enable
        if pushed:
            _autograd._pop_saved_tensors_default_hooks()


class _Saved:
    def __init__(self, state: Sequence[Tensor]) -> None:
        self.nbytes = 0
        self._known = {tensor.untyped_storage()._cdata for tensor in state}
        self._kept: list[Tensor] = []  # so that no two storages have one address

    def pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self._known:
            self._known.add(storage._cdata)
            self._kept.append(tensor.detach())
            self.nbytes += storage.nbytes()
        return tensor


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.flops = 0
        self.nbytes = 0
        self.kernels: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.namespace == "prim" or func in _FREE:
            return result
        self.kernels.append(str(func))
        self.flops += int(flops_of(func, args, kwargs or {}, result))
        self.nbytes += _nbytes(func, (args, kwargs or {}), result)
        return result


# Reserving memory moves nothing.
_FREE = {aten.empty.memory_format, aten.empty_like.default, aten.empty_strided.default, aten.new_empty.default}
_FREE |= {aten.detach.default, aten._unsafe_view.default}

# Kernels that read a few rows of a table rather than all of it: the position of the table among their arguments.
_LOOKUPS = {aten.embedding.default: 0, aten.gather.default: 0, aten.index_select.default: 0, aten.index.Tensor: 0}


def _nbytes(func: Any, arguments: Any, result: Any) -> int:
    reads = [tensor for tensor in pytree.tree_leaves(arguments) if isinstance(tensor, Tensor)]
    writes = [tensor for tensor in pytree.tree_leaves(result) if isinstance(tensor, Tensor)]
    if all(result.alias_info is not None and not result.alias_info.is_write for result in func._schema.returns):
        return 0  # a view
    written = sum(_size(tensor) for tensor in writes)
    if func in _LOOKUPS:
        table = arguments[0][_LOOKUPS[func]]
        return 2 * written + sum(_size(tensor) for tensor in reads if tensor is not table)
    return written + sum(_size(tensor) for tensor in reads)


def _size(tensor: Tensor) -> int:
    """Bytes of a tensor's elements; an expanded one has fewer than its shape says."""
    if tensor.layout is not torch.strided:
        layout = str(tensor.layout).removeprefix("torch.")
        instead = "make embeddings with sparse=False, so that their gradients are dense"
        instead = "pad sequences to one length in the place of nested tensors" if layout == "jagged" else instead
        raise InputError(
            f"an operation makes a tensor of layout {layout} and shape {tuple(tensor.shape)}: only dense tensors are "
            f"captured; {instead}",
            code="capture.sparse-tensor",
            layout=layout,
            shape=tuple(tensor.shape),
        )
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def state_of(target: Any) -> list[Tensor]:
    """The parameters and buffers of a module, and none of a function."""
    return [*target.parameters(), *target.buffers()] if isinstance(target, nn.Module) else []
