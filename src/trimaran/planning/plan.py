"""From a job and a number of devices to a plan: capture, measure, search; or a plan from a file.

What was measured is kept, so that planning the same job again starts no process.
"""

from dataclasses import replace
from pathlib import Path

from trimaran.base.errors import InputError
from trimaran.base.progress import Progress, ignore_progress
from trimaran.jobs.resolve import JobSource
from trimaran.planning.closed_form import DividedPlan, plan_divided, plan_divided_for_target, shape_of
from trimaran.planning.estimated import one_device, plan_one_batch, plan_there_for_target
from trimaran.planning.measured import executions_of, plan_at_batch, plan_for_target
from trimaran.planning.plan_files import as_planned, load_plan
from trimaran.planning.preparation import epoch_data, local_cluster
from trimaran.planning.requests import EVERYTHING, ClusterRequest, PlanRequest
from trimaran.planning.results import MachinePlan, Planned

__all__ = [
    "EVERYTHING",
    "MachinePlan",
    "Planned",
    "Progress",
    "as_planned",
    "epoch_data",
    "executions_of",
    "ignore_progress",
    "load_plan",
    "local_cluster",
    "obtain_plan",
    "one_device",
    "plan_job",
    "plan_on_machine",
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


# ---------------------------------------------------------------------------------------------------------------------
# `trimaran plan JOB --cluster NAME`: the best way to train a job on a machine of the catalog


def plan_on_machine(
    reference: str, request: ClusterRequest, *, progress: Progress = ignore_progress
) -> MachinePlan | DividedPlan:
    """Find the best way to train a job on a machine of the catalog.

    A published decoder on very many devices, or with very many weights, is planned by closed forms (`divided.py`).

    Args:
        reference: of the job: a built-in name, a network, `file.py:factory`, a Hugging Face configuration
        request: what is asked
        progress: told what is being done

    Raises:
        InputError: no such job or machine, or more devices than there are
        InfeasibleError: nothing fits
    """
    progress("reading the job and the machine", 0, 0)
    shape = shape_of(reference, request)
    if shape is not None:
        progress("searching", 0, 0)
        if request.asks_for_outlook:
            return plan_divided_for_target(reference, shape, request)
        return plan_divided(reference, shape, request)
    if request.asks_for_outlook:
        return plan_there_for_target(reference, request, progress=progress)
    return plan_one_batch(reference, request, progress=progress)
