"""`trimaran doctor`: is everything here?"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

from trimaran.base.errors import EnvironmentProblem
from trimaran.base.units import format_count
from trimaran.cli.options import Json
from trimaran.cli.output import console, errors_reported, print_json

if TYPE_CHECKING:
    from trimaran.features.doctor import Check

_SIGNS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}


def doctor(as_json: Json = False) -> None:
    """Say what is here, what is missing and what is exposed."""
    with errors_reported(as_json=as_json):
        from rich.markup import escape
        from rich.table import Table

        from trimaran.features.doctor import examine
        from trimaran.report.tables import print_next

        checks = examine()
        missing = [check.name for check in checks if check.verdict == "missing"]
        if as_json:
            print_json({"ok": not missing, "checks": [dataclasses.asdict(check) for check in checks]})
            raise SystemExit(EnvironmentProblem.exit_code if missing else 0)
        out = console()
        out.print(f"{_verdict(checks, missing)}\n")
        table = Table(box=None, show_header=False)
        for check in checks:
            detail = f"{escape(check.detail)}\n[dim]{escape(check.advice)}[/]" if check.advice else escape(check.detail)
            table.add_row(_SIGNS[check.verdict], check.name, detail)
        out.print(table)
        out.print("[dim]ok: nothing to do; note: read it; missing: Trimaran does not work without it[/]")
        advised = next((check.name for check in checks if check.name == "calibration" and check.verdict != "ok"), "")
        words = ["trimaran", "calibrate"] if advised else ["trimaran", "train", "digits"]
        print_next(out, words)
        if missing:
            raise EnvironmentProblem(f"missing: {', '.join(missing)}")


def _verdict(checks: "Sequence[Check]", missing: "Sequence[str]") -> str:
    """Whether Trimaran works here, and how many of the lines say something to read."""
    noted = sum(check.verdict == "note" for check in checks)
    if missing:
        return f"Trimaran does not work here yet: {', '.join(missing)} missing."
    return "Trimaran works here" + (f"; {format_count(noted, 'note')} to read." if noted else ".")
