"""Modes are a stack; ours may have to go while one of the loop lies above."""

import contextlib
from collections.abc import Iterator

from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack, _pop_mode, _push_mode


@contextlib.contextmanager
def lifted(kind: type[TorchDispatchMode]) -> Iterator[None]:
    """Take what lies above a mode off the stack, and put it back in its order.

    Args:
        kind: of the mode that is to be on top; without one of this kind nothing happens
    """
    stack = _get_current_dispatch_mode_stack()
    above = 0
    if any(isinstance(mode, kind) for mode in stack):
        while not isinstance(stack[-1 - above], kind):
            above += 1
    others = [_pop_mode() for _ in range(above)]
    try:
        yield
    finally:
        for mode in reversed(others):
            _push_mode(mode)
