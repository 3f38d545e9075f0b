"""FLOP and bytes of an operation's forward and backward.

FLOP are those of matrix products, convolutions, attention and recurrent layers (a multiplication and an addition are
two). Elementwise work has no FLOP of its own: its time is that of its bytes. Bytes are what the kernels that torch runs
read and write, each kernel on its own; views cost nothing, and look-ups read only the rows that they need.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from trimaran.errors import InputError
from trimaran.graph.trace.work import flops_of

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
    with forward, saved_tensors_hooks(saved.pack, lambda packed: packed):
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
        raise InputError(
            f"an operation makes a tensor of layout {layout} and shape {tuple(tensor.shape)}: only dense tensors are "
            "captured; make embeddings with sparse=False, so that their gradients are dense",
            code="capture.sparse-tensor",
            layout=layout,
            shape=tuple(tensor.shape),
        )
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


def state_of(target: Any) -> list[Tensor]:
    """The parameters and buffers of a module, and none of a function."""
    return [*target.parameters(), *target.buffers()] if isinstance(target, nn.Module) else []
