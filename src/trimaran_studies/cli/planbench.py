"""`trimaran planbench`: scores predictions and choices of plans on everything published, in one table."""

from pathlib import Path
from typing import Annotated

import typer

from trimaran.cli.options import Json
from trimaran.cli.output import console, errors_reported, print_json, progress_shown

Data = Annotated[
    list[Path] | None,
    typer.Option(
        "--data", help="A CSV file of measurements; may be repeated.  [default: rows that come with Trimaran]",
        show_default=False,
    ),
]  # fmt: skip
Peers = Annotated[
    Path | None,
    typer.Option(
        "--peers",
        help="A folder with checkouts of calculon, SimuMax and llm-analysis at the commits that are compared.",
        show_default=False,
    ),
]


def planbench(data: Data = None, peers: Peers = None, as_json: Json = False) -> None:
    """Score predictions and choices of plans of sharded transformers, in one table."""
    with errors_reported(as_json=as_json):
        from trimaran_studies.validation.planbench import planbench as run
        from trimaran_studies.validation.planbench import planbench_document, planbench_lines, planbench_tables

        with progress_shown() as progress:
            bench = run(tuple(data or ()), peers=peers, progress=progress)
        if as_json:
            print_json(planbench_document(bench))
            return
        out = console()
        out.print(*planbench_tables(bench), sep="\n")
        out.print(*planbench_lines(bench), sep="\n")
