"""`trimaran plan JOB --cluster NAME`: the best way to train a job on a machine of the catalog."""

from trimaran.session.cluster_planning.divided import DividedPlan, plan_divided, shape_of
from trimaran.session.cluster_planning.divided_for_target import plan_divided_for_target
from trimaran.session.cluster_planning.for_target import plan_there_for_target
from trimaran.session.cluster_planning.one_batch import one_device, plan_one_batch
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.cluster_planning.types import MachinePlan
from trimaran.session.planned import Progress, ignore_progress

__all__ = ["MachinePlan", "one_device", "plan_on_machine"]


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
