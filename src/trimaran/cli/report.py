"""`trimaran report`: a run, a plan or a study as one HTML file."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from trimaran.cli.options import Json, option
from trimaran.cli.output import console, errors_reported, print_json, progress_shown


def report(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="RUN|PLAN|STUDY",
            help="Folder of a run (trimaran train), a plan file, or what plan, scale, crossover, curve, converge, "
            "memory, rehearse or observe wrote with --json; a folder of such documents makes one report.",
        ),
    ],
    output: Annotated[Path, option("The HTML file.", "--output", "-o")] = Path("report.html"),
    simulate: Annotated[
        bool,
        option(
            "Simulate a plan that is not for a target cluster, too: this measures here, and may run the job's code.",
            "--simulate",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a run, a plan or a study as one HTML file that can be sent: under 2 MB, and it loads nothing.

    What the input does not know is left out, and the file says which command gives it.
    """
    with errors_reported(as_json=as_json):
        from dataclasses import asdict

        from trimaran.base.units import format_bytes
        from trimaran.features.report_page.make import report as write
        from trimaran.report.page.layout import by_way

        with progress_shown() as progress:
            found = write(path, output, simulate=simulate, progress=progress)
        if as_json:
            print_json(asdict(found) | {"path": str(found.path), "absent": [list(one) for one in found.absent]})
            return
        out = console()
        out.print(f"[bold]{escape(found.verdict)}[/]")
        out.print()
        out.print(f"{len(found.sections)} sections: {escape(', '.join(found.sections))}.")
        for title, how in by_way(found.absent):
            out.print(f"[dim]not in it: {escape(title)}; {escape(how)}[/]")
        out.print(f"{escape(str(found.path))} ({format_bytes(found.nbytes)}): open it in any browser", soft_wrap=True)
