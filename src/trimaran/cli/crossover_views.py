"""How a crossover looks for people."""

from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.text import Text

from trimaran.report.crossover.lines import crossing_table, head_lines, legend_lines, reason_lines, summary_table
from trimaran.report.crossover.study import Crossover


def print_crossover(out: Console, found: Crossover) -> None:
    """Print the summary, the best ways on each number of devices, the reasons, and what the figures mean."""
    out.print(
        f"[bold]{escape(found.job)}[/] on {escape(found.cluster)} ({escape(found.device)}), {escape(found.precision)}"
    )
    for line in head_lines(found):
        out.print(f"[dim]{escape(line)}[/]")
    out.print("", summary_table(found), "")
    for crossing in found.crossings:
        if crossing.rows and (found.curve is not None or crossing.basis == "ours"):
            out.print(crossing_table(crossing, is_known=found.curve is not None), "")
    out.print("[bold]Why[/]")
    for line in reason_lines(found):
        text = line.lstrip()
        out.print(Padding(Text(text), (0, 0, 0, 2 + len(line) - len(text))))
    out.print()
    for line in legend_lines(found):
        out.print(f"[dim]{escape(line)}[/]")
