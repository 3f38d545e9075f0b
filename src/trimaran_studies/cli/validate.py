"""`python -m trimaran_studies validate`: predicts published measurements and shows the errors."""

from pathlib import Path
from typing import Annotated, Literal

from trimaran.cli.options import Json, option
from trimaran.cli.output import console, errors_reported, print_json, progress_shown

Data = Annotated[
    list[Path] | None,
    option("A CSV file of measurements; may be repeated.", usual="rows that come with Trimaran"),
]  # fmt: skip
Family = Annotated[
    str | None,
    option(
        "Only these rows: single_gpu_time, dp_throughput, dp_step_time, mp_throughput, mp_step_time, "
        "collectives, memory, time_to_train; feeding: rows that differ only in their input pipeline; field: steps of "
        "public training runs, on which nothing is fitted."
    ),
]
AnchorOption = Annotated[
    Literal["single", "none"],
    option("single: start from the source's figure of one device where it has one; none: never."),
]
Sizes = Annotated[
    bool,
    option(
        "Also scale networks of known size only, from one device's figure; otherwise they are skipped.",
        "--sizes/--no-sizes",
    ),
]
Rows = Annotated[bool, option("Print every row.", "--rows")]


def validate(
    data: Data = None,
    family: Family = None,
    anchor: AnchorOption = "single",
    sizes: Sizes = False,
    rows: Rows = False,
    as_json: Json = False,
) -> None:
    """Predict published measurements and show the errors."""
    with errors_reported(as_json=as_json):
        from trimaran.cli.following import following
        from trimaran.report.tables import print_next
        from trimaran_studies.validation.measured_loaders import loader_lines
        from trimaran_studies.validation.regret import regret_document, regret_jobs, regret_lines, regret_table
        from trimaran_studies.validation.scores import (
            by_family,
            family_table,
            least_certain,
            rows_table,
            skipped_lines,
            validation_document,
            verdict,
            worst_table,
        )
        from trimaran_studies.validation.validate import ValidationRequest, scored
        from trimaran_studies.validation.validate import validate as run

        request = ValidationRequest(files=tuple(data or ()), family=family, anchor=anchor, sizes=sizes)
        with progress_shown() as progress:
            answers = run(request, progress=progress)
        found, jobs = [scored(answer) for answer in answers], regret_jobs(answers)
        if as_json:
            print_json(validation_document(found, anchor=anchor) | ({"regret": regret_document(jobs)} if jobs else {}))
            return
        out = console()
        out.print(verdict(found), "", sep="\n", markup=False)
        if rows:
            out.print(rows_table(found), "", sep="\n")
        for name, part in by_family(found).items():
            out.print(family_table(name, part))
            out.print(*skipped_lines(part), sep="\n", end="\n\n", markup=False)
        out.print(worst_table(found), "", sep="\n")
        if lines := loader_lines(found):
            out.print(*lines, sep="\n", end="\n\n", markup=False)
        if lines := regret_lines(jobs):
            out.print(regret_table(jobs))
            out.print(*lines, sep="\n", end="\n\n", markup=False)
        words = following("planbench")
        if not rows and (worst := least_certain(found)):
            words = following("validate", family=worst, rows=True)
        print_next(out, words)
