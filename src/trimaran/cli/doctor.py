"""`trimaran doctor`: is everything here?"""

import dataclasses

from trimaran.base.errors import EnvironmentProblem
from trimaran.cli.options import Json
from trimaran.cli.output import console, errors_reported, print_json

_SIGNS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "missing": "[red]missing[/]"}


def doctor(as_json: Json = False) -> None:
    """Say what is here, what is missing and what is exposed."""
    with errors_reported(as_json=as_json):
        from rich.table import Table

        from trimaran.features.doctor import examine

        checks = examine()
        missing = [check.name for check in checks if check.verdict == "missing"]
        if as_json:
            print_json({"ok": not missing, "checks": [dataclasses.asdict(check) for check in checks]})
            raise SystemExit(EnvironmentProblem.exit_code if missing else 0)
        table = Table(box=None, show_header=False)
        for check in checks:
            detail = f"{check.detail}\n[dim]{check.advice}[/]" if check.advice else check.detail
            table.add_row(_SIGNS[check.verdict], check.name, detail)
        console().print(table)
        if missing:
            raise EnvironmentProblem(f"missing: {', '.join(missing)}")
