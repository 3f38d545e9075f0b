"""`trimaran check`: what a job does, and which kinds of plans train it exactly."""

from typing import Annotated

from trimaran.cli.options import Batch, Json, Reference, Seed, option
from trimaran.cli.output import console, errors_reported, print_json


def check(
    job: Reference,
    batch: Batch = None,
    seed: Seed = None,
    show_all: Annotated[bool, option("List what is usual, too.", "--all")] = False,
    as_json: Json = False,
) -> None:
    """Say in seconds which kinds of plans train a job exactly as one process does, and why others would not."""
    with errors_reported(as_json=as_json):
        from rich.table import Table
        from rich.text import Text

        from trimaran.base.units import format_seconds
        from trimaran.cli.following import following
        from trimaran.features.check import check_job
        from trimaran.jobs.resolve import JobSource
        from trimaran.report.tables import print_next

        checked = check_job(JobSource(reference=job, global_batch_size=batch, seed=seed))
        if as_json:
            print_json(checked.document)
            return
        out = console()
        exact = [one.kind for one in checked.kinds if one.exact]
        verdict = f"{checked.job}: {len(exact)} of {len(checked.kinds)} kinds of plans train it exactly."
        out.print(verdict, "", sep="\n", markup=False)
        kinds = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        if exact:
            kinds.add_row("exact", Text(", ".join(exact)))
        reasons: dict[tuple[bool, str], list[str]] = {}
        for one in checked.kinds:
            if not one.exact:
                reasons.setdefault((one.known, one.reason), []).append(one.kind)
        for (known, reason), of in reasons.items():
            kinds.add_row("refused" if known else "not known", Text(f"{', '.join(of)}\n{reason}"))
        out.print(kinds)
        out.print("[dim]exact: they train what one process with the whole batch trains[/]")
        seen = Table("looked at", "seen", box=None, padding=(0, 2, 0, 0))
        for row in checked.seen:
            if row.unusual or show_all:
                seen.add_row(row.what, Text(row.found))
        if seen.row_count:
            out.print()
            out.print(seen)
        more = "" if show_all else "; --all lists what is usual too"
        out.print(f"\nExamined in {format_seconds(checked.behaviour.seconds)}{more}.")
        if len(exact) < len(checked.kinds):
            out.print("What the verdicts mean, and what to do instead: docs/jobs.md")
        if exact:
            print_next(out, following("plan"))
