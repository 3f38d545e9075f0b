"""`trimaran crossover`: from how many devices on a hybrid reaches the target before data parallelism alone."""

from typing import Annotated

import typer

from trimaran.cli.options import AnyReference, CurveName, Json, MachineName, MachineSoftware, Plot, PrecisionName
from trimaran.cli.output import check_plot, console, errors_reported, print_json, progress_shown

Counts = Annotated[
    str | None,
    typer.Option(
        "--devices",
        help='Numbers of devices: "8..1024" in doublings, or "64,96,128".',
        show_default="8..1024, as far as the cluster has them",
    ),
]
Widths = Annotated[str, typer.Option("--widths", help="Devices of a worker of the hybrid.")]
LocalBatch = Annotated[
    int | None,
    typer.Option("--local-batch", help="Samples of a worker in paper mode.  [default: the job's]", show_default=False),
]


def crossover(
    job: AnyReference,
    cluster: MachineName,
    devices: Counts = None,
    widths: Widths = "2,4,8",
    curve: CurveName = None,
    local_batch: LocalBatch = None,
    precision: PrecisionName = None,
    software: MachineSoftware = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Find from how many devices on model parallelism inside workers beats more replicas, and why."""
    with errors_reported(as_json=as_json):
        from trimaran.features.crossover.find import find_crossover
        from trimaran.planning.requests import parse_counts, parse_devices
        from trimaran.report.crossover import crossover_document

        check_plot(plot)
        with progress_shown() as progress:
            found = find_crossover(
                job,
                cluster=cluster,
                devices=parse_devices(devices, cluster=cluster, usual="8..1024"),
                widths=parse_counts(widths, what="widths"),
                curve=curve,
                local_batch=local_batch,
                precision=precision,
                software=software,
                progress=progress,
            )
        if plot is not None:
            from trimaran.report.crossover import plot as draw
            from trimaran.report.svg import write_drawing

            write_drawing(plot, draw(found))
        if as_json:
            print_json(crossover_document(found))
        else:
            from trimaran.report.crossover import print_crossover

            print_crossover(console(), found)
