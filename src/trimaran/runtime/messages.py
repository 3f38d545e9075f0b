"""What crosses a cut, as one flat buffer of bytes.

One message a pair of segments and microbatch, because a message costs more to start than a copy in memory takes. A
single tensor, the usual case, is sent where it lies; several are packed one behind the other. The receiver knows the
shapes from the graph and the size of the microbatch, so that nothing but elements travels.
"""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from trimaran.errors import ExecutionError, InputError
from trimaran.graph.types import TensorSpec

# Tensors start at multiples of this, so that vector instructions can read them where they lie [bytes].
_ALIGNMENT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    start: int
    nbytes: int


class MessageLayout:
    """Where each tensor of a message lies, for one size of microbatch.

    Args:
        specs: the tensors, in order
        batch: samples of the microbatch
    """

    def __init__(self, specs: Sequence[TensorSpec], batch: int) -> None:
        fields = []
        end = 0
        for spec in specs:
            shape = tuple(size_at(size, batch) for size in spec.shape)
            dtype = getattr(torch, spec.dtype)
            nbytes = prod(shape) * dtype.itemsize
            start = -(-end // _ALIGNMENT) * _ALIGNMENT
            end = start + nbytes
            fields.append(_Field(name=spec.name, shape=shape, dtype=dtype, start=start, nbytes=nbytes))
        self._fields = tuple(fields)
        self.nbytes = end

    def pack(
        self, tensors: Mapping[str, torch.Tensor | None], device: str, into: torch.Tensor | None = None
    ) -> torch.Tensor:
        """A flat buffer of the tensors.

        Args:
            tensors: by name; None, as of a gradient that is missing, is sent as zeros
            device: where the buffer lies
            into: the buffer; None: a new one, or a tensor as it lies

        Returns:
            Bytes; of a single tensor a view where it can be one.

        Raises:
            ExecutionError: a tensor has another shape than the graph says
        """
        if len(self._fields) == 1 and into is None:
            field = self._fields[0]
            return _flat(self._checked(field, tensors[field.name], device))
        buffer = torch.empty(self.nbytes, dtype=torch.uint8, device=device) if into is None else into
        for field in self._fields:
            part = buffer[field.start : field.start + field.nbytes]
            part.copy_(_flat(self._checked(field, tensors[field.name], device)))
        return buffer

    def unpack(self, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors of a received buffer, as views of it.

        Args:
            buffer: bytes
        """
        return {
            field.name: buffer[field.start : field.start + field.nbytes].view(field.dtype).view(field.shape)
            for field in self._fields
        }

    def _checked(self, field: _Field, tensor: torch.Tensor | None, device: str) -> torch.Tensor:
        if tensor is None:
            return torch.zeros(field.shape, dtype=field.dtype, device=device)
        if tuple(tensor.shape) != field.shape:
            raise ExecutionError(
                f'tensor "{field.name}" has shape {tuple(tensor.shape)} in this run and {field.shape} in the captured '
                "graph: a shape that depends on the data cannot cross a cut; plan again with other boundaries, or data "
                "parallel",
                code="message.other-shape",
                tensor=field.name,
            )
        # Under autocast an operation may give another dtype than the one that was captured.
        return tensor.detach().to(field.dtype)


def size_at(size: int | str, batch: int) -> int:
    """One size of a shape.

    Args:
        size: a number, or an expression in the batch size `B`
        batch: samples

    Raises:
        InputError: not such an expression

    Example:
        >>> size_at(7, 4), size_at("B", 4), size_at("2*B", 4), size_at("B*12 + 1", 4)
        (7, 4, 8, 49)
    """
    if isinstance(size, int):
        return size
    if size == "B":
        return batch
    try:
        return _evaluate(ast.parse(size, mode="eval").body, batch)
    except (SyntaxError, KeyError):
        raise InputError(
            f'a size of a tensor must be a number or an expression in B, got "{size}"',
            code="message.bad-size",
            size=size,
        ) from None


def _evaluate(node: ast.expr, batch: int) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    if isinstance(node, ast.Name) and node.id == "B":
        return batch
    if isinstance(node, ast.BinOp):
        left, right = _evaluate(node.left, batch), _evaluate(node.right, batch)
        operations = {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}
        if isinstance(node.op, ast.FloorDiv) and right:
            return left // right
        return operations[type(node.op)]
    raise KeyError(type(node).__name__)


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
