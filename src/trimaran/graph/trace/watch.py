"""A hook on a user's module that its copies do not carry on.

A model may be copied or saved at any time, with the hooks that it has. A bound method as a hook would take its whole
object along; this one is left behind: in a copy, or a file, lies a function of the standard library that takes anything
and does nothing. So a file can be read where this project is not installed.
"""

import contextlib
from collections.abc import Callable
from typing import Any


class Watch:
    """Passes what a module tells its hooks on.

    Args:
        call: takes it; the result, if any, is that of the hook

    Example:
        >>> import copy
        >>> watch = Watch(lambda *given: len(given))
        >>> watch("module", (1, 2)), copy.deepcopy(watch)("module", (1, 2))
        (2, None)
    """

    def __init__(self, call: Callable[..., Any]) -> None:
        self._call = call

    def __call__(self, *given: Any) -> Any:
        """Pass it on."""
        return self._call(*given)

    def __reduce__(self) -> tuple[Any, ...]:
        """What a copy has in its place."""
        return getattr, (contextlib.nullcontext(), "__exit__")
