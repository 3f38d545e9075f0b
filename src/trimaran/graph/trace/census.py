"""What each storage is to the step: parameters and buffers of modules, gradients, the state of optimizers."""

import weakref
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from trimaran.graph.trace.calls import tensors_in
from trimaran.graph.trace.geometry import has_storage
from trimaran.graph.trace.storages import PERSISTENT
from trimaran.graph.trace.tape import Tape
from trimaran.graph.trace.types import Role


class Census:
    """Tells the storages of a tape what they are.

    Args:
        tape: of the step
    """

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._parameters: list[weakref.ref[torch.Tensor]] = []
        self._handles: list[Any] = []

    def install(self) -> None:
        """Follow optimizers: their steps are the update."""
        self._handles = [
            register_optimizer_step_pre_hook(self._begin_update),
            register_optimizer_step_post_hook(self._end_update),
        ]

    def remove(self) -> None:
        """Follow them no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def meet_module(self, root: nn.Module, prefix: str) -> None:
        """Learn the parameters and buffers of a module."""
        prefix = f"{prefix}." if prefix else ""
        for name, parameter in root.named_parameters(remove_duplicate=False):
            self._meet_parameter(parameter, prefix + name)
        for name, buffer in root.named_buffers(remove_duplicate=False):
            self._declare(buffer, Role.BUFFER, prefix + name)

    def meet_optimizer(self, optimizer: Optimizer) -> None:
        """Learn the parameters and the state of an optimizer."""
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._meet_parameter(parameter, "")
        self._meet_state(optimizer)

    def find_gradients(self) -> None:
        """Learn the gradients that parameters have now."""
        for reference in self._parameters:
            parameter = reference()
            if parameter is not None:
                self._meet_gradient(parameter)

    def _begin_update(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        self._tape.updating = True
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                self._meet_gradient(parameter)
        self._meet_state(optimizer)

    def _end_update(self, optimizer: Optimizer, _: Any, __: Any) -> None:
        self._tape.updating = False
        self._meet_state(optimizer)

    def _meet_parameter(self, parameter: torch.Tensor, name: str) -> None:
        self._parameters.append(weakref.ref(parameter))
        self._declare(parameter, Role.PARAMETER, name)
        if parameter.grad is not None:
            self._declare(parameter.grad, Role.GRADIENT)

    def _meet_gradient(self, parameter: torch.Tensor) -> None:
        """Learn the gradient that the step has made for a parameter."""
        if parameter.grad is None:
            return
        self._declare(parameter.grad, Role.GRADIENT)
        find = self._tape.book.find
        for plain, gradient in zip(_plain(parameter), _plain(parameter.grad), strict=False):
            owner, made = find(plain.untyped_storage()), find(gradient.untyped_storage())
            if owner is not None and made is not None:
                self._tape.gradients[owner] = made

    def _meet_state(self, optimizer: Optimizer) -> None:
        for state in optimizer.state.values():
            for tensor in tensors_in(state):
                self._declare(tensor, Role.OPTIMIZER)

    def _declare(self, tensor: torch.Tensor, role: Role, name: str = "") -> None:
        """Say what a tensor's storage is. What a module says of its parameters and buffers goes first."""
        book = self._tape.book
        for plain in _plain(tensor):
            storage = plain.untyped_storage()
            self._tape.see(storage.device)
            number = book.find(storage)
            if number is None:
                number = book.add(storage, role, -1)
            elif role in (Role.PARAMETER, Role.BUFFER) or book.records[number].role not in PERSISTENT:
                book.records[number].role = role
            if name:
                book.names.setdefault(number, name)


def _plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensors with storages inside a tensor: itself, or those that a subclass wraps."""
    wrapper: Any = tensor
    if is_traceable_wrapper_subclass(wrapper):
        names, _ = wrapper.__tensor_flatten__()
        for part in (getattr(wrapper, name) for name in names):
            if isinstance(part, torch.Tensor):
                yield from _plain(part)
    elif has_storage(tensor):
        yield tensor
