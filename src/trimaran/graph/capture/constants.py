"""Attributes of a model that its graph has as constants.

A graph calls the leaf modules of a model, and has what containers compute around them as operations, with the values
that their attributes had at capture. Whoever changes `model.temperature` between two steps changes nothing in it.
"""

from collections.abc import Collection
from typing import Any

from torch import Tensor, nn

_NOT_READ = frozenset(vars(nn.Module()))


class Constants:
    """What the attributes of a model's containers were.

    Args:
        model: the user's
        called: paths of the modules that the graph calls: they, and what is in them, run as they are
    """

    def __init__(self, model: nn.Module, called: Collection[str]) -> None:
        self._held: list[tuple[str, nn.Module, str, Any, int]] = []
        for path, module in model.named_modules():
            if any(path == one or path.startswith(f"{one}.") for one in called):
                continue
            for name, value in vars(module).items():
                if name not in _NOT_READ and (value is None or isinstance(value, bool | int | float | str | Tensor)):
                    self._held.append((f"{path}.{name}" if path else name, module, name, value, _version(value)))

    def changed(self) -> list[str]:
        """Those that are others now."""
        return [
            path
            for path, module, name, value, version in self._held
            if not _is(vars(module).get(name), value) or _version(value) != version
        ]


def _is(now: Any, before: Any) -> bool:
    if now is before:
        return True
    return not isinstance(now, Tensor) and type(now) is type(before) and bool(now == before)


def _version(value: Any) -> int:
    return value._version if isinstance(value, Tensor) else 0
