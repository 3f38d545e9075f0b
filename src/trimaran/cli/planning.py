"""What `trimaran plan` does on this machine, and for one that is not here."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from trimaran.cli.lines import print_lines
from trimaran.cli.output import console, print_json
from trimaran.cli.progress import progress_shown
from trimaran.cli.views import plan_document, print_plan
from trimaran.errors import InputError
from trimaran.program import write_plan
from trimaran.session.jobs import JobSource
from trimaran.session.planning import Planned, plan_job
from trimaran.session.request import PlanRequest

if TYPE_CHECKING:
    from trimaran.session.cluster_planning import ClusterRequest


def plan_here(
    job: str, request: PlanRequest, *, batch: int | None, seed: int | None, output: Path | None, as_json: bool
) -> Planned | None:
    """Plan for this machine and print what was considered.

    Args:
        job: reference of the job
        request: what to look for
        batch: samples of one update; None: the job's
        seed: None: the job's
        output: where the plan goes; None: nowhere
        as_json: print a document

    Returns:
        The plan; None where everything is printed.
    """
    with progress_shown() as progress:
        planned = plan_job(JobSource(reference=job, global_batch_size=batch, seed=seed), request, progress=progress)
    if output is not None:
        write_plan(output, planned.plan)
    if as_json:
        print_json(plan_document(planned))
        return None
    print_plan(console(), planned)
    return planned


def plan_there(
    job: str,
    cluster: str,
    request: PlanRequest,
    *,
    batch: int | None,
    precision: str | None,
    software: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Plan for a machine of the catalog and print what was considered; nothing is measured, and nothing can be run.

    Args:
        job: reference of the job
        cluster: name of the machine
        request: what to look for
        batch: samples of one update; None: the job's
        precision: in which is computed; None: fp32
        software: framework and year; None: PyTorch of today
        output: where the plan goes; None: nowhere
        as_json: print a document

    Raises:
        InputError: an option that means nothing there
    """
    from trimaran.report.machine_plans import machine_plan_lines
    from trimaran.session.cluster_planning import machine_plan_document, plan_on_machine, write_machine_plan

    asked = request_there(cluster, request, batch=batch, precision=precision, software=software)
    with progress_shown() as progress:
        found = plan_on_machine(job, asked, progress=progress)
    if output is not None:
        write_machine_plan(output, found)
    if as_json:
        print_json(machine_plan_document(found))
        return
    print_lines(console(), machine_plan_lines(machine_plan_document(found)))


def request_there(
    cluster: str, request: PlanRequest, *, batch: int | None, precision: str | None, software: str | None
) -> "ClusterRequest":
    """What is asked of a machine of the catalog.

    Args:
        cluster: name of the machine
        request: what to look for
        batch: samples of one update; None: the job's
        precision: in which is computed; None: fp32
        software: framework and year; None: PyTorch of today

    Raises:
        InputError: an option that means nothing there
    """
    from trimaran.session.cluster_planning import ClusterRequest
    from trimaran.session.scaling.requests import parse_software

    lost = [name for name in ("link", "calibration") if getattr(request, name) is not None]
    if lost:
        raise InputError(
            f"--{lost[0]} is for plans of this machine and means nothing with --cluster: leave it out", option=lost[0]
        )
    if request.pins.workers is not None:
        raise InputError(
            "--workers is for plans of this machine and means nothing with --cluster, where data are taken to be "
            "there: leave it out",
            option="workers",
        )
    asked = ClusterRequest(
        cluster=cluster,
        devices=request.devices,
        batch=batch,
        pins=request.pins,
        precision=precision or "float32",
        execution=request.execution,
        memory_bytes=request.memory_bytes,
        time_limit_s=request.time_limit_s,
        gap=request.gap,
        objective=request.objective,
        target=request.target,
    )
    return asked if software is None else replace(asked, software=parse_software(software))
