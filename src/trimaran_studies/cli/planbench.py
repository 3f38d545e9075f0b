"""PlanBench: scores predictions and choices of plans on everything published, in one table."""

from pathlib import Path
from typing import Annotated

from trimaran.cli.options import Json, option
from trimaran.cli.output import console, errors_reported, print_json, progress_shown

Data = Annotated[
    list[Path] | None,
    option("A CSV file of measurements; may be repeated.", usual="rows that come with Trimaran"),
]  # fmt: skip
Peers = Annotated[
    Path | None,
    option(
        "A folder with checkouts of calculon, SimuMax and llm-analysis at the commits that are compared.",
        "--peers",
        metavar="FOLDER",
    ),
]


def planbench(data: Data = None, peers: Peers = None, as_json: Json = False) -> None:
    """Score predictions and choices of plans of sharded transformers, in one table."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.following import following
        from trimaran.report.tables import print_next
        from trimaran_studies.validation.planbench import planbench as run
        from trimaran_studies.validation.planbench import planbench_document, planbench_tables, planbench_verdict

        with progress_shown() as progress:
            bench = run(tuple(data or ()), peers=peers, progress=progress)
        if as_json:
            print_json(planbench_document(bench))
            return
        out = console()
        out.print(planbench_verdict(bench), "", sep="\n", markup=False)
        for table in planbench_tables(bench):
            out.print(table, "", sep="\n")
        print_next(out, following("validate", family="mp_step_time", rows=True))
