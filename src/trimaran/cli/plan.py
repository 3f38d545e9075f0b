"""`trimaran plan`: the best way to train a job here, and what it was chosen over."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import (
    Batch,
    Calibration,
    Devices,
    Execution,
    Json,
    Link,
    Memory,
    Objective,
    Oversubscribe,
    Reference,
    Seed,
)
from trimaran.cli.output import console, errors_reported, print_json
from trimaran.cli.progress import progress_shown

Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan to this file.", show_default=False)]


def plan(
    job: Reference,
    devices: Devices = None,
    memory: Memory = None,
    batch: Batch = None,
    seed: Seed = None,
    output: Output = None,
    oversubscribe: Oversubscribe = False,
    link: Link = None,
    objective: Objective = "throughput",
    execution: Execution = "any",
    calibration: Calibration = None,
    as_json: Json = False,
) -> None:
    """Find the fastest way to train a job that fits; print what was considered."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views import plan_document, print_plan
        from trimaran.program import write_plan
        from trimaran.session.jobs import JobSource
        from trimaran.session.planning import plan_job
        from trimaran.session.request import parse_request

        source = JobSource(reference=job, global_batch_size=batch, seed=seed)
        request = parse_request(
            devices=devices,
            memory=memory,
            oversubscribe=oversubscribe,
            link=link,
            objective=objective,
            execution=execution,
            calibration=calibration,
        )
        with progress_shown() as progress:
            planned = plan_job(source, request, progress=progress)
        if output is not None:
            write_plan(output, planned.plan)
        if as_json:
            print_json(plan_document(planned))
            return
        out = console()
        print_plan(out, planned)
        held = ["--link", link.replace(" ", "")] if link else []
        command = "trimaran train " + " ".join([job, *(["--plan", str(output)] if output else []), *held])
        out.print(f"Next: {command}")
