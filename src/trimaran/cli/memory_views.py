"""How a memory estimate looks for people."""

from rich.console import Console
from rich.markup import escape

from trimaran.report.memory.chart import chart_legend, memory_chart
from trimaran.report.memory.estimate import MemoryEstimate
from trimaran.report.memory.views import (
    budget_line,
    explanation_lines,
    policy_notes,
    policy_table,
    storage_table,
    summary_table,
)
from trimaran.units import format_seconds

_WIDEST = 120  # columns: a wider chart is no clearer


def print_estimate(out: Console, found: MemoryEstimate, *, chart: bool, storages: bool) -> None:
    """Print the estimate, and what was asked for beside it."""
    out.print(
        f"[bold]{escape(found.job)}[/], batch {found.batch}, on {escape(found.device)}, {found.precision}\n"
        f"{escape(budget_line(found))}\n"
    )
    out.print(summary_table(found), "")
    for line in explanation_lines(found):
        out.print(escape(line))
    if chart:
        legend = chart_legend(found.curve, split=found.split is not None)
        out.print("\n[bold]Live bytes over the step[/]", f"[dim]{legend}[/]", sep="\n" if found.split else "   ")
        width = min(out.width, _WIDEST)
        out.print(escape(memory_chart(found.curve, budget_bytes=found.budget_bytes, width=width)), soft_wrap=True)
    out.print("", policy_table(found))
    for note in policy_notes(found.policies):
        out.print(f"[dim]{escape(note)}[/]")
    if storages:
        out.print("", storage_table(found.storages))
    out.print(
        f"\n[dim]Times are {escape(found.source)}. Traced in {format_seconds(found.trace_s)}, "
        f"planned in {format_seconds(found.planning_s)}.[/]"
    )
