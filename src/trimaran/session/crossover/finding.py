"""`trimaran crossover JOB`: from how many devices on a hybrid reaches the target before data parallelism alone."""

from typing import TYPE_CHECKING

from trimaran.report.crossover.study import Basis, Crossover, UsedCurve
from trimaran.session.cluster_planning.request import ClusterRequest
from trimaran.session.crossover.crossing import Case, cross
from trimaran.session.crossover.demand import Demand
from trimaran.session.crossover.replicas import Replicas
from trimaran.session.crossover.request import CrossoverRequest, check_request, machine_for
from trimaran.session.crossover.workers import Workers, check_size
from trimaran.session.jobs import resolve
from trimaran.session.planning import Progress, ignore_progress

if TYPE_CHECKING:
    from trimaran.costs.convergence import Curve

BASES: tuple[Basis, ...] = ("paper", "ours")


def find_crossover(reference: str, request: CrossoverRequest, *, progress: Progress = ignore_progress) -> Crossover:
    """Each width of workers against data parallelism, on the study's basis and on ours.

    Args:
        reference: of the job
        request: what is asked
        progress: told what is being done

    Raises:
        InputError: an unknown job, machine or curve, a curve of another task, or too few devices
    """
    check_request(request)
    cluster, machine = machine_for(request.cluster, max(request.devices))
    job = resolve(reference)
    name = request.curve or getattr(job, "curve", None)
    curve = None if name is None else _curve(name, reference)
    base = request.local_batch or job.global_batch_size
    asked = ClusterRequest(
        cluster=cluster, precision=request.precision, software=request.software, options=request.options
    )
    check_size(reference, asked, max(request.widths))
    workers = Workers(reference, asked, base)
    case = Case(
        asked=tuple(sorted(set(request.devices))),
        base=base,
        replicas=Replicas(reference, request, machine),
        workers=workers,
        demand=Demand(None if curve is None else curve[0]),
    )
    crossings = []
    for place, width in enumerate(request.widths):
        progress(f"workers of {width} devices", place, len(request.widths))
        crossings += [cross(case, width, basis) for basis in BASES]
    used = None if curve is None or name is None else _used(name, case, *curve)
    return Crossover(
        job=reference,
        cluster=cluster,
        device=machine.node.device.title,
        precision=request.precision,
        software=f"{request.software.framework} of {request.software.year:.0f}",
        local_batch=base,
        counts=case.asked,
        curve=used,
        crossings=tuple(crossings),
        notes=_notes(request, cluster, case, used),
    )


def _curve(name: str, reference: str) -> "tuple[Curve, tuple[str, ...]]":
    from trimaran.costs.convergence import check_task, find_curve

    curve = find_curve(name)
    return curve, check_task(curve, reference)


def _used(name: str, case: Case, curve: "Curve", warnings: tuple[str, ...]) -> UsedCurve:
    table = curve.table
    beyond = curve.need(case.base * max(case.asked)).warnings
    return UsedCurve(
        name=name,
        task=table.task,
        source=table.source,
        unit=table.unit,
        range=curve.range,
        projection=table.projection,
        warnings=tuple(dict.fromkeys((*warnings, *beyond))),
    )


def _notes(request: CrossoverRequest, cluster: str, case: Case, used: UsedCurve | None) -> tuple[str, ...]:
    found = []
    if cluster != request.cluster:
        found.append(f'"{request.cluster}" has fewer devices than were asked for: {cluster} is taken')
    if used is None:
        found.append("no curve: what would have to hold is said, and when it holds is not (--curve NAME|FILE)")
    elif used.projection:
        found.append("the curve is a study's projection, not a measurement")
    if not case.replicas.fits(case.base):
        found.append(f"no device holds a step of {case.base} samples: paper mode reckons as if one did")
    return (*found, *case.workers.notes.values())
