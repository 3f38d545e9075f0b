"""The ends of updates, by torch's hooks of all optimizers.

An optimizer that steps inside the backward, for each gradient as it comes, ends no step.
"""

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

    Attributes:
        after: number of the optimizer that stepped last
    """

    def __init__(self, ended: Callable[[bool], None]) -> None:
        self.after = 0
        self._ended = ended
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

    def _begin(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if self._is_outside():
            self._updating = True
            self.come_last()

    def _end(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        if not self._is_outside():
            return
        self._updating = False
        first = not self._numbers
        self.after = self._numbers.setdefault(optimizer, len(self._numbers))
        self._ended(first)

    def _is_outside(self) -> bool:
        return threading.get_ident() == self._thread and torch._C._current_graph_task_id() == -1
