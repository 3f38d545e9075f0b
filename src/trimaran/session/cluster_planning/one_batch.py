"""The best way to train a job on a machine of the catalog at one batch: the planner's own search."""

import dataclasses

from trimaran.planner import Candidate
from trimaran.planner.pins import NO_PINS
from trimaran.planner.problem import Problem, assess, lack_of_memory
from trimaran.planner.worth import said_of_compression
from trimaran.program import Strategy
from trimaran.session.cluster_planning.problem import machine_problem
from trimaran.session.cluster_planning.reasons import placement_notes
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.cluster_planning.squeezing import search_within_memory
from trimaran.session.cluster_planning.types import MachinePlan
from trimaran.session.planned import Progress


def plan_one_batch(reference: str, request: ClusterRequest, *, progress: Progress) -> MachinePlan:
    """Find the best way to train a job at the batch that is asked for, or its own.

    Args:
        reference: of the job
        request: what is asked
        progress: told what is being done

    Raises:
        InputError: no such job or machine, or more devices than there are
        InfeasibleError: nothing fits
    """
    problem = machine_problem(reference, request)
    progress("searching", 0, 0)
    problem, found = search_within_memory(reference, problem, request)
    alone = one_device(problem)
    return MachinePlan(
        reference=reference,
        request=request,
        problem=problem,
        search=found,
        one_device_s=alone.step_time_s,
        one_device_fits=not lack_of_memory(alone.peak_bytes, problem),
        notes=(
            *problem.graph.notes,
            *placement_notes(problem, found.chosen.strategy),
            *filter(None, [said_of_compression(found, request.pins)]),
        ),
    )


def one_device(problem: Problem) -> Candidate:
    """A step with the whole batch on one device, in one piece, whether it fits there or not."""
    return assess(Strategy(execution=problem.executions[0]), dataclasses.replace(problem, devices=1, pins=NO_PINS))
