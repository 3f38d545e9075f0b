"""`trimaran train`: plan if needed, run, and compare the measurement with the prediction."""

import os
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

from trimaran.base.outcome import note_limit
from trimaran.base.signals import exit_code, say, signal_name
from trimaran.cli.checkpoint import TrustPickle
from trimaran.cli.options import (
    AcceptInexact,
    Batch,
    CurveName,
    Json,
    PinOptions,
    PlanFile,
    Reference,
    RequestOptions,
    Runs,
    Seed,
    grouped,
    hang_seconds,
    option,
)
from trimaran.cli.output import console, errors_reported, print_json, progress_shown


@grouped
def train(
    job: Reference,
    asked: RequestOptions,
    pins: PinOptions,
    plan: PlanFile = None,
    epochs: Annotated[int | None, option("Passes over the data.", min=0)] = None,
    batch: Batch = None,
    seed: Seed = None,
    runs: Runs = None,
    curve: CurveName = None,
    gradient_noise: Annotated[
        bool,
        option("Observe the gradient noise scale: from which batch on more samples stop paying.", "--gradient-noise"),
    ] = False,
    accept_inexact: AcceptInexact = False,
    trial: Annotated[
        bool,
        option(
            "Before the training, take six steps and a restart in ranks that are thrown away, next to one process; "
            "compare gradients, weights, buffers and optimizer state, and stop if they differ.",
            "--trial/--no-trial",
        ),
    ] = True,
    verify: Annotated[
        int, option("What --trial does, which is on anyway; gone in the next release.", usual="", min=0, metavar="N")
    ] = 0,
    on_nan: Annotated[
        str,
        option(
            'Where the loss of a step is not a finite number: "stop", "skip" its update on every rank (10 such '
            'steps in a row still stop), or "rollback" to the last checkpoint and leave out the batches since.'
        ),
    ] = "stop",
    hang_timeout: Annotated[
        float | None,
        option(
            'End the run when a training step makes no progress for this long, such as "90" (seconds) or "10min", '
            'and say which rank holds the others up; "none": nobody looks, and a wait for another rank ends after 32 '
            "min.",
            usual="20 median steps, at least 30 s; 30 min in anything but a step",
            parser=hang_seconds,
            metavar="TIME",
        ),
    ] = None,
    callback_timeout: Annotated[
        float | None,
        option(
            "End the run when code of the job makes no progress for this long outside of a training step, such as a "
            'callback, or the making of a data set; "none": it may take as long as it takes.',
            usual="30 min",
            parser=hang_seconds,
            metavar="TIME",
        ),
    ] = None,
    save_every: Annotated[
        str | None,
        option(
            'Save the whole state of the training again and again: after "500" steps, or after "10min". The last '
            "two checkpoints stay.",
            metavar="STEPS|TIME",
        ),
    ] = None,
    max_restarts: Annotated[
        int,
        option(
            "Start the ranks again up to N times after one died, hung or raised, and go on from the last "
            "checkpoint; without a device that is lost for good, by a new plan for the others. Needs --save-every.",
            usual="",
            min=0,
            metavar="N",
        ),
    ] = 0,
    resume: Annotated[
        Path | None,
        option(
            "Go on from the newest checkpoint of a run, or from one checkpoint; by its plan, unless options ask "
            "for another one.",
            metavar="RUN",
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        option(
            "Begin from the weights in a file or folder: .safetensors, .pt, a Hugging Face folder, a run or a "
            "checkpoint, a directory of torch.distributed.checkpoint.",
            metavar="PATH",
        ),
    ] = None,
    with_optimizer: Annotated[
        bool,
        option(
            "With --weights: take the state of the optimizer too; hyperparameters are those of the job.",
            "--with-optimizer",
        ),
    ] = False,
    trust_pickle: TrustPickle = False,
    log: Annotated[
        str | None,
        option(
            'Write loss, metric, learning rate and step time to "tensorboard" (in the folder of the run), "wandb" or '
            '"mlflow", where that is installed.',
            metavar="TRACKER",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Train a job by the best plan, or by a given one; report predicted against measured."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views.plans import print_trained
        from trimaran.features.training.gradient_noise import obtain_observable_plan
        from trimaran.features.training.rank import TrainOptions, parse_saving
        from trimaran.features.training.run_record import check_runs, say_status
        from trimaran.features.training.train import (
            beginning,
            check_resumable,
            check_starts_ranks,
            check_weights,
            how_to_go_on,
            room_of,
            train_planned,
        )
        from trimaran.jobs.resolve import JobSource
        from trimaran.planning.answer.pages import print_plan
        from trimaran.planning.loaded_plans import check_runs_here
        from trimaran.planning.plan import obtain_plan
        from trimaran.planning.requests import parse_target
        from trimaran.program.json_files import to_plain
        from trimaran.program.strategy import Strategy

        # Before the plan, which may take long to make.
        check_starts_ranks(os.environ)
        source = JobSource(reference=job, epochs=epochs, global_batch_size=batch, seed=seed)
        begun = beginning(weights, optimizer=with_optimizer, trust_pickle=trust_pickle, resume=resume)
        options = TrainOptions(
            gradient_noise=gradient_noise,
            trial=trial or verify > 0,
            on_nan=on_nan,  # type: ignore[arg-type]  # checked below
            hang_timeout=hang_timeout,
            callback_timeout=callback_timeout,
            saving=None if save_every is None else parse_saving(save_every),
            resume=resume,
            max_restarts=max_restarts,
            weights=begun,
            log=log,
        )
        options.check()
        if callback_timeout is not None:
            note_limit(callback_timeout)
        if begun is not None:
            check_weights(begun, source)
        if resume is not None:
            before = check_resumable(resume, source)
            say_status(resume)
            # These two ask for no other plan.
            choosing = replace(asked, oversubscribe=False, calibration=None)
            if plan is None and choosing == RequestOptions() and pins == PinOptions() and curve is None:
                plan = before
        request = asked.read(pins, target=parse_target(curve=curve), accept_inexact=accept_inexact)
        if plan is not None:
            check_runs_here(plan)
        # Before the plan, which may take long to make, and before the model, which may too.
        check_runs(runs)
        check_runs(runs, room_of(source, saves=options.saving is not None))
        if request.pins.schedule == "pipedream":
            options.check_strategy(Strategy(pp=2, schedule="pipedream"))
        out = console()
        with progress_shown() as progress:
            obtain = obtain_observable_plan if gradient_noise else obtain_plan
            planned = obtain(source, request, path=plan, progress=progress)
        if not as_json:
            print_plan(out, planned)
        with progress_shown() as progress:
            trained = train_planned(planned, options, parent=runs, progress=progress)
        stopped = trained.stopped
        if as_json:
            how: dict[str, object] = {}
            if stopped is not None:
                how["stopped"] = asdict(stopped) | {"signal": signal_name(stopped.signal)}
            if trained.unwritten:
                how["unwritten"] = trained.unwritten
            print_json(to_plain(trained.report) | how)
        else:
            print_trained(out, trained)
            if stopped is None:
                out.print(_next(trained.run.shown), soft_wrap=True, markup=False)
        if stopped is not None:
            lost = f", and {trained.unwritten}" if trained.unwritten else ""
            say(f"trimaran: {stopped}{lost}\n{how_to_go_on(trained)}")
            raise SystemExit(exit_code(stopped.signal))


def _next(run: str) -> str:
    """What one does with a run: show it to others."""
    from trimaran.report.tables import next_text

    return next_text(["trimaran", "report", run])
