"""Trimaran: plan, simulate and run the training of deep neural networks on many devices.

    verbs      check, plan, explain, simulate, estimate_memory, predict_scaling, find_crossover, collective_cost,
               init, export_checkpoint, observe, rehearse, assert_fits, verify, assert_trains_one_model, virtual_memory,
               sample_order
    types      what these take and return; every error is a `TrimaranError`

Nothing of this imports torch before it is used.
"""

import _signal  # type: ignore[import-not-found]  # `signal` takes as long to import as all that is above it
import os
import sys


def interrupted(number: int, _: object) -> None:
    """End the `trimaran` command, which has not begun: `trimaran.base.signals` says how, and is not imported yet."""
    os.write(2, b"trimaran: interrupted\n")
    os._exit(128 + number)


# The name of the command, or of the module that `python -m` runs: this is no script that imports Trimaran.
_command = "".join(getattr(sys, "orig_argv", [])[-len(getattr(sys, "argv", [])) :][:1])
_is_default = _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler
if _is_default and os.path.basename(_command).removeprefix("-m") == "trimaran":  # noqa: PTH119 `pathlib` comes later
    _signal.signal(_signal.SIGINT, interrupted)

from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING, Any  # noqa: E402

from trimaran.base import VERSION  # noqa: E402

if TYPE_CHECKING:
    from trimaran.api import check as check
    from trimaran.api import collective_algorithms as collective_algorithms
    from trimaran.api import collective_cost as collective_cost
    from trimaran.api import explain as explain
    from trimaran.api import plan as plan
    from trimaran.base.errors import CorruptDataError as CorruptDataError
    from trimaran.base.errors import EnvironmentProblem as EnvironmentProblem
    from trimaran.base.errors import ExecutionError as ExecutionError
    from trimaran.base.errors import InfeasibleError as InfeasibleError
    from trimaran.base.errors import InputError as InputError
    from trimaran.base.errors import SolverError as SolverError
    from trimaran.base.errors import TrimaranError as TrimaranError
    from trimaran.base.job import Job as Job
    from trimaran.base.timeline import Timeline as Timeline
    from trimaran.features.check import Checked as Checked
    from trimaran.features.checkpoints import ExportedCheckpoint as ExportedCheckpoint
    from trimaran.features.checkpoints import export_checkpoint as export_checkpoint
    from trimaran.features.crossover.find import find_crossover as find_crossover
    from trimaran.features.diagnose.observe import Watch as Watch
    from trimaran.features.diagnose.observe import observe as observe
    from trimaran.features.memory_fit.estimate import MemoryStudy as MemoryStudy
    from trimaran.features.memory_fit.estimate import estimate_memory as estimate_memory
    from trimaran.features.rehearse.ask import assert_fits as assert_fits
    from trimaran.features.rehearse.ask import rehearse as rehearse
    from trimaran.features.rehearse.verify import assert_trains_one_model as assert_trains_one_model
    from trimaran.features.rehearse.verify import verify as verify
    from trimaran.features.scaling import predict_scaling as predict_scaling
    from trimaran.features.training.session import Session as Session
    from trimaran.features.training.session import init as init
    from trimaran.machine.prices import Price as Price
    from trimaran.machine.prices import parse_price as parse_price
    from trimaran.memory_budget import VirtualMemory as VirtualMemory
    from trimaran.memory_budget import virtual_memory as virtual_memory
    from trimaran.memory_hooks.splitting import Split as Split
    from trimaran.memory_hooks.splitting import splitting as splitting
    from trimaran.planner.pins import Pins as Pins
    from trimaran.planning.answer.explained import Explained as Explained
    from trimaran.planning.answer.results import Planned as Planned
    from trimaran.planning.requests import Loading as Loading
    from trimaran.planning.requests import TargetRequest as TargetRequest
    from trimaran.planning.tracing.meta_trace import parse_split as parse_split
    from trimaran.pricing.collectives.algorithms import CollectiveAlgorithm as CollectiveAlgorithm
    from trimaran.pricing.failures import Reliability as Reliability
    from trimaran.pricing.types import Cost as Cost
    from trimaran.pricing.types import ProgramCosts as ProgramCosts
    from trimaran.program.gradients import Compression as Compression
    from trimaran.program.plan_file import Plan as Plan
    from trimaran.program.plan_file import read_plan as read_plan
    from trimaran.program.plan_file import write_plan as write_plan
    from trimaran.program.strategy import Feeding as Feeding
    from trimaran.program.strategy import Strategy as Strategy
    from trimaran.program.types import Instruction as Instruction
    from trimaran.program.types import Kind as Kind
    from trimaran.program.types import Program as Program
    from trimaran.report.crossover import Crossover as Crossover
    from trimaran.report.observation import Observation as Observation
    from trimaran.report.rehearsal import Rehearsal as Rehearsal
    from trimaran.report.scaling import ScalingStudy as ScalingStudy
    from trimaran.report.verification import Verification as Verification
    from trimaran.runtime.data.orders import sample_order as sample_order
    from trimaran.simulator.engine import simulate as simulate

__version__ = VERSION

_MODULES = {
    "trimaran.api": ("check", "collective_algorithms", "collective_cost", "explain", "plan"),
    "trimaran.base.errors": (
        "CorruptDataError",
        "EnvironmentProblem",
        "ExecutionError",
        "InfeasibleError",
        "InputError",
        "SolverError",
        "TrimaranError",
    ),
    "trimaran.base.job": ("Job",),
    "trimaran.base.timeline": ("Timeline",),
    "trimaran.features.check": ("Checked",),
    "trimaran.features.checkpoints": ("ExportedCheckpoint", "export_checkpoint"),
    "trimaran.features.crossover.find": ("find_crossover",),
    "trimaran.features.diagnose.observe": ("Watch", "observe"),
    "trimaran.features.memory_fit.estimate": ("MemoryStudy", "estimate_memory"),
    "trimaran.features.rehearse.ask": ("assert_fits", "rehearse"),
    "trimaran.features.rehearse.verify": ("assert_trains_one_model", "verify"),
    "trimaran.features.scaling": ("predict_scaling",),
    "trimaran.features.training.session": ("Session", "init"),
    "trimaran.machine.prices": ("Price", "parse_price"),
    "trimaran.memory_budget": ("VirtualMemory", "virtual_memory"),
    "trimaran.memory_hooks.splitting": ("Split", "splitting"),
    "trimaran.planner.pins": ("Pins",),
    "trimaran.planning.answer.explained": ("Explained",),
    "trimaran.planning.tracing.meta_trace": ("parse_split",),
    "trimaran.planning.requests": ("Loading", "TargetRequest"),
    "trimaran.planning.answer.results": ("Planned",),
    "trimaran.pricing.collectives.algorithms": ("CollectiveAlgorithm",),
    "trimaran.pricing.failures": ("Reliability",),
    "trimaran.pricing.types": ("Cost", "ProgramCosts"),
    "trimaran.program.gradients": ("Compression",),
    "trimaran.program.plan_file": ("Plan", "read_plan", "write_plan"),
    "trimaran.program.strategy": ("Feeding", "Strategy"),
    "trimaran.program.types": ("Instruction", "Kind", "Program"),
    "trimaran.report.crossover": ("Crossover",),
    "trimaran.report.observation": ("Observation",),
    "trimaran.report.rehearsal": ("Rehearsal",),
    "trimaran.report.verification": ("Verification",),
    "trimaran.report.scaling": ("ScalingStudy",),
    "trimaran.runtime.data.orders": ("sample_order",),
    "trimaran.simulator.engine": ("simulate",),
}
_IMPORTED_WHEN_USED = {name: module for module, names in _MODULES.items() for name in names}

__all__ = ["__version__", *sorted(_IMPORTED_WHEN_USED)]


def __getattr__(name: str) -> Any:
    # These import torch; `import trimaran` and the command line's --help do not.
    if name in _IMPORTED_WHEN_USED:
        return getattr(import_module(_IMPORTED_WHEN_USED[name]), name)
    raise AttributeError(f"module 'trimaran' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
