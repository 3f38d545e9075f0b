"""Calls of operations, kept to run them again.

A call keeps no tensor: each argument that was one is a reference, the value that it held and how it looked at its
storage.

What is left out: random numbers, communication and operations with arguments that are more than tensors and plain
values cannot be repeated. Whether a kernel gives the same bits each time is for the caller to check.
"""

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch._ops import OpOverload

from trimaran.graph.trace.types import StepTrace, Value, View

PLAIN = (
    type(None), bool, int, float, complex, str, torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
REPEATABLE_NAMESPACES = frozenset({"aten", "prims", "mkldnn", "mkl", "onednn", "torchvision"})
RUNNING_STATISTICS = {
    "aten::native_batch_norm": (3, 4, 5),
    "aten::cudnn_batch_norm": (3, 4, 5),
    "aten::miopen_batch_norm": (3, 4, 5),
    "aten::_native_batch_norm_legit": (3, 4, 5),
}
"""Batch norms: places of the running mean and variance, and of whether it trains."""
UPDATING_STATISTICS = {"aten::_batch_norm_with_update": (3, 4)}
"""Batch norms that always update their running statistics, and cannot do without."""


INEXACT = frozenset({"aten::mkldnn_rnn_layer", "aten::_cudnn_rnn", "aten::miopen_rnn"})
"""Leave bytes of their workspace unset, so that no two runs give the same bits."""

CONVOLUTIONS = frozenset(
    f"aten::{name}"
    for name in (
        "_convolution", "convolution", "convolution_backward", "convolution_overrideable", "cudnn_convolution",
        "cudnn_convolution_add_relu", "cudnn_convolution_relu", "cudnn_convolution_transpose",
    )
)  # fmt: skip
"""Try several algorithms on a GPU where `torch.backends.cudnn.benchmark` is set, and may take another one next time."""


@dataclass(frozen=True, slots=True)
class Ref:
    """In the place of a tensor among the arguments of a call.

    Attributes:
        value: that it held
        view: how it looked at its storage
    """

    value: Value
    view: View


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An operation with its arguments.

    Attributes:
        op: the operator
        args: by place, with `Ref` for tensors
        kwargs: by name, with `Ref` for tensors
        made: for each new storage, the place of a tensor in it among the tensors that the call returns
        grad: whether gradients were on; some kernels return more where they are
    """

    op: OpOverload
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    made: Mapping[int, int]
    grad: bool


@dataclass(frozen=True, kw_only=True)
class Recording:
    """A recorded step.

    Attributes:
        trace: what happened
        calls: by moment, of the operations that can be run again
        externals: parameters and buffers, by number; held weakly
    """

    trace: StepTrace
    calls: Mapping[int, Call]
    externals: Mapping[int, "weakref.ref[torch.UntypedStorage]"]


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors among arguments or results, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, tuple | list):
        for part in value:
            yield from tensors_in(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from tensors_in(part)


def replaced(value: Any, kind: type, by: Callable[[Any], Any]) -> Any:
    """Arguments with every instance of a type replaced.

    Example:
        >>> replaced((1, [2.0, "x"]), float, str)
        (1, ['2.0', 'x'])
    """
    if isinstance(value, kind):
        return by(value)
    if isinstance(value, list):
        return [replaced(part, kind, by) for part in value]
    if isinstance(value, tuple):
        return tuple(replaced(part, kind, by) for part in value)
    if isinstance(value, dict):
        return {key: replaced(part, kind, by) for key, part in value.items()}
    return value


def is_plain(value: Any) -> bool:
    """Whether an argument holds nothing but plain values and tensors."""
    if isinstance(value, tuple | list):
        return all(map(is_plain, value))
    return isinstance(value, (*PLAIN, torch.Tensor))


def is_repeatable(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether running a call again gives the same and changes nothing else: nothing random, no communication."""
    if op.namespace not in REPEATABLE_NAMESPACES or op._schema.name in INEXACT:
        return False
    if torch.backends.cudnn.benchmark and op._schema.name in CONVOLUTIONS:
        # Meta tensors stand for those of a GPU.
        return all(tensor.device.type == "cpu" for tensor in tensors_in((args, dict(kwargs))))
    if torch.Tag.nondeterministic_seeded in op.tags and not _without_dropout(op, args, kwargs):
        return False
    return all(map(is_plain, args)) and all(map(is_plain, kwargs.values()))


def _without_dropout(op: OpOverload, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    """Whether an operation is random only by a dropout that is 0 here, as attention and recurrent layers are."""
    for place, argument in enumerate(op._schema.arguments):
        if argument.name in ("dropout_p", "dropout"):
            given = args[place] if place < len(args) else kwargs.get(argument.name, argument.default_value)
            return bool(given == 0)
    return False
