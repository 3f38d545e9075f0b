"""`trimaran explain`: why this plan, why not another one, and what a change would give."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import Batch, Calibration, Devices, Execution, Json, Link, Memory, Objective, Oversubscribe
from trimaran.cli.output import console, errors_reported, print_json
from trimaran.cli.progress import progress_shown

Subject = Annotated[str, typer.Argument(metavar="PLAN|JOB", help="A plan file (.json), or a job.", show_default=False)]
WhyNot = Annotated[
    list[str] | None,
    typer.Option(
        "--why-not",
        help='Compare with the best of a kind: "pp", "dp2", "compiled", "one device", "pp2-gpipe-m4". Repeatable.',
        show_default=False,
    ),
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        help='Try a change: "link=10Gb/s", "link=x2", "latency=0", "wire=x0.5", "interference=0", "compute=x2", '
        '"load=0", "memory=8GiB", "devices=4". Repeatable.  [default: a list of them]',
        show_default=False,
    ),
]


def explain(
    subject: Subject,
    why_not: WhyNot = None,
    what_if: WhatIf = None,
    devices: Devices = None,
    batch: Batch = None,
    memory: Memory = None,
    oversubscribe: Oversubscribe = False,
    link: Link = None,
    objective: Objective = None,
    execution: Execution = "any",
    calibration: Calibration = None,
    as_json: Json = False,
) -> None:
    """Say why a plan is what it is, what it was chosen over, and what would help."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.explanation_document import explanation_document
        from trimaran.cli.explanation_views import print_explanation
        from trimaran.program import read_plan
        from trimaran.session.explaining import explain_plan
        from trimaran.session.jobs import JobSource
        from trimaran.session.request import parse_request

        path = Path(subject) if subject.endswith(".json") and not subject.startswith("hf:") else None
        reference = subject if path is None else read_plan(path).job
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
            explained = explain_plan(
                JobSource(reference=reference, global_batch_size=batch),
                request,
                path=path,
                why_not=why_not or (),
                what_if=what_if or (),
                progress=progress,
            )
        if as_json:
            print_json(explanation_document(explained))
        else:
            print_explanation(console(), explained)
