"""How the watch gets into a process: through the environment of a command, or into the process that asks.

Python imports `sitecustomize` at its start from the first folder of its path that has one. Ours is put first with
PYTHONPATH, which processes hand on to those that they start: ranks of torchrun, spawned workers.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType

INJECTED = Path(__file__).parent / "on-path"


def watched_environment(environment: Mapping[str, str], folder: Path, *, again: bool = True) -> dict[str, str]:
    """The environment in which a command and all that it starts are watched.

    Args:
        environment: of the command
        folder: where each process leaves its record
        again: time a copy of the model again once the script is over
    """
    path = environment.get("PYTHONPATH")
    return dict(environment) | {
        "PYTHONPATH": os.pathsep.join([str(INJECTED), *([path] if path else [])]),
        "TRIMARAN_OBSERVE": str(folder),
        "TRIMARAN_OBSERVE_AGAIN": "1" if again else "0",
    }


def load_watch() -> ModuleType:
    """The module that records this process; the same one where the process is observed already."""
    loaded = sys.modules.get("trimaran_watch.output")
    if loaded is not None:
        return loaded
    sys.path.insert(0, str(INJECTED))
    try:
        return importlib.import_module("trimaran_watch.output")
    finally:
        sys.path.remove(str(INJECTED))
