"""`trimaran explain`: why this plan, why not another one, and what a change would give."""

from typing import Annotated

import typer

from trimaran.cli.options import (
    Allow,
    Batch,
    Calibration,
    ClusterName,
    CompressionName,
    CurveName,
    Devices,
    Execution,
    Forbid,
    Gap,
    Json,
    Keep,
    Link,
    Memory,
    Microbatches,
    Objective,
    Oversubscribe,
    PowersgdSamples,
    PrecisionName,
    Replicas,
    Rows,
    ScheduleOption,
    Shards,
    SoftwareName,
    StrategyName,
    Subject,
    TimeLimit,
    Workers,
    Zero,
)
from trimaran.cli.output import console, errors_reported, print_json, progress_shown

WhyNot = Annotated[
    list[str] | None,
    typer.Option(
        "--why-not",
        help='Compare with the best of a kind: "pp", "dp2", "tp2", "fsdp", "placement", "compiled", "one device", '
        '"pp2-gpipe-m4"; for a transformer on many devices also "ddp", "tp8-pp4-zero1". Repeatable.',
        show_default=False,
    ),
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option(
        "--what-if",
        help='Try a change: "link=10Gb/s", "link=x2", "link=pcie3x16", "latency=0", "wire=x0.5", "interference=0", '
        '"compute=x2", "load=0", "memory=8GiB", "devices=4"; several at once with commas between them. Repeatable.  '
        "[default: a list of them]",
        show_default=False,
    ),
]


def explain(
    subject: Subject,
    why_not: WhyNot = None,
    what_if: WhatIf = None,
    devices: Devices = None,
    cluster: ClusterName = None,
    batch: Batch = None,
    allow: Allow = None,
    forbid: Forbid = None,
    keep: Keep = None,
    strategy: StrategyName = None,
    dp: Replicas = None,
    pp: Rows = None,
    tp: Shards = None,
    zero: Zero = None,
    microbatches: Microbatches = None,
    schedule: ScheduleOption = None,
    compression: CompressionName = None,
    powersgd_samples: PowersgdSamples = None,
    workers: Workers = None,
    time_limit: TimeLimit = None,
    gap: Gap = 0.0,
    precision: PrecisionName = None,
    software: SoftwareName = None,
    memory: Memory = None,
    oversubscribe: Oversubscribe = False,
    link: Link = None,
    objective: Objective = None,
    curve: CurveName = None,
    execution: Execution = "any",
    calibration: Calibration = None,
    as_json: Json = False,
) -> None:
    """Say why a plan is what it is, what it was chosen over, and what would help."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views.explanation import explanation_document, print_explanation
        from trimaran.jobs.resolve import JobSource
        from trimaran.planner.pins import parse_pins
        from trimaran.planning.explanation import explain_plan
        from trimaran.planning.requests import parse_request, parse_target
        from trimaran.program.plan import plan_path, read_plan

        path = plan_path(subject)
        reference = subject if path is None else read_plan(path).job
        request = parse_request(
            cluster=cluster,
            devices=devices,
            batch=batch,
            memory=memory,
            oversubscribe=oversubscribe,
            link=link,
            objective=objective,
            execution=execution,
            calibration=calibration,
            precision=precision,
            software=software,
            pins=parse_pins(
                keep=keep or (),
                forbid=forbid or (),
                allow=allow or (),
                strategy=strategy,
                dp=dp,
                pp=pp,
                tp=tp,
                zero=zero,
                microbatches=microbatches,
                schedule=schedule,
                compression=compression,
                powersgd_samples=powersgd_samples,
                workers=workers,
            ),
            time_limit_s=time_limit,
            gap=gap,
            target=parse_target(curve=curve),
        )
        with progress_shown() as progress:
            explained = explain_plan(
                JobSource(reference=reference),
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
