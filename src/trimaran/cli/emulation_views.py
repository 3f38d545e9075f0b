"""What `trimaran emulate` prints."""

from typing import Any

from rich.console import Console

from trimaran.program.files import to_plain
from trimaran.report.files import comparison_document
from trimaran.report.tables import kind_table, rank_table
from trimaran.session.emulating import Emulated
from trimaran.units import format_seconds


def print_emulation(out: Console, found: Emulated) -> None:
    """Print the simulated step beside the emulated one, by rank and by kind of instruction."""
    out.print(rank_table(found.comparison))
    out.print(kind_table(found.comparison))
    out.print(
        f"[bold]{found.strategy.name}[/]: a step takes {format_seconds(found.predicted_s)} in simulation and "
        f"{format_seconds(found.measured_s)} with real messages ({found.error:+.1%})",
        soft_wrap=True,
    )


def emulation_document(found: Emulated) -> dict[str, Any]:
    """The same for programs."""
    return {
        "strategy": to_plain(found.strategy, defaults=False),
        "name": found.strategy.name,
        "devices": found.strategy.devices,
        "predicted_s": found.predicted_s,
        "measured_s": found.measured_s,
        "error": found.error,
        "steps": found.comparison.steps,
        **comparison_document(found.comparison),
    }
