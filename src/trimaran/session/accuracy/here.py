"""`trimaran plan JOB --objective time` on this machine: a search at each batch, then the choice among all of them."""

import dataclasses
from collections.abc import Sequence

from trimaran.cluster.detect import detect_cluster
from trimaran.errors import InfeasibleError
from trimaran.planner.accuracy.grid import contender_of
from trimaran.planner.accuracy.types import Contender
from trimaran.planner.compressing import offered
from trimaran.program import program_lines
from trimaran.program.types import Execution
from trimaran.session.accuracy.concluding import batches_to_try, batches_within, conclude, goal_of
from trimaran.session.accuracy.curves import find_job_curve, has_own_data
from trimaran.session.accuracy.following import planned_training, source_as_planned
from trimaran.session.accuracy.request import NO_TARGET
from trimaran.session.accuracy.types import Outlook
from trimaran.session.choosing import microbatch_sizes
from trimaran.session.jobs import JobSource
from trimaran.session.measuring import measure_job
from trimaran.session.planned import Planned, Progress
from trimaran.session.preparing import Prepared, prepare
from trimaran.session.request import PlanRequest
from trimaran.session.rows import candidate_rows, predict
from trimaran.session.single_batch import plan_at_batch


def plan_for_target(source: JobSource, request: PlanRequest, *, progress: Progress) -> Planned:
    """Find strategy, devices and batch that are best for reaching the target.

    Args:
        source: where the job comes from
        request: what to look for, within which limits
        progress: told what is being done

    Raises:
        InputError: the job or its curve is wrong, or more devices than there are
        InfeasibleError: nothing fits at any batch
    """
    asked = goal_of(request.objective, request.target)
    prepared = prepare(source, request, progress)
    samples = prepared.data.samples if has_own_data(source.reference) else None
    known = find_job_curve(prepared.job, source.reference, request.target, samples=samples)
    wanted = batches_to_try(
        prepared.job.global_batch_size,
        known,
        request.target,
        devices=prepared.cluster.size,
        fixed=source.global_batch_size is not None,
    )
    batches, left_out = batches_within(wanted, known)
    plain = dataclasses.replace(request, objective="throughput", target=NO_TARGET)
    _measure_all(source, prepared, batches, plain, progress)
    plans: dict[int, Planned] = {}
    contenders: list[Contender] = []
    for number, batch in enumerate(batches):
        progress(f"planning for batch {batch}", number, len(batches))
        job = dataclasses.replace(prepared.job, global_batch_size=batch)
        at_batch = dataclasses.replace(source, global_batch_size=batch)
        try:
            found = plan_at_batch(at_batch, plain, prepared=dataclasses.replace(prepared, job=job))
        except InfeasibleError as error:
            left_out.append((batch, error.message))
            continue
        plans[batch] = found
        contenders += [contender_of(one, batch) for one in (found.search.candidates if found.search else ())]
    outlook = conclude(
        contenders,
        asked=asked,
        known=known,
        request=request.target,
        batches=batches,
        left_out=left_out,
        node_devices=detect_cluster().size,
    )
    return _planned(plans[outlook.chosen.global_batch], outlook, source)


def _measure_all(
    source: JobSource, prepared: Prepared, batches: Sequence[int], request: PlanRequest, progress: Progress
) -> None:
    """Measure what all batches need in one go; each search then finds it."""
    if len(batches) < 2:
        return
    sizes = {
        size
        for batch in batches
        for size in microbatch_sizes(prepared.graph, devices=prepared.cluster.size, batch=batch, pins=request.pins)
    }
    executions: tuple[Execution, ...] = ("eager", "compiled") if request.execution == "compiled" else ("eager",)
    measure_job(
        source,
        prepared.graph,
        prepared.cluster,
        sizes,
        executions,
        prepared.calibrated,
        progress,
        compressions=offered(request.pins),
    )


def _planned(planned: Planned, outlook: Outlook, source: JobSource) -> Planned:
    """The plan at the chosen batch, with the strategy that was chosen over all batches."""
    chosen, found = outlook.chosen.contender.origin, planned.search
    search = None if found is None else dataclasses.replace(found, chosen=chosen)
    plan = dataclasses.replace(
        planned.plan,
        strategy=chosen.strategy,
        prediction=predict(chosen),
        objective=outlook.goal,
        candidates=() if search is None else tuple(candidate_rows(search)),
        program=program_lines(chosen.program),
        training=planned_training(outlook),
    )
    followed = source_as_planned(plan, source)
    return dataclasses.replace(
        planned,
        source=followed,
        job=followed.make(),
        plan=plan,
        chosen=chosen,
        search=search,
        outlook=outlook,
        warnings=(*planned.warnings, *outlook.warnings),
    )
