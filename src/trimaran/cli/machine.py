"""This machine: `trimaran doctor` says what is here and what is missing, with --measure how noisy it is."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trimaran.base.errors import EnvironmentProblem
from trimaran.base.units import format_count
from trimaran.cli.options import Devices, Json, option
from trimaran.cli.output import console, errors_reported, print_json, progress_shown

if TYPE_CHECKING:
    from trimaran.features.doctor import Check

_SIGNS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}


def doctor(as_json: Json = False) -> None:
    """Say what is here, what is missing and what is exposed."""
    with errors_reported(as_json=as_json):
        from rich.markup import escape

        from trimaran.features.doctor import examine
        from trimaran.report.tables import frame_table, print_next

        checks = examine()
        missing = [check.name for check in checks if check.verdict == "missing"]
        if as_json:
            print_json({"ok": not missing, "checks": [dataclasses.asdict(check) for check in checks]})
            raise SystemExit(EnvironmentProblem.exit_code if missing else 0)
        out = console()
        out.print(f"{_verdict(checks, missing)}\n")
        table = frame_table(ruled=False)
        for check in checks:
            detail = f"{escape(check.detail)}\n[dim]{escape(check.advice)}[/]" if check.advice else escape(check.detail)
            table.add_row(_SIGNS[check.verdict], check.name, detail)
        out.print(table)
        out.print("[dim]ok: nothing to do; note: read it; missing: some or all commands fail without it[/]")
        advised = next((check.name for check in checks if check.name == "calibration" and check.verdict != "ok"), "")
        words = ["trimaran", "calibrate"] if advised else ["trimaran", "train", "digits"]
        print_next(out, words)
        if missing:
            raise EnvironmentProblem(f"missing: {', '.join(missing)}")


def _verdict(checks: "Sequence[Check]", missing: "Sequence[str]") -> str:
    """Whether Trimaran works here, and how many of the lines say something to read."""
    noted = sum(check.verdict == "note" for check in checks)
    if missing:
        return f"Not all of Trimaran works here yet: {', '.join(missing)} missing."
    return "Trimaran works here" + (f"; {format_count(noted, 'note')} to read." if noted else ".")


def calibrate(
    jobs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[JOB]...",
            help="Measure these jobs too, also where costs of them are kept; planning them then starts no process.",
        ),
    ] = None,
    devices: Devices = None,
    link: Annotated[
        list[str] | None, option('Measure the links under this rate limit too, such as "1Gb/s"; may be repeated.')
    ] = None,
    repeats: Annotated[int, option("Fresh runs of a small program that show the noise of repeated runs.", min=2)] = 5,
    output: Annotated[Path | None, option("Write the calibration to this file too.", "--output", "-o")] = None,
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
