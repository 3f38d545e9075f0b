"""Lets functions of torch be replaced while a model runs, also those that functions of torch call.

A function mode is told of `multi_head_attention_forward`, and is then switched off while that runs. To be told of what
runs inside as well, functions of `torch.nn.functional` run from a copy that does not ask whether they are overridden.
"""

import functools
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

Replacement = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]
"""Takes a function with its arguments, and gives the result."""

_QUESTIONS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class Overrides(TorchFunctionMode):
    """Calls replacements in the place of functions.

    Args:
        replace: gives the replacement of a function by its name; None where there is none
    """

    def __init__(self, replace: Callable[[str], Replacement | None]) -> None:
        super().__init__()
        self._replace = replace

    def __torch_function__(
        self, func: Any, _: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function, or what replaces it."""
        kwargs = kwargs or {}
        replacement = self._replace(getattr(func, "__name__", ""))
        if replacement is not None:
            return replacement(func, args, kwargs)
        if isinstance(func, types.FunctionType) and func.__globals__ is vars(functional):
            with self:
                return _without_questions(func)(*args, **kwargs)
        return func(*args, **kwargs)


@functools.cache
def _without_questions(func: types.FunctionType) -> types.FunctionType:
    namespace = {**func.__globals__, **dict.fromkeys(_QUESTIONS, _never)}
    copy = types.FunctionType(func.__code__, namespace, func.__name__, func.__defaults__, func.__closure__)
    copy.__kwdefaults__ = func.__kwdefaults__
    return copy


def _never(*_: torch.Tensor) -> bool:
    return False
