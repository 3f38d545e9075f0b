"""The block in which autograd's saved tensors go through the runtime, and what it cannot be combined with.

`torch.func` transforms refuse hooks of saved tensors, and what is captured into a CUDA graph is replayed with the
addresses that it had, so that nothing may move. Both are said where they happen, with the way out.
"""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import torch

from trimaran.errors import InputError
from trimaran.runtime.memory.engine import CopyEngine

_TRANSFORM = (
    "A transform of torch.func (grad, vjp, jacrev, hessian) does not allow hooks of saved tensors, by which memory is "
    "virtualized. Compute it outside of the block, or use torch.autograd.grad."
)
_CAPTURE = (
    "Operations are being captured into a CUDA graph, whose replays use fixed addresses: nothing can be offloaded or "
    "recomputed in it. Capture outside of the block, or train without CUDA graphs (torch.compile: mode without "
    "'reduce-overhead')."
)


class Hooks:
    """Enters and leaves the pair of hooks. It can be entered again after it was left.

    Args:
        pack: called with each tensor that autograd saves
        unpack: called with what `pack` returned
        engine: knows whether operations are being captured
    """

    def __init__(
        self, pack: Callable[[torch.Tensor], Any], unpack: Callable[[Any], torch.Tensor], engine: CopyEngine
    ) -> None:
        self._pack, self._unpack = pack, unpack
        self._engine = engine
        self._entered: list[Any] = []

    def __enter__(self) -> Self:
        if self._engine.capturing():
            raise InputError(_CAPTURE, code="virtual-memory.cuda-graph")
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise InputError(_TRANSFORM, code="virtual-memory.torch-func")
        hooks = torch.autograd.graph.saved_tensors_hooks(self._pack, self._unpack)
        hooks.__enter__()
        self._entered.append(hooks)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._entered.pop().__exit__(kind, error, trace)
        if isinstance(error, RuntimeError) and "saved tensor hooks" in str(error):
            error.add_note(_TRANSFORM)
