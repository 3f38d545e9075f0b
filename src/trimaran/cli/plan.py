"""`trimaran plan`: the best way to train a job here, and what it was chosen over."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

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
    objective: Objective = None,
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
        command = next_command(
            job,
            output,
            devices=devices,
            batch=batch,
            seed=seed,
            memory=memory,
            oversubscribe=oversubscribe,
            link=link,
            objective=objective,
            execution=None if execution == "any" else execution,
            calibration=calibration,
        )
        out.print(f"Next: {escape(command)}", soft_wrap=True)


# What a plan file says.
_DECIDED = frozenset({"devices", "objective", "execution"})


def next_command(job: str, output: Path | None, **options: str | int | Path | None) -> str:
    """The command that trains by a plan just made, for a shell.

    Args:
        job: reference of the job
        output: file of the plan; None: train will make the same one again
        options: of `trimaran train`, as they were given; None or False: not given

    Example:
        >>> next_command("digits", Path("plan.json"), devices=2, link="1 Gb/s", oversubscribe=True)
        "trimaran train digits --plan plan.json --link '1 Gb/s' --oversubscribe"
    """
    words = ["trimaran", "train", job, *(["--plan", str(output)] if output else [])]
    for name, value in options.items():
        if value is None or value is False or (output is not None and name in _DECIDED):
            continue
        words += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return shlex.join(words)
