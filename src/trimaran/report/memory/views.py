"""A memory estimate for people: lines and tables, readable at 80 columns and without colour."""

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from trimaran.report.framing import frame_table
from trimaran.report.memory.estimate import LargestBatch, MemoryEstimate, PolicyFigures, StorageLine, Usage
from trimaran.report.memory.split import SplitFigures
from trimaran.units import format_bytes, format_seconds

_NAMES = {"ours": "trimaran", "none": "none", "all": "vDNN all", "conv": "vDNN conv", "dyn": "vDNN dyn"}


def budget_line(estimate: MemoryEstimate) -> str:
    """Where the budget comes from."""
    budget = format_bytes(estimate.budget_bytes)
    if estimate.card_bytes is None:
        peak_bytes = estimate.keep.peak_bytes
        share = estimate.budget_bytes / peak_bytes if peak_bytes else 0.0
        return f"budget {budget}, {100 * share:.0f} % of what autograd alone needs"
    context = format_bytes(estimate.context_bytes)
    return f"budget {budget}: a card of {format_bytes(estimate.card_bytes)} less {context} for its context"


def summary_table(estimate: MemoryEstimate) -> Table:
    """Peak, mean and time: without help, at the floor, under the plan, at the limit."""
    table = frame_table("")
    split = estimate.split
    table.add_column("", no_wrap=split is None)
    for title in ("peak", "mean", "step", "slower"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    plan = estimate.plan
    keep = "fits as it is" if estimate.fits_without_help else "does not fit"
    table.add_row("everything kept", *_sizes(estimate.keep), format_seconds(estimate.kept_s), "", keep)
    fits = f"{estimate.ratio_to_limit:.3f} × the limit" if plan.fits else "does not fit"
    name = Text("the plan" if split is None else f"the plan, {split.name}")
    table.add_row(name, *_sizes(plan.usage), format_seconds(plan.step_time_s), slower(plan.slowdown), fits)
    limit = max(0.0, estimate.bound_s / estimate.kept_s - 1) if estimate.kept_s else 0.0
    parts = "" if split is None else ", in parts"
    table.add_row(f"the limit{parts}", "", "", format_seconds(estimate.bound_s), slower(limit), "no plan is faster")
    table.add_row(f"the floor{parts}", format_bytes(estimate.floor_bytes), "", "", "", "no plan needs less")
    if split is not None:
        table.add_row("the floor, whole", format_bytes(split.whole_floor_bytes), "", "", "", "without the split")
    return table


def explanation_lines(estimate: MemoryEstimate) -> list[str]:
    """What the floor holds, what the plan does, what decides, and which batches fit."""
    plan = estimate.plan
    held = ", ".join(
        f"{format_bytes(one.nbytes)} {f'{one.count} × ' if one.count > 1 else ''}{one.name or one.role}"
        for one in estimate.floor_held_by[:4]
    )
    lines = [
        "" if estimate.split is None else split_line(estimate.split),
        f"The floor is at {estimate.floor_at}: {held}." if held else "",
        f"The plan keeps {format_bytes(estimate.kept_bytes)} of what it could move, offloads "
        f"{format_bytes(plan.to_host_bytes)} and makes {format_bytes(plan.recomputed_bytes)} again "
        f"({format_seconds(plan.recompute_s)}); {_waiting(plan.stall_s)}.",
        f"What decides: {estimate.decides}" if estimate.decides else "",
        "" if estimate.largest_batch is None else batch_line(estimate.largest_batch),
    ]
    return [line for line in lines if line]


def split_line(split: SplitFigures) -> str:
    """What a split is, and what is of it."""
    return (
        f"Split: {split.name}; the plan, its floor and its limit are of the step in parts, all else is of the whole "
        f"step. In parts with everything kept it would need {format_bytes(split.keep_peak_bytes)} and "
        f"{format_seconds(split.kept_s)}."
    )


def _waiting(seconds: float) -> str:
    return f"operations wait {format_seconds(seconds)} for copies" if seconds else "operations never wait for copies"


def batch_line(batches: LargestBatch) -> str:
    """The most samples that fit."""
    text = f"Largest batch: {batches.without_help} without help, {batches.with_plan} with a plan"
    if batches.with_plan:
        text += f" at most {100 * batches.slowdown_limit:g} % slower ({slower(batches.slowdown)} by plan)"
    return f"{text}, {batches.at_floor} at any price."


def policy_table(estimate: MemoryEstimate) -> Table:
    """The paper's policies and ours, one line each."""
    table = frame_table("Policies", "w/o: without weights, gradients and optimizer state   * the plan")
    table.add_column("", no_wrap=True)
    table.add_column("policy", no_wrap=True)
    for title in ("peak", "mean", "mean w/o", "slower", "to host", "again"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("fits", no_wrap=True)
    for line in estimate.policies:
        table.add_row(
            "*" if line.name == estimate.policy else "",
            _NAMES.get(line.name, line.name),
            *_sizes(line.usage),
            format_bytes(line.usage.bare_mean_bytes),
            slower(line.slowdown),
            format_bytes(line.to_host_bytes) if line.to_host_bytes else "–",
            format_bytes(line.recomputed_bytes) if line.recomputed_bytes else "–",
            "yes" if line.fits else "no",
            style="bold" if line.name == estimate.policy else None,
        )
    return table


def policy_notes(policies: Sequence[PolicyFigures]) -> list[str]:
    """What else there is to say of policies."""
    return [f"{_NAMES.get(line.name, line.name)}: {line.note}" for line in policies if line.note]


def storage_table(lines: Sequence[StorageLine]) -> Table:
    """What becomes of each storage, and why."""
    table = frame_table("Storages")
    table.add_column("", justify="right", no_wrap=True)
    table.add_column("made by", max_width=26, overflow="ellipsis", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("becomes", no_wrap=True)
    table.add_column("why")
    for line in lines:
        table.add_row(str(line.number), line.module or line.role, format_bytes(line.nbytes), line.decision, line.reason)
    return table


def slower(share: float) -> str:
    """A slowdown as people read it.

    Example:
        >>> slower(0.0071), slower(0.19), slower(0.0)
        ('+0.7 %', '+19 %', '+0.0 %')
    """
    return f"{100 * share:+.{1 if abs(share) < 0.0995 else 0}f} %"


def _sizes(usage: Usage) -> tuple[str, str]:
    return format_bytes(usage.peak_bytes), format_bytes(usage.mean_bytes)
