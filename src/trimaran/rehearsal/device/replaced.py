"""Replacing parts of torch in a rank's process, which lives for one rehearsal only."""

import importlib.util
import sys
from collections.abc import Callable
from types import FunctionType
from typing import Any


def replace(owner: Any, **parts: Any) -> None:
    """Put other parts in the place of a module's or a class's, by name; a function gets the name of its place.

    A library may replace the function once more by the name that it has: context parallelism of PyTorch does.
    """
    for name, part in parts.items():
        if isinstance(part, FunctionType):
            part.__name__ = name
        setattr(owner, name, part)


def when_imported(name: str, then: Callable[[Any], None]) -> None:
    """Call a function with a module once that is imported, which not every script does; at once where it is.

    Args:
        name: of the module
        then: called after its import
    """
    if name in sys.modules:
        then(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Waiting(name, then))


class _Waiting:
    """Finds one module as it is found without this, with a loader that tells."""

    def __init__(self, name: str, then: Callable[[Any], None]) -> None:
        self._name = name
        self._then = then

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Of the module that is waited for."""
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def run_and_tell(module: Any) -> None:
                run(module)
                self._then(module)

            replace(spec.loader, exec_module=run_and_tell)
        return spec
