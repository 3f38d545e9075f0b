"""The ends of updates, by torch's hooks of all optimizers.

An optimizer that steps inside the backward, for each gradient as it comes, ends no step.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


class Updates:
    """Notices the optimizers of the thread that makes it.

    Args:
        ended: called when an optimizer has stepped; with whether it is the first that did
        begun: called when an optimizer is about to use gradients: as it steps, and after each call of its closure

    Attributes:
        after: number of the optimizer that stepped last
    """

    def __init__(self, ended: Callable[[bool], None], begun: Callable[[], None]) -> None:
        self.after = 0
        self._ended = ended
        self._begun = begun
        self._numbers: weakref.WeakKeyDictionary[Optimizer, int] = weakref.WeakKeyDictionary()
        self._thread = threading.get_ident()
        self._updating = False
        self._handles: list[Any] = []

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those that have stepped."""
        return list(self._numbers)

    def open(self) -> None:
        """Notice from now on."""
        self._handles.append(register_optimizer_step_pre_hook(self._begin))

    def close(self) -> None:
        """Notice no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def come_last(self) -> None:
        """Others have added hooks: the one for the end of an update goes behind them, as it takes some of them away."""
        if self._updating:
            while len(self._handles) > 1:
                self._handles.pop().remove()
            self._handles.append(register_optimizer_step_post_hook(self._end))

    def _begin(
        self, _optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self._is_outside():
            return None
        self._updating = True
        self.come_last()
        self._begun()
        # The optimizer itself is the first argument, its closure the second.
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._then_begun(args[1]), *args[2:]), kwargs
        if callable(kwargs.get("closure")):
            return args, kwargs | {"closure": self._then_begun(kwargs["closure"])}
        return None

    def _then_begun(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        """A closure whose gradients are about to be used when it is over."""

        @functools.wraps(closure)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            result = closure(*args, **kwargs)
            if self._handles:
                self._begun()
            return result

        return wrapper

    def _end(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._is_outside() or _is_within_step(optimizer):
            return
        self._updating = False
        first = not self._numbers
        self.after = self._numbers.setdefault(optimizer, len(self._numbers))
        self._ended(first)

    def _is_outside(self) -> bool:
        return threading.get_ident() == self._thread and torch._C._current_graph_task_id() == -1


def _is_within_step(optimizer: Optimizer) -> bool:
    """Whether the step that ends is part of another one of the same optimizer, as where a subclass calls its parent's.

    Asked from a hook: torch runs hooks around each of them.
    """
    frame, around = sys._getframe(1), 0
    while frame is not None and around < 2:  # the first is the one that ends
        code = frame.f_code
        if code.co_name == "wrapper" and code.co_filename == _HOOKED and frame.f_locals.get("self") is optimizer:
            around += 1
        frame = frame.f_back  # type: ignore[assignment]
    return around == 2


_HOOKED = register_optimizer_step_post_hook.__code__.co_filename
