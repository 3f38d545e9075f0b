"""`trimaran crossover`: from how many devices on a hybrid reaches the target before data parallelism alone."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import Json
from trimaran.cli.output import console, errors_reported, print_json
from trimaran.cli.progress import progress_shown

Reference = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="A network such as inception_v3, a built-in job, file.py:factory, or a Hugging Face config.json.",
        show_default=False,
    ),
]
ClusterName = Annotated[
    str,
    typer.Option(
        "--cluster",
        help='A machine (see `trimaran clusters`), such as "dgx1-v100": as many nodes as are needed.',
        show_default=False,
    ),
]
Counts = Annotated[str, typer.Option("--devices", help='Numbers of devices: "8..1024" in doublings, or "64,96,128".')]
Widths = Annotated[str, typer.Option("--widths", help="Devices of a worker of the hybrid.")]
CurveName = Annotated[
    str | None,
    typer.Option(
        "--curve",
        help="Convergence curve: a name (see `trimaran curve --list`) or a file.  [default: the job's own]",
        show_default=False,
    ),
]
LocalBatch = Annotated[
    int | None,
    typer.Option("--local-batch", help="Samples of a worker in paper mode.  [default: the job's]", show_default=False),
]
PrecisionName = Annotated[str, typer.Option("--precision", help='"float32", "tf32", "bfloat16" or "float16".')]
SoftwareName = Annotated[
    str | None,
    typer.Option("--software", help='Framework and year, such as "pytorch:2020".', show_default=False),
]
Plot = Annotated[Path | None, typer.Option("--plot", help="Draw it into this SVG file.", show_default=False)]


def crossover(
    job: Reference,
    cluster: ClusterName,
    devices: Counts = "8..1024",
    widths: Widths = "2,4,8",
    curve: CurveName = None,
    local_batch: LocalBatch = None,
    precision: PrecisionName = "float32",
    software: SoftwareName = None,
    plot: Plot = None,
    as_json: Json = False,
) -> None:
    """Find from how many devices on model parallelism inside workers beats more replicas, and why."""
    with errors_reported(as_json=as_json):
        from trimaran.costs.software import Software
        from trimaran.report.crossover.document import crossover_document
        from trimaran.session.crossover import CrossoverRequest, find_crossover
        from trimaran.session.scaling.requests import parse_counts, parse_software

        request = CrossoverRequest(
            cluster=cluster,
            devices=parse_counts(devices, what="devices"),
            widths=parse_counts(widths, what="widths"),
            curve=curve,
            local_batch=local_batch,
            precision=precision,
            software=Software() if software is None else parse_software(software),
        )
        with progress_shown() as progress:
            found = find_crossover(job, request, progress=progress)
        if plot is not None:
            from trimaran.report.crossover.plot import write_plot

            write_plot(plot, found)
        if as_json:
            print_json(crossover_document(found))
        else:
            from trimaran.cli.crossover_views import print_crossover

            print_crossover(console(), found)
