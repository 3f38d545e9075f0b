"""Trimaran: plan, simulate and run the training of deep neural networks on many devices.

    verbs      check, plan, explain, simulate, estimate_memory, predict_scaling, find_crossover, collective_cost,
               init, observe, virtual_memory, sample_order
    types      what these take and return; every error is a `TrimaranError`

Nothing of this imports torch before it is used.
"""

from importlib import import_module
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
    from trimaran.api import (
        check,
        collective_algorithms,
        collective_cost,
        explain,
        plan,
    )
    from trimaran.base.timeline import Timeline
    from trimaran.features.check import Checked
    from trimaran.features.crossover.find import find_crossover
    from trimaran.features.diagnose.observe import Watch, observe
    from trimaran.features.memory_fit.estimate import MemoryStudy, estimate_memory
    from trimaran.features.scaling import predict_scaling
    from trimaran.features.training.session import Session, init
    from trimaran.features.virtual_memory import VirtualMemory, virtual_memory
    from trimaran.memory_hooks.microbatching import Split, splitting
    from trimaran.planner.pins import Pins
    from trimaran.planning.explanation import Explained
    from trimaran.planning.meta_trace import parse_split
    from trimaran.planning.requests import TargetRequest
    from trimaran.planning.results import Planned
    from trimaran.pricing.collectives.algorithms import CollectiveAlgorithm
    from trimaran.pricing.types import Cost, ProgramCosts
    from trimaran.program.gradients import Compression
    from trimaran.program.plan import Plan, read_plan, write_plan
    from trimaran.program.strategy import Feeding, Strategy
    from trimaran.program.text import format_order, parse_order
    from trimaran.program.types import Instruction, Kind, Program
    from trimaran.report.crossover import Crossover
    from trimaran.report.observation import Observation
    from trimaran.report.scaling import ScalingStudy
    from trimaran.runtime.data.orders import sample_order
    from trimaran.simulator.engine import simulate

__version__ = "0.1.0"

__all__ = [
    "Checked",
    "CollectiveAlgorithm",
    "Compression",
    "CorruptDataError",
    "Cost",
    "Crossover",
    "EnvironmentProblem",
    "ExecutionError",
    "Explained",
    "Feeding",
    "InfeasibleError",
    "InputError",
    "Instruction",
    "Job",
    "Kind",
    "MemoryStudy",
    "Observation",
    "Pins",
    "Plan",
    "Planned",
    "Program",
    "ProgramCosts",
    "ScalingStudy",
    "Session",
    "SolverError",
    "Split",
    "Strategy",
    "TargetRequest",
    "Timeline",
    "TrimaranError",
    "VirtualMemory",
    "Watch",
    "__version__",
    "check",
    "collective_algorithms",
    "collective_cost",
    "estimate_memory",
    "explain",
    "find_crossover",
    "format_order",
    "init",
    "observe",
    "parse_order",
    "parse_split",
    "plan",
    "predict_scaling",
    "read_plan",
    "sample_order",
    "simulate",
    "splitting",
    "virtual_memory",
    "write_plan",
]

_MODULES = {
    "trimaran.api": (
        "check",
        "collective_algorithms",
        "collective_cost",
        "explain",
        "plan",
    ),
    "trimaran.base.timeline": ("Timeline",),
    "trimaran.features.check": ("Checked",),
    "trimaran.features.diagnose.observe": (
        "Watch",
        "observe",
    ),
    "trimaran.features.crossover.find": ("find_crossover",),
    "trimaran.features.memory_fit.estimate": (
        "MemoryStudy",
        "estimate_memory",
    ),
    "trimaran.features.scaling": ("predict_scaling",),
    "trimaran.features.training.session": (
        "Session",
        "init",
    ),
    "trimaran.features.virtual_memory": (
        "VirtualMemory",
        "virtual_memory",
    ),
    "trimaran.memory_hooks.microbatching": (
        "Split",
        "splitting",
    ),
    "trimaran.pricing.collectives.algorithms": ("CollectiveAlgorithm",),
    "trimaran.planner.pins": ("Pins",),
    "trimaran.planning.explanation": ("Explained",),
    "trimaran.planning.meta_trace": ("parse_split",),
    "trimaran.planning.requests": ("TargetRequest",),
    "trimaran.planning.results": ("Planned",),
    "trimaran.pricing.types": (
        "Cost",
        "ProgramCosts",
    ),
    "trimaran.program.gradients": ("Compression",),
    "trimaran.program.plan": (
        "Plan",
        "read_plan",
        "write_plan",
    ),
    "trimaran.program.strategy": (
        "Feeding",
        "Strategy",
    ),
    "trimaran.program.text": (
        "format_order",
        "parse_order",
    ),
    "trimaran.program.types": (
        "Instruction",
        "Kind",
        "Program",
    ),
    "trimaran.report.crossover": ("Crossover",),
    "trimaran.report.observation": ("Observation",),
    "trimaran.report.scaling": ("ScalingStudy",),
    "trimaran.runtime.data.orders": ("sample_order",),
    "trimaran.simulator.engine": ("simulate",),
}
_IMPORTED_WHEN_USED = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    # These import torch; `import trimaran` and the command line's --help do not.
    if name in _IMPORTED_WHEN_USED:
        return getattr(import_module(_IMPORTED_WHEN_USED[name]), name)
    raise AttributeError(f"module 'trimaran' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
