"""How the explanation of a division looks to people: sentences, and tables readable at 80 columns."""

from collections.abc import Iterator
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trimaran.base.units import format_bytes, format_seconds
from trimaran.cli.views.plans import print_notes
from trimaran.planner.parallel_degrees.contrast import PARTS, Contrast, binding_part, parts_of
from trimaran.planner.parallel_degrees.document import degrees, division_name
from trimaran.planner.parallel_degrees.problem import DivisionSearch, PricedDivision, memory_limit
from trimaran.planning.explanation import DivisionPrice, ExplainedDivision
from trimaran.report.tables import frame_table

_MEANINGS = {
    "compute_s": "products, attention and the rest, on the slowest stage",
    "tensor_s": "in groups that share layers or sequences",
    "bubble_s": "the pipeline fills, drains and sends",
    "data_s": "of gradients and parameters, that nothing hides",
    "update_s": "the optimizer",
}


def print_division_explanation(out: Console, explained: ExplainedDivision) -> None:
    """Print why a transformer is divided as it is."""
    plan, found = explained.planned, explained.found
    chosen = found.chosen
    print_notes(out, plan.notes)
    out.print(
        f"[bold]{division_name(chosen.division)}[/] for {escape(plan.reference)}, global batch {found.task.batch}, "
        f"on {found.task.devices} of {escape(plan.request.cluster)}: {format_seconds(chosen.seconds)} a step "
        f"(90 %: {format_seconds(chosen.low)} to {format_seconds(chosen.high)}), "
        f"{100 * chosen.utilization:.0f} % of the devices' peak."
    )
    sentence = binding_part(chosen)
    out.print(f"{sentence[:1].upper()}{sentence[1:]}")
    limit = memory_limit(found.task)
    out.print(f"The fullest rank needs {format_bytes(chosen.memory.peak)}, of {format_bytes(int(limit))}.\n")
    if plan.outlook is not None:
        out.print(escape(f"Over all batches: {plan.outlook.rivals.reason}.\n"), soft_wrap=True)
    out.print(part_table(chosen))
    for entry in explained.prices:
        out.print(escape(_price(entry.pin, entry.without, entry.price)))
    out.print()
    out.print(rival_table(found))
    for baseline in found.baselines:
        if baseline.priced is None:
            out.print(f"[dim]no {escape(baseline.name)}: {escape(baseline.reason)}[/]")
    if found.rejected:
        counts = "; ".join(f"{reason} ({number})" for reason, number in found.rejected.items())
        out.print(f"[dim]not among them: {escape(counts)}[/]")
    for answer in explained.contrasts:
        out.print(f"\n[bold]Why not {escape(answer.asked)}?[/] {escape(answer.conclusion)}")
        if answer.other is not None and answer.other.division != chosen.division:
            out.print()
            out.print(contrast_table(chosen, answer, answer.other))


def part_table(priced: PricedDivision) -> Table:
    """The step of a division by part."""
    table = frame_table("What the step is made of", "closed forms of one step, whose parts sum to it")
    table.add_column("part")
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("share", justify="right", no_wrap=True)
    table.add_column("what it is")
    for part, seconds in sorted(parts_of(priced).items(), key=lambda entry: -entry[1]):
        if seconds > 0.0:
            share = f"{100 * seconds / priced.seconds:.1f} %"
            table.add_row(PARTS[part], format_seconds(seconds), share, _MEANINGS[part])
    return table


def rival_table(found: DivisionSearch) -> Table:
    """The next divisions, fastest first, and what others would run."""
    caption = "slower: than the plan\n90 %: interval of each step by itself"
    table = frame_table("Runners-up, and what others would run", caption)
    table.add_column("division")
    for title in ("step", "slower", "90 %", "memory"):
        table.add_column(title, justify="right", no_wrap=title != "90 %")
    for name, priced in _rivals(found):
        table.add_row(
            escape(name),
            format_seconds(priced.seconds),
            f"{100 * (priced.seconds / found.chosen.seconds - 1.0):+.1f} %",
            f"{format_seconds(priced.low)} to {format_seconds(priced.high)}",
            format_bytes(priced.memory.peak),
        )
    return table


def contrast_table(chosen: PricedDivision, answer: Contrast, other: PricedDivision) -> Table:
    """Two divisions part by part."""
    table = frame_table("Part by part", "the differences of the parts sum to that of the steps")
    table.add_column("part")
    for title in ("plan", answer.asked, "difference"):
        table.add_column(title, justify="right")
    theirs = parts_of(other)
    for part, mine_s in parts_of(chosen).items():
        if mine_s or theirs[part]:
            table.add_row(PARTS[part], *_compared(mine_s, theirs[part]))
    table.add_section()
    table.add_row("step", *_compared(chosen.seconds, other.seconds), style="bold")
    more = other.memory.peak - chosen.memory.peak
    table.add_row(
        "peak memory",
        format_bytes(chosen.memory.peak),
        format_bytes(other.memory.peak),
        ("+" if more >= 0 else "−") + format_bytes(abs(more)),
    )
    return table


def _rivals(found: DivisionSearch) -> Iterator[tuple[str, PricedDivision]]:
    for priced in found.runners_up:
        yield division_name(priced.division), priced
    for baseline in found.baselines:
        if baseline.priced is not None:
            yield f"{baseline.name}: {division_name(baseline.priced.division)}", baseline.priced


def _compared(mine_s: float, theirs_s: float) -> tuple[str, str, str]:
    more_s = theirs_s - mine_s
    sign = "" if not more_s else "+" if more_s > 0.0 else "−"
    return format_seconds(mine_s), format_seconds(theirs_s), f"{sign}{format_seconds(abs(more_s))}"


def _price(pin: str, without: PricedDivision | None, price: float) -> str:
    if without is None:
        return f"{pin}: nothing fits without it"
    cost = "costs nothing" if price <= 0.0 else f"costs {100 * price:.1f} %"
    return f"{pin} {cost}: without it {division_name(without.division)}, {format_seconds(without.seconds)}"


# ---------------------------------------------------------------------------------------------------------------------
# The explanation of a division as a JSON document: the keys of any explanation, as far as closed forms answer them


def division_explanation_document(explained: ExplainedDivision) -> dict[str, Any]:
    """An explanation, for programs."""
    plan, found = explained.planned, explained.found
    base_s = found.chosen.seconds
    return {
        "job": plan.reference,
        "cluster": plan.request.cluster,
        "global_batch_size": found.task.batch,
        "devices": found.task.devices,
        "objective": "throughput" if plan.outlook is None else plan.outlook.goal,
        "plan": _priced(found.chosen) | {"binding": binding_part(found.chosen)},
        "rivals": [_priced(rival) | {"slower": rival.seconds / base_s - 1.0} for rival in found.runners_up],
        "references": [
            {"role": one.name, "reason": one.reason} | ({} if one.priced is None else _priced(one.priced))
            for one in found.baselines
        ],
        "rejected_counts": dict(found.rejected),
        "pins": [_price_document(entry) for entry in explained.prices],
        "search": {
            "seconds": found.seconds,
            "gap": found.gap,
            "bound_s": found.bound_s,
            "is_complete": found.complete,
        },
        "why_not": [
            {
                "asked": answer.asked,
                "best": None if answer.other is None else _priced(answer.other),
                "conclusion": answer.conclusion,
            }
            for answer in explained.contrasts
        ],
        "notes": list(plan.notes),
    }


def _priced(priced: PricedDivision) -> dict[str, Any]:
    return {
        "strategy": division_name(priced.division),
        "degrees": dict(degrees(priced.division)),
        "step_time_s": priced.seconds,
        "interval_s": [priced.low, priced.high],
        "parts_s": {PARTS[part]: seconds for part, seconds in parts_of(priced).items()},
        "mfu": priced.utilization,
        "peak_bytes": [priced.memory.peak],
    }


def _price_document(entry: DivisionPrice) -> dict[str, Any]:
    return {
        "pin": entry.pin,
        "without": None if entry.without is None else division_name(entry.without.division),
        "without_step_time_s": None if entry.without is None else entry.without.seconds,
        "price": entry.price,
    }
