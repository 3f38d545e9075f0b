"""`trimaran calibrate`: what this machine does, how sure that is, and how far identical runs are apart."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import Devices, Json
from trimaran.cli.output import console, errors_reported, print_json, progress_shown

Jobs = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[JOB]...", help="Measure these jobs too, so that planning them starts no process.", show_default=False
    ),
]
Links = Annotated[
    list[str] | None,
    typer.Option(
        "--link",
        help='Measure the links under this rate limit too, such as "1Gb/s"; may be repeated.',
        show_default=False,
    ),
]
Repeats = Annotated[
    int, typer.Option("--repeats", help="Fresh runs of a small program that show the noise of repeated runs.", min=2)
]
Output = Annotated[
    Path | None, typer.Option("--output", "-o", help="Write the calibration to this file too.", show_default=False)
]


def calibrate(
    jobs: Jobs = None,
    devices: Devices = None,
    link: Links = None,
    repeats: Repeats = 5,
    output: Output = None,
    as_json: Json = False,
) -> None:
    """Measure devices, links and the noise of repeated runs; keep them for plans and comparisons."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.views.calibration import calibration_document, print_calibration
        from trimaran.features.calibration import calibrate as measure
        from trimaran.jobs.resolve import JobSource
        from trimaran.planning.requests import parse_link

        with progress_shown() as progress:
            calibration = measure(
                jobs=tuple(JobSource(reference=job) for job in jobs or ()),
                devices=devices,
                links=tuple(parse_link(text) for text in link or ()),
                repeats=repeats,
                output=output,
                progress=progress,
            )
        if as_json:
            print_json(calibration_document(calibration))
            return
        print_calibration(console(), calibration, output=output)
