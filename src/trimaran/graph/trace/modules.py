"""Which module runs: paths of modules while they run forward, and afterwards for the nodes that they left to autograd.

Autograd numbers its nodes in the order in which the forward makes them. Noting that number whenever a module begins or
ends tells, in the backward, which module a node came from.
"""

import bisect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks

from trimaran.graph.trace.watch import Watch


class ModulePaths:
    """The path of the module that runs.

    Args:
        root: whose names to use; None: the first module that runs from outside is the root; others that do have the
            names of their classes
        met: told of each root with its name, "" for the first
    """

    def __init__(self, root: nn.Module | None, met: Callable[[nn.Module, str], None]) -> None:
        self._met = met
        self._names: dict[int, str] = {}
        self._roots: list[nn.Module] = []  # held, so that no other module gets the identity of one of theirs
        self._stack: list[str] = []
        self._numbers: list[int] = []
        self._paths: list[str] = []
        self._handles: list[Any] = []
        if root is not None:
            self._adopt(root, "")

    def install(self) -> None:
        """Follow modules from now on: those of the root where it is known, else whichever runs."""
        if not self._roots:
            self._handles = [
                hooks.register_module_forward_pre_hook(self._begin),
                hooks.register_module_forward_hook(self._end, always_call=True),
            ]
            return
        for module in _not_compiled(self._roots[0]):
            self._handles.append(module.register_forward_pre_hook(Watch(self._begin)))
            self._handles.append(module.register_forward_hook(Watch(self._end), always_call=True))

    def remove(self) -> None:
        """Follow them no more, and let go of them."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._names.clear()
        self._roots.clear()

    @property
    def current(self) -> str:
        """Path of the module that runs; "" outside of all."""
        return self._stack[-1] if self._stack else ""

    def of_node(self, number: int) -> str:
        """Path of the module that ran when autograd made the node of that number; "" where unknown."""
        place = bisect.bisect_right(self._numbers, number) - 1
        return self._paths[place] if place >= 0 else ""

    def _begin(self, module: nn.Module, _: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if id(module) not in self._names:
            self._adopt(module, "" if not self._roots else type(module).__name__)
        self._stack.append(self._names[id(module)])
        self._mark()

    def _end(self, module: nn.Module, _: Any, __: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if self._stack:
            self._stack.pop()
        self._mark()

    def _mark(self) -> None:
        number = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        if self._numbers and number < self._numbers[-1]:
            return  # another thread numbers its own nodes
        self._numbers.append(number)
        self._paths.append(self.current)

    def _adopt(self, root: nn.Module, prefix: str) -> None:
        self._roots.append(root)
        for path, module in root.named_modules(prefix=prefix):
            self._names.setdefault(id(module), path)
        self._met(root, prefix)


def _not_compiled(module: nn.Module) -> Iterator[nn.Module]:
    """A module and those below it, without compiled ones: hooks inside these would have them compiled again."""
    if type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None:
        return
    if isinstance(module, torch.jit.ScriptModule):
        return  # an interpreter runs it, and calls no hooks of Python inside
    yield module
    for child in module.children():
        yield from _not_compiled(child)
