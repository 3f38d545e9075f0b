"""A measurement of convergence for people."""

import math

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from trimaran.costs.convergence import Curve
from trimaran.report.converging.types import ConvergedBatch, Convergence
from trimaran.units import format_seconds


def convergence_view(found: Convergence) -> RenderableType:
    """A measurement for people, complete at 80 columns."""
    table, fit = found.curve.table, found.curve.fit
    shown = Table("batch", "epochs", "±", "fitted", "runs", "best", "noise Bcrit", box=box.SIMPLE_HEAD, padding=(0, 1))
    for column in shown.columns:
        column.justify = "right"
    for one in found.batches:
        shown.add_row(*_cells(found.curve, one))
    lines = [
        f"Epochs of {found.job} to {found.target:g} ({found.target_source})",
        _rate_line(found),
    ]
    after = [
        f"E(B) = {fit.e0:.3g} · (1 + B / {_count(fit.b_crit)}) epochs of {table.samples_per_epoch} samples, "
        f"rms {fit.rms:.1%}",
        f"Bcrit {_count(fit.b_crit)}, 90 %: {_count(fit.b_crit_interval[0])} to {_count(fit.b_crit_interval[1])}",
    ]
    if found.noise is not None:
        noise = found.noise
        ratio = "" if noise.ratio is None else f", {noise.ratio:.2f} × the fitted one"
        after.append(
            f"Bcrit by gradient noise {_count(noise.b_crit)}{ratio}; single runs {_count(noise.low)} to "
            f"{_count(noise.high)}" + (f"; {noise.endless} of {noise.runs} show no signal" if noise.endless else "")
        )
    kept = f", {found.kept} kept from before" if found.kept else ""
    ended = sum(len(one.runs) for one in found.batches)
    after.append(f"{ended} runs{kept}; {format_seconds(found.seconds)} on {_devices(found.devices)}")
    notes = [Text(f"note: {text}") for text in found.warnings]
    files = [
        Text(f"curve  {found.curve_file}", overflow="fold"),
        Text(f"runs   {found.run_dir}", overflow="fold"),
        Text(f"Next: trimaran plan {found.job} --objective time --curve {found.curve_file}", overflow="fold"),
    ]
    return Group(*map(Text, lines), shown, *map(Text, after), *notes, *files)


def _cells(curve: Curve, one: ConvergedBatch) -> list[str]:
    point = next((point for point in curve.table.points if point.global_batch == one.global_batch), None)
    found = sorted(value for run in one.runs if (value := run.noise_b_crit) is not None)
    return [
        str(one.global_batch),
        "–" if point is None else f"{point.amount:.2f}",
        "–" if point is None or point.deviation is None else f"{point.deviation:.2f}",
        f"{curve.fit.e0 * (1 + one.global_batch / curve.fit.b_crit):.2f}",
        f"{len(one.needed)} of {len(one.runs) + one.missing}",
        "–" if one.best is None else f"{one.best:.4g}",
        _count(found[len(found) // 2]) if found else "–",
    ]


def _rate_line(found: Convergence) -> str:
    recipe = found.curve.table.recipe
    if recipe is None:
        return ""
    held = ", held where it would fall" if recipe.schedule == "hold" else ""
    return (
        f"Learning rate: {recipe.rule} from batch {recipe.base_batch} ({found.rule_source}), schedule by samples{held}"
    )


def _devices(count: int) -> str:
    return "one device" if count == 1 else f"{count} devices"


def _count(value: float) -> str:
    return "∞" if math.isinf(value) else f"{value:.3g}" if value < 1000 else f"{value:.0f}"
