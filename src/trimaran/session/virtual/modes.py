"""Modes are a stack, and a loop may enter and leave its own at any time: ours lie below them.

    what was there before the context │ ours │ those that the loop has entered since

A mode is left by taking the top of the stack: one of ours on top of the loop's would be taken in its place.
"""

import contextlib
from collections.abc import Iterator

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode

Kinds = tuple[type[TorchDispatchMode], ...]


class ModePlace:
    """The place of our modes: above what is on the stack now.

    Args:
        kinds: of our modes
    """

    def __init__(self, kinds: Kinds) -> None:
        self._kinds = kinds
        self._depth = len(_get_current_dispatch_mode_stack())

    @contextlib.contextmanager
    def on_top(self) -> Iterator[None]:
        """Take what the loop has entered off the stack, and put it back afterwards."""
        others: list[TorchDispatchMode] = []
        stack = _get_current_dispatch_mode_stack()
        while len(stack) > self._depth and not isinstance(stack[-1], self._kinds):
            others.append(_pop_mode())
            stack = stack[:-1]
        try:
            yield
        finally:
            for mode in reversed(others):
                _push_mode(mode)
