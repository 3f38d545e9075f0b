"""`trimaran plan`: the best way to train a job here or on another machine, and what it was chosen over."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from trimaran.cli.options import (
    AcceptInexact,
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
    GlobalBatches,
    Json,
    Keep,
    LeastSaved,
    Link,
    Memory,
    Microbatches,
    MostLocalBatch,
    Nodes,
    Objective,
    Oversubscribe,
    PowersgdSamples,
    PrecisionName,
    PriceText,
    Reference,
    Replicas,
    Rows,
    SamplesPerEpoch,
    ScheduleOption,
    Seed,
    Shards,
    SoftwareName,
    StrategyName,
    TimeLimit,
    Workers,
    Zero,
)
from trimaran.cli.output import console, errors_reported

Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan to this file.", show_default=False)]


def plan(
    job: Reference,
    devices: Devices = None,
    cluster: ClusterName = None,
    memory: Memory = None,
    batch: Batch = None,
    seed: Seed = None,
    output: Output = None,
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
    nodes: Nodes = None,
    compression: CompressionName = None,
    powersgd_samples: PowersgdSamples = None,
    workers: Workers = None,
    time_limit: TimeLimit = None,
    gap: Gap = 0.0,
    precision: PrecisionName = None,
    software: SoftwareName = None,
    oversubscribe: Oversubscribe = False,
    link: Link = None,
    objective: Objective = None,
    curve: CurveName = None,
    batches: GlobalBatches = None,
    max_local_batch: MostLocalBatch = None,
    price: PriceText = None,
    least_saved: LeastSaved = 0.1,
    samples_per_epoch: SamplesPerEpoch = None,
    execution: Execution = "any",
    calibration: Calibration = None,
    accept_inexact: AcceptInexact = False,
    as_json: Json = False,
) -> None:
    """Find the fastest way to train a job that fits; print what was considered."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views.plans import show_plan
        from trimaran.jobs.resolve import JobSource
        from trimaran.planner.pins import parse_pins
        from trimaran.planning.requests import parse_request, parse_target

        pins = parse_pins(
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
            nodes=nodes,
            compression=compression,
            powersgd_samples=powersgd_samples,
            workers=workers,
        )
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
            pins=pins,
            time_limit_s=time_limit,
            gap=gap,
            target=parse_target(
                curve=curve,
                batches=batches,
                batch=batch,
                most_local_batch=max_local_batch,
                price=price,
                least_saved=least_saved,
                samples_per_epoch=samples_per_epoch,
            ),
            accept_inexact=accept_inexact,
        )
        planned = show_plan(JobSource(reference=job, seed=seed), request, output=output, as_json=as_json)
        if as_json or cluster is not None:
            return
        if planned.outlook is not None:
            # What a training to a target takes of the job is in the plan file.
            console().print(f"Next: {escape(_follow(job, output))}", soft_wrap=True)
            return
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
            **{"accept-inexact": accept_inexact},
        )
        if output is None and pins.names:
            accepted = ["--accept-inexact"] if accept_inexact else []
            options = [word for name in pins.names for word in name.split(" ", 1)]
            words = ["trimaran", "plan", job, *options, *accepted, "--output", "plan.json"]
            command = shlex.join(words)
        console().print(f"Next: {escape(command)}", soft_wrap=True)


def _follow(job: str, output: Path | None) -> str:
    if output is None:
        return "the same command with --output plan.json, then trimaran train with --plan plan.json"
    return shlex.join(["trimaran", "train", job, "--plan", str(output)])


# What a plan file says.
_DECIDED = frozenset({"devices", "objective", "execution"})


def next_command(job: str, output: Path | None, **options: str | int | Path | None) -> str:
    """The command that trains by a plan just made, for a shell.

    Args:
        job: reference of the job
        output: file of the plan; None: train will find the same one
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
