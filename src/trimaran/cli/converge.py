"""`trimaran converge`: measure how much training each batch needs."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import Devices, Json, Reference, Runs
from trimaran.cli.output import console, errors_reported, print_json, progress_shown

Batches = Annotated[
    str | None,
    typer.Option(
        "--batches",
        help='Global batches, such as "32,64,…,1024" or "32..1024".',
        show_default="a quarter of the job's to eight times it",
    ),
]
Target = Annotated[
    str | None,
    typer.Option(
        "--target",
        help="Value of the metric that is to be reached.",
        show_default="the job's; else 99 % of what it reaches by itself",
    ),
]
Repeats = Annotated[int, typer.Option("--repeats", help="Runs of each batch, each of another seed.", min=1)]
Rule = Annotated[
    str | None,
    typer.Option(
        "--lr-rule",
        metavar="RULE",
        help="Learning rate over that of the job's batch: linear, sqrt, constant, or FILE.py:function of the ratio.",
        show_default="sqrt for Adam and its kin, else linear",
    ),
]
Warmup = Annotated[
    float, typer.Option("--warmup", help="Epochs over which the rate goes from the job's to that of the rule.", min=0.0)
]
ScheduleName = Annotated[
    str,
    typer.Option("--schedule", help='The job\'s own schedule, by samples: "job" as it is, "hold" without its decay.'),
]
MaxEpochs = Annotated[
    float | None,
    typer.Option("--max-epochs", help="A run that has not arrived by then stops.", show_default="four times the job's"),
]
TimeLimit = Annotated[
    str | None,
    typer.Option("--time-limit", help='Of the whole command, such as "10min"; finished runs are kept.'),
]
Evaluations = Annotated[int, typer.Option("--evaluations", help="Most evaluations of an epoch.", min=1)]
Microbatch = Annotated[
    int | None,
    typer.Option("--microbatch", help="Samples that a device takes at once.", min=1, show_default="the job's batch"),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="The curve file, .json or .toml.", show_default="curve.json next to the runs"),
]


def converge(
    job: Reference,
    batches: Batches = None,
    target: Target = None,
    repeats: Repeats = 3,
    rule: Rule = None,
    warmup: Warmup = 1.0,
    schedule: ScheduleName = "hold",
    max_epochs: MaxEpochs = None,
    time_limit: TimeLimit = None,
    evaluations: Evaluations = 4,
    devices: Devices = None,
    microbatch: Microbatch = None,
    output: Output = None,
    runs: Runs = None,
    as_json: Json = False,
) -> None:
    """Train a job at several batches until it has learned enough; write the curve that plans take with --curve.

    Interrupted, the same command goes on.
    """
    with errors_reported(as_json=as_json):
        from trimaran.features.convergence.measure import converge_job
        from trimaran.features.convergence.request import ConvergeRequest, parse_target_value, parse_time_limit
        from trimaran.jobs.resolve import JobSource
        from trimaran.measure.convergence.batches import parse_batches
        from trimaran.report.convergence_runs import convergence_document, convergence_view

        request = ConvergeRequest(
            batches=None if batches is None else parse_batches(batches),
            target=None if target is None else parse_target_value(target),
            repeats=repeats,
            rule=rule,
            warmup_epochs=warmup,
            schedule=schedule,  # type: ignore[arg-type]  # the request refuses others
            max_epochs=max_epochs,
            time_limit_s=None if time_limit is None else parse_time_limit(time_limit),
            evaluations=evaluations,
            devices=devices,
            microbatch=microbatch,
            parent=runs,
        )
        with progress_shown() as progress:
            converged = converge_job(JobSource(reference=job), request, output=output, progress=progress)
        if as_json:
            print_json(convergence_document(converged))
        else:
            console().print(convergence_view(converged))
