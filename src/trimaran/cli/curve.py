"""`trimaran curve`: how much training each global batch needs, from a table of runs or the catalog."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import Json, Plot
from trimaran.cli.output import check_plot, console, errors_reported, print_json

Name = Annotated[
    str | None,
    typer.Argument(
        metavar="[TABLE|NAME]",
        help="A CSV table (global_batch and epochs, samples or steps; optional run), a curve file, or a name of "
        "--list.",
        show_default=False,
    ),
]
At = Annotated[
    str | None,
    typer.Option("--at", help='Say what these batches need: "512,4096", or "512..4096".', show_default=False),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write a curve file (.toml or .json) that plans take.", show_default=False),
]
Network = Annotated[
    str | None,
    typer.Option("--network", help="Job that the curve holds for, kept in the curve file.", show_default=False),
]
SamplesPerEpoch = Annotated[
    int | None,
    typer.Option("--samples-per-epoch", help="Of the training data, where the table does not say.", min=1),
]
ListNames = Annotated[bool, typer.Option("--list", help="List the curves of the catalog.")]


def curve(
    name: Name = None,
    at: At = None,
    plot: Plot = None,
    output: Output = None,
    network: Network = None,
    samples_per_epoch: SamplesPerEpoch = None,
    list_names: ListNames = False,
    as_json: Json = False,
) -> None:
    """Fit a convergence curve: training that each global batch needs, with intervals, and how far to trust it."""
    with errors_reported(as_json=as_json):
        from trimaran.base.errors import InputError
        from trimaran.convergence.files import doubling_ratios, write_curve
        from trimaran.features.convergence.curve import study_catalog, study_curve
        from trimaran.planning.requests import parse_counts
        from trimaran.report import convergence_curve as curve_views
        from trimaran.report.convergence_curve import catalog_document, study_document

        if list_names or name is None:
            if any(given is not None for given in (name, at, plot, output, network, samples_per_epoch)):
                raise InputError("name a table or a curve; --list stands alone")
            studies, quality = study_catalog()
            if as_json:
                print_json(catalog_document(studies, quality, doubling_ratios()))
            else:
                curve_views.print_catalog(console(), studies, quality, doubling_ratios())
            return
        check_plot(plot)
        batches = () if at is None else parse_counts(at, what="batches")
        study = study_curve(name, batches, network=network, samples_per_epoch=samples_per_epoch)
        if output is not None:
            write_curve(output, study.curve.table)
        if plot is not None:
            from trimaran.report.convergence_curve import plot as draw
            from trimaran.report.svg import write_drawing

            write_drawing(plot, draw(study))
        if as_json:
            print_json(study_document(study))
        else:
            curve_views.print_curve(console(), study)
