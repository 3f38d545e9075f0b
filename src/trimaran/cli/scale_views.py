"""How a scaling study looks for people."""

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from trimaran.report.scaling.study import ScalingStudy
from trimaran.report.scaling.table import advice_lines, layer_lines, legend_lines, study_tables


def print_study(out: Console, study: ScalingStudy) -> None:
    """Print the tables, what the step waits for, what would help, and what the figures mean."""
    out.print(
        f"[bold]{escape(study.job)}[/] on {escape(study.cluster)} ({escape(study.device)}), {study.precision}, "
        f"{study.mode} scaling\n"
    )
    for table in study_tables(study):
        out.print(table, "")
    _print_list(out, "Layers whose gradients cannot hide", layer_lines(study))
    _print_list(out, "What would help", advice_lines(study.advice))
    for line in legend_lines(study):
        out.print(f"[dim]{escape(line)}[/]")


def _print_list(out: Console, title: str, lines: list[str]) -> None:
    if not lines:
        return
    out.print(f"[bold]{title}[/]")
    for line in lines:
        out.print(Padding(Text(line), (0, 0, 0, 2)))
    out.print()
