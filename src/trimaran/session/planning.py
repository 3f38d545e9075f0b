"""From a job and a number of devices to a plan: capture, measure, search; or a plan from a file.

What was measured is kept, so that planning the same job again starts no process.
"""

from dataclasses import replace
from pathlib import Path

from trimaran.errors import InputError
from trimaran.session.accuracy.here import plan_for_target
from trimaran.session.jobs import JobSource
from trimaran.session.loading_plans import as_planned, load_plan
from trimaran.session.planned import Planned, Progress, ignore_progress
from trimaran.session.preparing import epoch_data, local_cluster
from trimaran.session.request import EVERYTHING, PlanRequest
from trimaran.session.single_batch import executions_of, plan_at_batch

__all__ = [
    "EVERYTHING",
    "Planned",
    "Progress",
    "as_planned",
    "epoch_data",
    "executions_of",
    "ignore_progress",
    "load_plan",
    "local_cluster",
    "obtain_plan",
    "plan_job",
]


def obtain_plan(
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    path: Path | None = None,
    progress: Progress = ignore_progress,
) -> Planned:
    """Make a plan, or read it where a file is given; see `plan_job` and `load_plan`.

    Raises:
        InputError: what `plan_job` and `load_plan` raise; a plan that is there, and a curve, batches,
            pins or an execution for another
    """
    if path is None:
        return plan_job(source, request, progress=progress)
    if request.target.is_asked:
        raise InputError(
            f"--curve and its options choose the batch of a new plan, and {path} is one already: leave --plan out, or "
            "make the plan with the curve (`trimaran plan --curve … -o`)",
            path=str(path),
        )
    decided = _for_new_plans(request)
    if decided:
        raise InputError(
            f"{', '.join(decided)}: for a new plan, and {path} is made already: leave --plan or that out, or make the "
            "plan with it (`trimaran plan … -o`)",
            code="plan.option-needs-new-plan",
            path=str(path),
        )
    return load_plan(path, source, request, progress=progress)


def _for_new_plans(request: PlanRequest) -> tuple[str, ...]:
    """The options that a plan from a file has no use for; its feeding may be decided anew (`feeding.fed_as_asked`)."""
    pins = request.pins
    forbid = tuple(kind for kind in pins.forbid if kind != "cache")
    found = replace(pins, workers=None, forbid=forbid).names
    if pins.powersgd_samples is not None:
        found += (f"--powersgd-samples {pins.powersgd_samples:g}",)
    return found if request.execution == "any" else (*found, f"--execution {request.execution}")


def plan_job(
    source: JobSource,
    request: PlanRequest = EVERYTHING,
    *,
    progress: Progress = ignore_progress,
) -> Planned:
    """Find the best way to train a job on this machine.

    The batch is the job's, unless a training to a target or a choice of batches is asked for.

    Args:
        source: where the job comes from
        request: what to look for, within which limits
        progress: told what is being done

    Raises:
        InputError: the job or its curve is wrong, or more devices than there are
        InfeasibleError: nothing fits
    """
    if request.asks_for_outlook:
        return plan_for_target(source, request, progress=progress)
    return plan_at_batch(source, request, progress=progress)
