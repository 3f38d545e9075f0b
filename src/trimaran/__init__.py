"""Trimaran: plan, simulate and run the training of deep neural networks on many devices."""

from typing import TYPE_CHECKING, Any

from trimaran.base.errors import (
    CorruptDataError,
    EnvironmentProblem,
    ExecutionError,
    InfeasibleError,
    InputError,
    SolverError,
    TrimaranError,
)
from trimaran.base.job import Job

if TYPE_CHECKING:
    from trimaran.features.diagnose.observe import observe
    from trimaran.features.training.session import Session, init
    from trimaran.features.virtual_memory import virtual_memory

__version__ = "0.1.0"

__all__ = [
    "CorruptDataError",
    "EnvironmentProblem",
    "ExecutionError",
    "InfeasibleError",
    "InputError",
    "Job",
    "Session",
    "SolverError",
    "TrimaranError",
    "__version__",
    "init",
    "observe",
    "virtual_memory",
]

_IMPORTED_WHEN_USED = {
    "Session": "trimaran.features.training.session",
    "init": "trimaran.features.training.session",
    "observe": "trimaran.features.diagnose.observe",
    "virtual_memory": "trimaran.features.virtual_memory",
}


def __getattr__(name: str) -> Any:
    # These import torch; `import trimaran` and the command line's --help do not.
    if name in _IMPORTED_WHEN_USED:
        from importlib import import_module

        return getattr(import_module(_IMPORTED_WHEN_USED[name]), name)
    raise AttributeError(f"module 'trimaran' has no attribute {name!r}")
