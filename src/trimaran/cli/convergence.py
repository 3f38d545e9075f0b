"""How much training a batch needs: `trimaran catalog curve` of runs, `trimaran crossover --measure` by training.

`crossover` says from how many devices on a hybrid reaches a target before data parallelism does.
"""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import (
    CurveName,
    Devices,
    Json,
    MachineName,
    MachineSoftware,
    Plot,
    PrecisionName,
    Reference,
    Runs,
    SequenceTokens,
    note_cluster,
    option,
    with_sequence,
)
from trimaran.cli.output import (
    check_plot,
    console,
    errors_reported,
    print_document,
    progress_shown,
    write_plot,
)


def curve(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[TABLE|NAME]",
            help="A CSV table (global_batch and epochs, samples or steps; optional run), a curve file, or a name of "
            "--list.",
        ),
    ] = None,
    at: Annotated[str | None, option('Say what these batches need: "512,4096", or "512..4096".')] = None,
    plot: Plot = None,
    output: Annotated[
        Path | None, option("Write a curve file (.toml or .json) that plans take.", "--output", "-o")
    ] = None,
    network: Annotated[str | None, option("Job that the curve holds for, kept in the curve file.")] = None,
    samples_per_epoch: Annotated[
        int | None, option("Of the training data, where the table does not say.", min=1)
    ] = None,
    list_names: Annotated[bool, option("List the curves of the catalog.", "--list")] = False,
    as_json: Json = False,
) -> None:
    """Fit a convergence curve: training that each global batch needs, with intervals, and how far to trust it."""
    with errors_reported(as_json=as_json):
        from trimaran.base.errors import InputError
        from trimaran.convergence.files import write_curve
        from trimaran.planning.requests import parse_counts
        from trimaran.program.json_files import to_plain
        from trimaran.report.convergence_curve import (
            catalog_page,
            curve_named,
            curve_page,
            job_of,
            study_catalog,
            study_curve,
        )
        from trimaran.report.page.terminal import print_page
        from trimaran.report.tables import print_next

        out = console()
        if list_names or name is None:
            if any(given is not None for given in (name, at, plot, output, network, samples_per_epoch)):
                raise InputError("name a table or a curve; --list stands alone")
            catalog = study_catalog()
            if as_json:
                print_document(to_plain(catalog))
            else:
                print_page(out, catalog_page(catalog))
                print_next(out, ["trimaran", "curve", catalog.curves[0].name], "to show one, such as")
            return
        check_plot(plot)
        batches = () if at is None else parse_counts(at, what="batches")
        found = curve_named(name, network=network, samples_per_epoch=samples_per_epoch)
        study = study_curve(name, found, batches)
        if output is not None:
            write_curve(output, found.table)
        write_plot(plot, study)
        if as_json:
            print_document(to_plain(study))
        else:
            from trimaran.cli.following import following

            known = job_of(study)
            print_page(out, curve_page(study))
            there = {"cluster": "dgx-a100", "objective": "time", "curve": str(output or name)}
            words = following("plan", known or "JOB", without=("--output",), **there)
            print_next(out, words, "" if known else "with your job in place of JOB")


def converge(
    job: Reference,
    batches: Annotated[
        str | None,
        option(
            'Global batches, such as "32,64,…,1024" or "32..1024".', usual="a quarter of the job's to eight times it"
        ),
    ] = None,
    target: Annotated[
        str | None,
        option("Value of the metric that is to be reached.", usual="the job's; else 99 % of what it reaches by itself"),
    ] = None,
    repeats: Annotated[int, option("Runs of each batch, each of another seed.", min=1)] = 3,
    rule: Annotated[
        str | None,
        option(
            "Learning rate over that of the job's batch: linear, sqrt, constant, or FILE.py:function of the ratio.",
            "--lr-rule",
            usual="sqrt for Adam and its kin, else linear",
            metavar="RULE",
        ),
    ] = None,
    warmup: Annotated[
        float, option("Epochs over which the rate goes from the job's to that of the rule.", min=0.0)
    ] = 1.0,
    schedule: Annotated[
        str, option('The job\'s own schedule, by samples: "job" as it is, "hold" without its decay.')
    ] = "hold",
    max_epochs: Annotated[
        float | None, option("A run that has not arrived by then stops.", usual="four times the job's")
    ] = None,
    time_limit: Annotated[str | None, option('Of the whole command, such as "10min"; finished runs are kept.')] = None,
    evaluations: Annotated[int, option("Most evaluations of an epoch.", min=1)] = 4,
    devices: Devices = None,
    microbatch: Annotated[
        int | None, option("Samples that a device takes at once.", usual="the job's batch", min=1)
    ] = None,
    output: Annotated[
        Path | None, option("The curve file, .json or .toml.", "--output", "-o", usual="curve.json next to the runs")
    ] = None,
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
        from trimaran.program.json_files import to_plain
        from trimaran.report.convergence_runs import converge_page

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
            print_document(to_plain(converged))
        else:
            from trimaran.cli.following import following
            from trimaran.report.page.terminal import print_page
            from trimaran.report.tables import print_next

            out = console()
            print_page(out, converge_page(converged))
            # Options of plan that are called so mean something else.
            other = ("--batches", "--schedule", "--time-limit", "--output")
            print_next(out, following("plan", without=other, objective="time", curve=converged.curve_file))


def crossover(
    job: Reference,
    cluster: MachineName,
    devices: Annotated[
        str | None,
        option(
            'Numbers of devices: "8..1024" in doublings, or "64,96,128".',
            usual='8..1024, on as many nodes as that takes; of "NAME:N" as far as its nodes have them',
        ),
    ] = None,
    widths: Annotated[str, option("Devices of a worker of the hybrid.")] = "2,4,8",
    curve: CurveName = None,
    local_batch: Annotated[int | None, option("Samples of a worker in paper mode.", usual="the job's")] = None,
    precision: PrecisionName = None,
    sequence: SequenceTokens = None,
    software: MachineSoftware = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Find from how many devices on model parallelism inside workers beats more replicas, and why."""
    with errors_reported(as_json=as_json):
        from trimaran.features.crossover.find import find_crossover
        from trimaran.planning.requests import parse_counts
        from trimaran.program.json_files import to_plain

        check_plot(plot)
        with progress_shown() as progress:
            found = find_crossover(
                with_sequence(job, sequence),
                cluster=cluster,
                devices=None if devices is None else parse_counts(devices, what="devices"),
                widths=parse_counts(widths, what="widths"),
                curve=curve,
                local_batch=local_batch,
                precision=precision,
                software=software,
                progress=progress,
            )
        note_cluster(cluster, cluster)
        write_plot(plot, found)
        if as_json:
            print_document(to_plain(found))
        else:
            from trimaran.cli.following import following
            from trimaran.report.crossover import crossover_page
            from trimaran.report.page.terminal import print_page
            from trimaran.report.tables import print_next

            out = console()
            print_page(out, crossover_page(found), on_a_screen=True)
            if found.curve is None:
                print_next(out, ["trimaran", "curve", "--list"], "for the names of curves")
            else:
                name = curve or found.curve.name
                print_next(out, following("plan", devices=max(found.devices), curve=name, objective="time"))
