"""`trimaran train`: plan if needed, run, and compare the measurement with the prediction."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from trimaran.base.signals import exit_code, say, signal_name
from trimaran.cli.options import (
    AcceptInexact,
    Allow,
    Batch,
    Calibration,
    CompressionName,
    CurveName,
    Devices,
    Execution,
    Forbid,
    Json,
    Link,
    Memory,
    Objective,
    Oversubscribe,
    PlanFile,
    PowersgdSamples,
    Reference,
    Runs,
    Seed,
    StrategyName,
    Workers,
)
from trimaran.cli.output import console, errors_reported, print_json, progress_shown

Epochs = Annotated[int | None, typer.Option("--epochs", help="Passes over the data.", min=0, show_default=False)]

GradientNoise = Annotated[
    bool,
    typer.Option(
        "--gradient-noise", help="Observe the gradient noise scale: from which batch on more samples stop paying."
    ),
]

Verify = Annotated[
    int,
    typer.Option(
        "--verify",
        help="Also run the first N steps as one process, compare gradients, weights, buffers and optimizer state, and "
        "stop if they differ.",
        min=0,
        metavar="N",
        show_default=False,
    ),
]


SaveEvery = Annotated[
    str | None,
    typer.Option(
        "--save-every",
        help='Save the whole state of the training again and again: after "500" steps, or after "10min". The last two '
        "checkpoints stay.",
        metavar="STEPS|TIME",
        show_default=False,
    ),
]

Resume = Annotated[
    Path | None,
    typer.Option(
        "--resume",
        help="Go on from the newest checkpoint of a run, or from one checkpoint; by its plan, unless options ask for "
        "another one.",
        metavar="RUN",
        show_default=False,
    ),
]


def train(
    job: Reference,
    devices: Devices = None,
    plan: PlanFile = None,
    epochs: Epochs = None,
    batch: Batch = None,
    seed: Seed = None,
    memory: Memory = None,
    runs: Runs = None,
    oversubscribe: Oversubscribe = False,
    link: Link = None,
    objective: Objective = None,
    curve: CurveName = None,
    execution: Execution = "any",
    allow: Allow = None,
    forbid: Forbid = None,
    compression: CompressionName = None,
    powersgd_samples: PowersgdSamples = None,
    strategy: StrategyName = None,
    workers: Workers = None,
    calibration: Calibration = None,
    gradient_noise: GradientNoise = False,
    accept_inexact: AcceptInexact = False,
    verify: Verify = 0,
    save_every: SaveEvery = None,
    resume: Resume = None,
    as_json: Json = False,
) -> None:
    """Train a job by the best plan, or by a given one; report predicted against measured."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views.plans import print_plan, print_trained
        from trimaran.features.training.gradient_noise import obtain_observable_plan
        from trimaran.features.training.rank import parse_saving
        from trimaran.features.training.run_record import check_runs
        from trimaran.features.training.train import check_resumable, how_to_go_on, room_of, train_planned
        from trimaran.jobs.resolve import JobSource
        from trimaran.planner.pins import parse_pins
        from trimaran.planning.plan import obtain_plan
        from trimaran.planning.requests import parse_request, parse_target
        from trimaran.report.run_report import report_document

        source = JobSource(reference=job, epochs=epochs, global_batch_size=batch, seed=seed)
        saving = None if save_every is None else parse_saving(save_every)
        if resume is not None:
            before = check_resumable(resume, source)
            asked = (devices, memory, link, objective, curve, compression, powersgd_samples, strategy, workers)
            if plan is None and all(one is None for one in asked) and not (allow or forbid) and execution == "any":
                plan = before
        request = parse_request(
            devices=devices,
            memory=memory,
            oversubscribe=oversubscribe,
            link=link,
            objective=objective,
            execution=execution,
            calibration=calibration,
            pins=parse_pins(
                strategy=strategy,
                allow=allow or (),
                forbid=forbid or (),
                compression=compression,
                powersgd_samples=powersgd_samples,
                workers=workers,
            ),
            target=parse_target(curve=curve),
            accept_inexact=accept_inexact,
        )
        # Before the plan, which may take long to make, and before the model, which may too.
        check_runs(runs)
        check_runs(runs, room_of(source, saves=saving is not None))
        out = console()
        with progress_shown() as progress:
            obtain = obtain_observable_plan if gradient_noise else obtain_plan
            planned = obtain(source, request, path=plan, progress=progress)
        if not as_json:
            print_plan(out, planned)
        with progress_shown() as progress:
            trained = train_planned(
                planned,
                parent=runs,
                gradient_noise=gradient_noise,
                verify=verify,
                saving=saving,
                resume=resume,
                progress=progress,
            )
        stopped = trained.stopped
        if as_json:
            how = {} if stopped is None else {"stopped": asdict(stopped) | {"signal": signal_name(stopped.signal)}}
            print_json(report_document(trained.report) | how)
        else:
            print_trained(out, trained)
        if stopped is not None:
            say(f"trimaran: {stopped}\n{how_to_go_on(trained)}")
            raise SystemExit(exit_code(stopped.signal))
