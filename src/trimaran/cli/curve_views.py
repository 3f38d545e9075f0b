"""How convergence curves look to people."""

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from trimaran.costs.convergence.catalog import DoublingRatio
from trimaran.costs.convergence.quality import Quality
from trimaran.report.convergence.lines import (
    asked_table,
    catalog_table,
    fit_lines,
    points_table,
    quality_lines,
)
from trimaran.report.convergence.study import CurveStudy


def print_curve(out: Console, study: CurveStudy) -> None:
    """Print points, fit, what was asked, warnings, source."""
    table = study.curve.table
    out.print(f"[bold]{escape(study.name)}[/]: {escape(table.task)}\n")
    out.print(points_table(study))
    out.print("[dim]form, foretold: against what was measured; ! outside its 90 % interval[/]\n")
    for line in fit_lines(study):
        out.print(escape(line))
    if study.asked:
        out.print()
        out.print(asked_table(study))
    if study.warnings:
        out.print()
    for warning in study.warnings:
        out.print(f"[yellow]note:[/] {escape(warning)}")
    out.print(f"\n[dim]source: {escape(table.source)}[/]")


def print_catalog(
    out: Console, studies: Sequence[CurveStudy], quality: Quality, ratios: Sequence[DoublingRatio]
) -> None:
    """Print the catalog."""
    out.print(catalog_table(studies))
    out.print("[dim]left out: mean error of each point foretold by the others   * a study's projection[/]\n")
    out.print("All measured curves together:")
    for line in quality_lines(quality):
        out.print(f"  {escape(line)}")
    for ratio in ratios:
        out.print(f"\n{escape(ratio.name)} is no curve: twice the batch needs {ratio.ratio:g} times the epochs.")
    out.print("\nShow one: trimaran curve NAME. Your own: trimaran curve TABLE.csv.")
