"""`trimaran plan JOB --cluster NAME --objective time`: strategies, batches and numbers of devices that are not here.

One graph and one table of estimated costs serve all batches. What is simulated is decided by bounds of the whole
choice (`planner/accuracy/searching.py`), so many batches take little longer than one.
"""

import dataclasses
from collections.abc import Mapping, Sequence

from trimaran.cluster.find import find_machine
from trimaran.planner import Search
from trimaran.planner.accuracy.batches import device_counts
from trimaran.planner.accuracy.grid import Grid, GridSearch, contender_of
from trimaran.planner.accuracy.searching import search_grid
from trimaran.planner.accuracy.types import Goal
from trimaran.planner.baselines import baseline_of, baselines_of
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import MODEL_ERROR, is_reference, pareto_front, simplicity
from trimaran.planner.problem import lack_of_memory
from trimaran.session.accuracy.concluding import batches_to_try, batches_within, conclude, goal_of
from trimaran.session.accuracy.curves import Known, find_job_curve, own_samples, training_at
from trimaran.session.cluster_planning.one_batch import one_device, plan_one_batch
from trimaran.session.cluster_planning.problem import machine_problems
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.cluster_planning.types import MachinePlan
from trimaran.session.jobs import resolve
from trimaran.session.planned import Progress

SEARCH_S = 15.0
"""What spreads a network over devices is looked at no longer than this, where the user says nothing [s]."""


def plan_there_for_target(reference: str, request: ClusterRequest, *, progress: Progress) -> MachinePlan:
    """Find strategy, devices and batch that are best for reaching the target.

    Args:
        reference: of the job
        request: what is asked
        progress: told what is being done

    Raises:
        InputError: no such job, machine or curve, or a curve of another task
        InfeasibleError: nothing fits at any batch
    """
    asked = goal_of(request.objective, request.target)
    job = resolve(reference)
    known = find_job_curve(job, reference, request.target, samples=own_samples(reference))
    if known.curve is None and not request.target.is_asked:
        return _by_throughput(plan_one_batch(reference, request, progress=progress), asked, known)
    progress("reading the job and the machine", 0, 0)
    devices = request.devices or find_machine(request.cluster).devices
    wanted = batches_to_try(
        request.batch or job.global_batch_size,
        known,
        request.target,
        devices=devices,
        fixed=request.batch is not None,
    )
    batches, too_large = batches_within(wanted, known)
    problems = machine_problems(reference, request, batches)
    progress("searching", 0, 0)
    grid = Grid(
        problems=problems,
        counts=device_counts(devices),
        weights=_weights(known, batches, asked),
        most_local_batch=request.target.most_local_batch,
        time_limit_s=SEARCH_S if request.time_limit_s is None else request.time_limit_s,
        by_cost=asked == "cost" and known.curve is not None,
    )
    found = search_grid(grid)
    machine = problems[batches[0]].cluster.machine
    outlook = conclude(
        found.contenders,
        asked=asked,
        known=known,
        request=request.target,
        batches=batches,
        left_out=[*too_large, *((batch, _why(found, batch)) for batch in batches if batch not in found.candidates)],
        price=machine.node.price if machine else None,
        node_devices=machine.node.devices if machine else 1,
        is_complete=found.is_complete,
    )
    batch = outlook.chosen.global_batch
    search = _search_at(grid, found, batch, outlook.chosen.contender.origin)
    alone = one_device(problems[batch])
    return MachinePlan(
        reference=reference,
        request=request,
        problem=problems[batch],
        search=search,
        one_device_s=alone.step_time_s,
        one_device_fits=not lack_of_memory(alone.peak_bytes, problems[batch]),
        outlook=outlook,
        notes=(*problems[batch].graph.notes, *outlook.warnings),
    )


def _by_throughput(plan: MachinePlan, asked: Goal, known: Known) -> MachinePlan:
    """An ordinary plan, where the time to the target is asked for and no curve says it."""
    machine, batch = plan.problem.cluster.machine, plan.problem.batch
    outlook = conclude(
        [contender_of(one, batch) for one in plan.search.candidates],
        asked=asked,
        known=known,
        request=plan.request.target,
        batches=(batch,),
        price=machine.node.price if machine else None,
        node_devices=machine.node.devices if machine else 1,
        chosen=contender_of(plan.chosen, batch),
    )
    return dataclasses.replace(plan, outlook=outlook, notes=(*plan.notes, *outlook.warnings))


def _weights(known: Known, batches: Sequence[int], asked: Goal) -> Mapping[int, float]:
    """What a step of each batch is multiplied by to compare them: updates to the target, or 1 over the batch."""
    trainings = {batch: None if asked == "throughput" else training_at(known, batch) for batch in batches}
    return {
        batch: 1.0 / batch if training is None else training.updates.amount for batch, training in trainings.items()
    }


def _why(found: GridSearch, batch: int) -> str:
    return next((one.reason for one in found.rejected.get(batch, ())), "beyond the limits")


def _search_at(grid: Grid, found: GridSearch, batch: int, chosen: Candidate) -> Search:
    """What was simulated at the chosen batch, as a search of that batch alone would say it."""
    problem = grid.problems[batch]
    candidates = sorted(found.candidates[batch], key=lambda one: (one.objective_s, simplicity(one.strategy)))
    rejected = found.rejected.get(batch, ())
    baselines = baselines_of(problem, candidates, rejected)
    told = {id(one.candidate) for one in baselines}
    return Search(
        candidates=tuple(candidates),
        chosen=chosen,
        baseline=baseline_of(candidates),
        rejected=tuple(sorted(rejected, key=lambda one: simplicity(one.strategy))),
        references=tuple(
            one for one in candidates if id(one) in told or is_reference(one.strategy, devices=problem.devices)
        ),
        pareto=pareto_front(candidates),
        baselines=baselines,
        bound_s=_bound(grid, found, batch) if found.is_complete and not grid.by_cost else 0.0,
        seconds=found.seconds,
        is_complete=found.is_complete,
    )


def _bound(grid: Grid, found: GridSearch, batch: int) -> float:
    """What no step at a batch takes less than [s]: nothing left out beats the best by more than the model's error."""
    best = min(grid.weights[other] * one.worth_s for other, those in found.candidates.items() for one in those)
    fastest = min(one.worth_s for one in found.candidates[batch])
    return min(fastest, best / grid.weights[batch] / (1.0 + MODEL_ERROR))
