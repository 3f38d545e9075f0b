"""`trimaran plan JOB --cluster NAME`: the best way to train a job on a machine of the catalog."""

import dataclasses
from dataclasses import dataclass

from trimaran.planner import Candidate, Search
from trimaran.planner.pins import NO_PINS
from trimaran.planner.problem import Problem, assess, lack_of_memory
from trimaran.program import Strategy
from trimaran.session.cluster_planning.divided import DividedPlan, plan_divided, shape_of
from trimaran.session.cluster_planning.problem import machine_problem
from trimaran.session.cluster_planning.reasons import placement_notes
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.cluster_planning.squeezing import search_within_memory
from trimaran.session.planning import Progress, ignore_progress


@dataclass(frozen=True, slots=True, kw_only=True)
class MachinePlan:
    """A plan for a machine that is not here, with what it was made from.

    Attributes:
        reference: of the job
        request: what was asked
        problem: what was searched
        search: what was found
        one_device_s: a step of one device with the whole batch at once, whether it fits or not [s]
        one_device_fits: it does
        notes: what the reader should know
    """

    reference: str
    request: ClusterRequest
    problem: Problem
    search: Search
    one_device_s: float
    one_device_fits: bool
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> Candidate:
        """The candidate to run."""
        return self.search.chosen

    @property
    def speedup(self) -> float:
        """Samples a second of the chosen strategy over those of one device that has the whole batch."""
        return self.one_device_s / self.chosen.step_time_s


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
        return plan_divided(reference, shape, request)
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
        notes=(*problem.graph.notes, *placement_notes(problem, found.chosen.strategy)),
    )


def one_device(problem: Problem) -> Candidate:
    """A step with the whole batch on one device, in one piece, whether it fits there or not."""
    return assess(Strategy(execution=problem.executions[0]), dataclasses.replace(problem, devices=1, pins=NO_PINS))
