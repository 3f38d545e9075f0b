"""Waits for `import torch`. A process that never imports torch pays for one look at each import, and nothing else."""

import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType


class Arrival:
    """Looks at each import until torch's comes.

    Args:
        then: called once, after torch has been imported
    """

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._looking = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The module's spec where it is torch, with our step after its execution.

        It may be looked up without being imported, so we stay until it is.
        """
        if name != "torch" or self._looking:
            return None
        self._looking = True
        try:
            spec = find_spec("torch")
        finally:
            self._looking = False
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def execute_and_tell(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self._then()

        # On this one loader object, which serves this one look-up.
        object.__setattr__(spec.loader, "exec_module", execute_and_tell)
        return spec


def await_torch() -> None:
    """Install the watch as soon as torch has been imported."""
    if "torch" in sys.modules:
        _install()
    else:
        sys.meta_path.insert(0, Arrival(_install))


def _install() -> None:
    try:
        from trimaran_watch.output import watch_process

        watch_process()
    except Exception as error:  # noqa: BLE001  the command must run whatever happens here
        sys.stderr.write(f"trimaran observe: this process is not watched: {error!r}\n")
