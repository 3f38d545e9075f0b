"""The outermost modules that a loop calls, found without being told.

While a step is recorded, the stack of Python calls is read at each pack: the outermost call of a module is a root. A
root gets a pre-hook, which sees each batch before the forward begins; it is the only thing that we leave on a user's
module, and it goes when the context is left. A copy of the module carries a pre-hook that does nothing.
"""

import sys
import weakref
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any

import torch
from torch import nn

from trimaran.graph.trace.watch import Watch
from trimaran.session.virtual.batches import Signature, look_at

_CALL = nn.Module._wrapped_call_impl.__code__

Called = Callable[[Signature], None]


class Roots:
    """Outermost modules of a loop, each with its pre-hook.

    Args:
        called: told the look of each batch that goes into a root while gradients are wanted and no backward runs
    """

    def __init__(self, called: Called) -> None:
        self._called = called
        self._handles: dict[int, Any] = {}
        self._modules: dict[int, weakref.ref[nn.Module]] = {}

    @property
    def known(self) -> bool:
        """Whether any root was found."""
        return bool(self._handles)

    @property
    def first(self) -> nn.Module | None:
        """The root that was found first, if it is still there."""
        for reference in self._modules.values():
            return reference()
        return None

    def find(self) -> Signature | None:
        """The outermost module call around the caller, which becomes a root; its batch, if it is a new root.

        Returns:
            Look of the batch of a root that had no pre-hook yet; None where there is no module call or it is known.
        """
        frame: FrameType | None = sys._getframe(1)
        outermost: FrameType | None = None
        while frame is not None:
            if frame.f_code is _CALL:
                outermost = frame
            frame = frame.f_back
        if outermost is None:
            return None
        call = outermost.f_locals
        module = call["self"]
        if id(module) in self._handles or isinstance(module, torch.jit.ScriptModule):
            return None  # a script takes no hooks: a flight of it is known by the first tensor that autograd packs
        self._watch(module)
        return look_at(module, call["args"], call["kwargs"])

    def close(self) -> None:
        """Take all pre-hooks away."""
        for handle in self._handles.values():
            handle.remove()
        self._handles.clear()
        self._modules.clear()

    def _watch(self, module: nn.Module) -> None:
        number = id(module)
        self._handles[number] = module.register_forward_pre_hook(Watch(self._call), prepend=True, with_kwargs=True)
        self._modules[number] = weakref.ref(module, lambda _: self._forget(number))

    def _forget(self, number: int) -> None:
        self._handles.pop(number, None)
        self._modules.pop(number, None)

    def _call(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if torch.is_grad_enabled() and torch._C._current_graph_task_id() == -1:
            self._called(look_at(module, args, kwargs))
