"""`trimaran plan`: the best way to train a job here or on another machine, and what it was chosen over."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from trimaran.cli.options import (
    AcceptInexact,
    Json,
    LoadingOptions,
    PinOptions,
    PlanOptions,
    Reference,
    Seed,
    TargetOptions,
    grouped,
)
from trimaran.cli.output import console, errors_reported

Output = Annotated[Path | None, typer.Option("--output", "-o", help="Write the plan to this file.", show_default=False)]


@grouped
def plan(
    job: Reference,
    asked: PlanOptions,
    pins: PinOptions,
    target: TargetOptions,
    loading: LoadingOptions,
    seed: Seed = None,
    output: Output = None,
    accept_inexact: AcceptInexact = False,
    as_json: Json = False,
) -> None:
    """Find the fastest way to train a job that fits; print what was considered."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views.plans import show_plan
        from trimaran.jobs.resolve import JobSource
        from trimaran.planning.requests import parse_target

        request = asked.read(
            pins,
            target=parse_target(batch=asked.batch, counts=asked.counts, **vars(target)),
            accept_inexact=accept_inexact,
            loading=loading.read(),
        )
        planned = show_plan(JobSource(reference=job, seed=seed), request, output=output, as_json=as_json)
        if as_json:
            return
        if not request.is_here:
            console().print(f"Next: {escape(_explain(job, asked, output))}", soft_wrap=True)
            return
        if planned.outlook is not None:
            # What a training to a target takes of the job is in the plan file.
            console().print(f"Next: {escape(_follow(job, output))}", soft_wrap=True)
            return
        command = next_command(
            job,
            output,
            devices=request.devices,
            batch=asked.batch,
            seed=seed,
            memory=asked.memory,
            oversubscribe=asked.oversubscribe,
            link=asked.link,
            objective=asked.objective,
            execution=None if asked.execution == "any" else asked.execution,
            calibration=asked.calibration,
            **{"accept-inexact": accept_inexact},
        )
        if output is None and request.pins.names:
            accepted = ["--accept-inexact"] if accept_inexact else []
            options = [word for name in request.pins.names for word in name.split(" ", 1)]
            words = ["trimaran", "plan", job, *options, *accepted, "--output", "plan.json"]
            command = shlex.join(words)
        console().print(f"Next: {escape(command)}", soft_wrap=True)


def _explain(job: str, asked: PlanOptions, output: Path | None) -> str:
    """The command that explains a plan of a target cluster, for a shell."""
    if output is not None:
        return shlex.join(["trimaran", "explain", str(output)])
    words = ["trimaran", "explain", job]
    for name in ("cluster", "devices", "batch", "precision"):
        value = getattr(asked, name)
        words += [] if value is None else [f"--{name}", str(value)]
    return shlex.join(words)


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
