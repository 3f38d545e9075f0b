"""`trimaran check`: what a job does, and which kinds of plans train it exactly."""

from typing import Annotated

import typer

from trimaran.cli.options import Batch, Json, Reference, Seed
from trimaran.cli.output import console, errors_reported, print_json

All = Annotated[bool, typer.Option("--all", help="List what is usual, too.")]


def check(job: Reference, batch: Batch = None, seed: Seed = None, show_all: All = False, as_json: Json = False) -> None:
    """Say in seconds which kinds of plans train a job exactly as one process does, and why others would not."""
    with errors_reported(as_json=as_json):
        from rich.table import Table

        from trimaran.session.checking import check_job
        from trimaran.session.jobs import JobSource
        from trimaran.units import format_seconds

        checked = check_job(JobSource(reference=job, global_batch_size=batch, seed=seed))
        if as_json:
            print_json(checked.document)
            return
        out = console()
        exact = [one.kind for one in checked.kinds if one.exact]
        out.print(f"{checked.job}: {len(exact)} of {len(checked.kinds)} kinds of plans train it exactly")
        kinds = Table("kind", "exact", "why not", box=None)
        told: dict[str, str] = {}
        for verdict in checked.kinds:
            first = told.setdefault(verdict.reason, verdict.kind)
            reason = verdict.reason if first == verdict.kind else f"as for {first}"
            kinds.add_row(verdict.kind, "yes" if verdict.exact else "no", "" if verdict.exact else reason)
        out.print(kinds)
        seen = Table("looked at", "seen", box=None)
        for row in checked.seen:
            if row.unusual or show_all:
                seen.add_row(row.what, row.found)
        if seen.row_count:
            out.print()
            out.print(seen)
        out.print(f"\nlooked for {format_seconds(checked.behaviour.seconds)}")
        if not show_all:
            out.print("what is usual: --all")
        out.print(f"Next: trimaran plan {checked.job}", soft_wrap=True, markup=False)
