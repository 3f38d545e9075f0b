"""Started by Python in every process of an observed command; waits for torch, and runs the next `sitecustomize`.

Python imports one `sitecustomize` at its start, the first on its path. This one is put first by `trimaran observe`. It
must never disturb: its errors are kept for the report, and the command runs unobserved.
"""

import importlib.machinery
import importlib.util
import os
import sys
from pathlib import Path

_HERE = str(Path(__file__).parent)


def _run_shadowed() -> None:
    """Run the `sitecustomize` that would have been found without this one."""
    elsewhere = [entry for entry in sys.path if entry != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", elsewhere)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


if os.environ.get("TRIMARAN_OBSERVE"):
    try:
        from trimaran_watch.arrival import await_torch

        await_torch()
    except Exception as error:  # noqa: BLE001  the command must run whatever happens here
        sys.stderr.write(f"trimaran observe: this process is not watched: {error!r}\n")
_run_shadowed()
