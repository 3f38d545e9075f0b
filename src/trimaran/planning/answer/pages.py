"""A plan, its candidates and its simulated step as people read them: in a terminal, and printed by Python."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trimaran.base.precision import precision_words
from trimaran.base.units import format_bytes, format_count, format_seconds, format_some, format_span
from trimaran.machine.types import Link
from trimaran.measure.costs import name_link
from trimaran.planner.analytical.candidates import AnalyticalCandidate, AnalyticalModel
from trimaran.planner.choice import Option, shown, simplicity
from trimaran.planner.explanation.contrast import binding
from trimaran.planner.explanation.critical_path import INPUT_PIPELINE
from trimaran.planner.result import Search
from trimaran.planner.search import PinPrice
from trimaran.planner.space import Cause, Rejection
from trimaran.planning.answer.documents import (
    goal_of_plan,
    head_document,
    one_device_of,
    option_document,
    placement_document,
    shown_document,
)
from trimaran.planning.answer.evidence import Modelled, Simulated
from trimaran.program.json_files import to_plain
from trimaran.program.strategy import strategy_legend
from trimaran.report.breakdown import utilization
from trimaran.report.plans import (
    TARGET_ROWS,
    assumption_lines,
    load_lines,
    outlook_lines,
    run_lines,
    target_verdict,
    training_line,
)
from trimaran.report.tables import (
    add_figures,
    add_words,
    frame_table,
    number_in,
    shows_all,
    unit_of,
    utilization_table,
)

if TYPE_CHECKING:
    from trimaran.planning.answer.results import Planned

# ---------------------------------------------------------------------------------------------------------------------
# Sentences and tables of a page, in terminals and in files


def print_lines(out: Console, lines: Iterable[str | Table]) -> None:
    """Print sentences and tables, which fit the width of the page.

    Args:
        out: where to
        lines: in order; brackets in sentences are no markup
    """
    for line in lines:
        out.print(line, markup=False)


# ---------------------------------------------------------------------------------------------------------------------
# How results look: for people as tables, for programs as JSON documents


def print_plan(out: Console, planned: "Planned") -> None:
    """Print what was considered, what was chosen, and what the user should know, for this machine or another one.

    Args:
        out: where to
        planned: by whichever backend
    """
    evidence, found = planned.evidence, planned.evidence.search
    document = shown_document(planned)
    print_verdict(out, planned, document)
    out.print()
    if planned.outlook is not None and planned.outlook.chosen.run is not None:
        print_lines(out, run_lines(document))
    if found is not None:
        print_candidates(out, found, alone_s=None if planned.request.is_here else one_device_of(planned)[0])
        out.print()
        print_rule(out, found.rule(goal=goal_of_plan(planned.outlook)))
    if isinstance(evidence, Simulated):
        _print_places(out, evidence)
    if isinstance(evidence, Modelled):
        traffic = AnalyticalModel(problem=evidence.problem).traffic(evidence.chosen.strategy)
        if traffic:
            order = ", ".join(evidence.chosen.strategy.rank_order)
            out.print(escape(f"ranks by {order}: {'; '.join(map(str, traffic))}"))
        print_lines(out, load_lines(document))
    if planned.outlook is not None:
        most = None if shows_all(out) else TARGET_ROWS
        print_lines(out, outlook_lines(document, most=most))
    elif evidence.plan.training is not None:
        # Of a plan just made the table has it.
        out.print(escape(training_line(to_plain(evidence.plan.training))))
    if found is not None and planned.outlook is None:
        print_prices(out, evidence.prices)
        _print_missing_baselines(out, found)
        out.print(f"[dim]{escape(_search_line(found))}[/]")
    print_notes(out, planned.notes)


def print_verdict(out: Console, planned: "Planned", document: Mapping[str, Any]) -> None:
    """Print a plan in a sentence, its bottleneck in another one, for what it is, what it assumes and what is simpler.

    Of a training the time or the cost comes first.

    Args:
        out: where to
        planned: by whichever backend
        document: of it
    """
    if planned.outlook is not None:
        out.print(f"[bold]{escape(target_verdict(document))}[/]")
    out.print(f"{plan_sentence(planned)}.")
    if sentence := binding(planned.chosen):
        out.print(escape(sentence[:1].upper() + sentence[1:]))
    out.print(f"[dim]Global batch {planned.global_batch_size}{_where(planned)}.[/]")
    if lines := assumption_lines(document):
        print_lines(out, ["", *lines])


def plan_sentence(planned: "Planned") -> str:
    """A plan in a sentence, with marks for bold words: job, devices, strategy, times, gain."""
    chosen = planned.chosen
    low, high = chosen.interval_s
    epoch = "" if chosen.epoch_s is None else f"{format_seconds(chosen.epoch_s)} an epoch, "
    return (
        f"{escape(planned.name)} on {_devices(planned)}: [bold]{escape(chosen.name)}[/], "
        f"{epoch}{format_seconds(chosen.step_time_s)} a step "
        f"(90 %: {format_span(format_seconds(low), format_seconds(high))}){_gain(planned)}"
    )


def _devices(planned: "Planned") -> str:
    """How many devices the chosen strategy takes, and of how many where some stay idle."""
    taken, there = planned.chosen.strategy.devices, format_count(planned.devices, "device")
    return there if taken >= planned.devices else f"{taken} of {there}"


def _where(planned: "Planned") -> str:
    """The devices of a plan, as the end of a phrase; of this machine only the rate limit of its links."""
    if planned.request.is_here:
        return over_links(planned.link)
    node = planned.machine.node
    precision = precision_words(planned.precision, planned.precision_source)
    return f" on {escape(node.title)} ({escape(node.device.title)}), {escape(precision)}, {escape(planned.software)}"


def _gain(planned: "Planned") -> str:
    """The speed of a plan by that of one device or of the baseline, or by the peak of its devices."""
    evidence, found, chosen = planned.evidence, planned.evidence.search, planned.chosen
    if isinstance(evidence, Modelled):
        tokens_per_s = planned.global_batch_size * evidence.problem.sample_tokens / chosen.step_time_s
        return f", {tokens_per_s:,.0f} tokens/s, {100 * evidence.chosen.utilization:.0f} % of the devices' peak"
    if not planned.request.is_here:
        if chosen.strategy.devices == 1:
            return ""
        alone_s, fits = one_device_of(planned)
        lone = "" if fits else ", on which the whole would not fit"
        return "" if alone_s is None else f", {alone_s / chosen.step_time_s:.2f} times one device{lone}"
    if found is None or planned.outlook is not None or chosen is found.baseline:
        return ""
    return f", {found.baseline.time_s / chosen.time_s:.2f} times the baseline {found.baseline.name}"


def _print_places(out: Console, evidence: Simulated) -> None:
    """Print which devices ranks have, where the plan says it, and what each row of a replica runs."""
    strategy = evidence.chosen.strategy
    if strategy.device_order:
        out.print(f"devices of ranks 0, 1, …: {format_some(strategy.device_order, 16)}")
    rows: dict[int, list[str]] = {}
    for name, row in placement_document(evidence.graph, strategy).items():
        rows.setdefault(row, []).append(name)
    if len(rows) > 1:
        for row, names in sorted(rows.items()):
            out.print(escape(f"row {row} runs {format_some(names, 16)}"))


def print_rule(out: Console, rule: str) -> None:
    """Print the rule that chose the plan, where something faster is listed."""
    if rule:
        out.print(escape(rule))


def print_prices(out: Console, prices: Iterable[PinPrice]) -> None:
    """Print the cost of each pin."""
    for entry in prices:
        if entry.without is None:
            out.print(f"{escape(entry.pin)}: nothing fits without it")
            continue
        name = entry.without.name
        cost = "costs nothing" if entry.price <= 0.0 else f"costs {100 * entry.price:.1f} %"
        cost += " to the target" if entry.to_target else ""
        out.print(f"{escape(entry.pin)} {cost}: without it {name}, {format_seconds(entry.without.time_s)}")


def _print_missing_baselines(out: Console, found: Search[Any]) -> None:
    for entry in found.baselines:
        if entry.candidate is None:
            out.print(f"[dim]no {escape(entry.role)}: {escape(entry.reason)}[/]")


def _search_line(found: Search[Any]) -> str:
    end = "" if found.is_complete else ", stopped at its limit (--time-limit sets it)"
    gap = "no bound is known for rejected strategies"
    if found.gap is not None:
        share = f"{100 * found.gap:.1f} %"
        gap = "the fastest row is optimal" if share == "0.0 %" else f"the fastest row is optimal within {share}"
        if found.gap >= 1.0:
            gap = f"by lower bounds, a strategy may be up to {1.0 + found.gap:.1f} times as fast"
    return f"search: {format_seconds(found.seconds)}{end}; {gap}"


def print_notes(out: Console, notes: Iterable[str]) -> None:
    """Print what the user should know."""
    for note in notes:
        out.print(f"[yellow]note:[/] {escape(note)}")


def over_links(link: Link | None) -> str:
    """The rate limit of links, as the end of a phrase; empty where there is none."""
    return "" if link is None else f" over {name_link(link)}"


def print_candidates(out: Console, found: Search[Any], *, alone_s: float | None = None) -> None:
    """Print those of the candidates that a person should see, and how many were rejected for what.

    Args:
        out: where to
        found: the search
        alone_s: time of a step on one device, where speedups are shown [s]
    """
    # Two baselines may be one strategy, and the chosen one a third.
    known = {_row_key(one): one for one in (*found.references, *found.candidates, found.chosen)}
    ranked = sorted(known.values(), key=lambda one: (one.objective_s, simplicity(one.strategy)))
    always = [known[_row_key(one)] for one in (found.chosen, *found.references)]
    rows = tuple(ranked) if shows_all(out) else shown(ranked, always=always, front=found.pareto)
    out.print(
        candidate_table(rows, chosen=found.chosen, baselines=found.references, front=found.pareto, alone_s=alone_s)
    )
    more = len(ranked) - len(rows)
    if more:
        out.print(f"[dim]and {more} more: --verbose lists all[/]")
    print_rejections(out, found.rejected, named=shows_all(out))
    if found.counts:
        counts = ", ".join(f"{number} ({reason})" for reason, number in found.counts.items())
        out.print(f"[dim]{escape(f'rejected: {counts}')}[/]")


_SEEN = 0.005
"""Share of a step from which on a table says it."""


def print_simulation(out: Console, planned: "Planned") -> None:
    """Print the simulated step of a plan, how each device spends it, and what the user should know."""
    chosen = planned.simulated.chosen
    low, high = chosen.interval_s
    out.print(
        f"{escape(planned.name)} on {_devices(planned)}: [bold]{escape(chosen.name)}[/]"
        f"{over_links(planned.link)}, {format_seconds(chosen.step_time_s)} a step "
        f"(90 %: {format_span(format_seconds(low), format_seconds(high))}), {escape(binding(chosen))}"
    )
    out.print()
    spent = utilization(chosen.program, chosen.timeline, devices=chosen.strategy.devices)
    out.print(utilization_table(spent, peaks=chosen.peak_bytes))
    after_s = chosen.timeline.after_s
    if after_s > _SEEN * chosen.step_time_s:
        what = planned.simulated.after_words
        out.print(f"[dim]{format_seconds(after_s)} of each step is shown by no instruction: {what}[/]")
    print_notes(out, planned.notes)


def simulation_document(planned: "Planned") -> dict[str, Any]:
    """A simulated step, for programs."""
    chosen = planned.simulated.chosen
    spent = utilization(chosen.program, chosen.timeline, devices=chosen.strategy.devices)
    return {
        **head_document(planned),
        **option_document(chosen),
        "idle_devices": planned.devices - chosen.strategy.devices,
        "rank": [device.rank for device in spent],
        "busy_s": [device.busy_s for device in spent],
        "wait_s": [device.exposed_s for device in spent],
        "bubble_s": [device.bubble_s for device in spent],
    }


def print_rejections(out: Console, rejected: Iterable[Rejection], *, named: bool = False) -> None:
    """Print what was rejected, a line for each cause.

    Args:
        out: where to
        rejected: candidates, each with its cause
        named: name all that are rejected by the bound or the batch
    """
    by_cause: dict[str, list[Rejection]] = {}
    for rejection in rejected:
        by_cause.setdefault(rejection.cause, []).append(rejection)
    for cause, rejections in by_cause.items():
        line = _rejection_line(rejections)
        names = ", ".join(rejection.strategy.name for rejection in rejections)
        if named and cause == "bound" and len(rejections) > 1:
            line = f"rejected by the bound of their time, without a simulation: {names}"
        elif cause == "time":
            such = f": {names}" if len(rejections) == 1 else f", such as {rejections[0].strategy.name}"
            line = f"not simulated in the time of the search, and not ruled out: {len(rejections)}{such}"
        elif named and cause == "batch":
            line = f"rejected, as the batch does not divide: {names}"
        out.print(f"[dim]{escape(line)}[/]")


def print_counts(out: Console, rejected: Iterable[Rejection]) -> None:
    """Print how many were rejected, by cause.

    Args:
        out: where to
        rejected: candidates, each with its cause
    """
    counts = Counter(rejection.cause for rejection in rejected)
    if counts:
        said = ", ".join(f"{number} {_CAUSES[cause]}" for cause, number in counts.items())
        out.print(f"[dim]rejected: {escape(said)}; --verbose names them[/]")


_CAUSES: Mapping[Cause, str] = {
    "bound": "by the time bound",
    "memory": "for lack of memory",
    "batch": "as the batch does not divide",
    "time": "not simulated in the time of the search",
    "compiling": "as compiling takes longer than it saves",
    "pin": "by your options",
    "split": "as the network has no such split",
    "inexact": "as they would train something else",
    "form": "as no program has that combination",
    "unmeasured": "for lack of measured costs",
    "failed": "as a trial run failed",
}


def _rejection_line(rejections: Sequence[Rejection]) -> str:
    """Rejections of one cause, in a line."""
    first = rejections[0]
    if len(rejections) == 1:
        return f"rejected {first.strategy.name}: {first.reason}"
    if all(rejection.reason == first.reason for rejection in rejections):
        return f"rejected {len(rejections)}: {first.reason}"
    return f"rejected {len(rejections)}, such as {first.strategy.name}: {first.reason}"


def _row_key(row: Option) -> tuple[object, ...]:
    """What a row of the candidates shows: two baselines may be one strategy."""
    return row.strategy.name, row.step_time_s, max(row.peak_bytes, default=0)


def candidate_table(
    candidates: Iterable[Option],
    *,
    chosen: Option | None = None,
    baselines: Iterable[Option] = (),
    front: Iterable[Option] = (),
    alone_s: float | None = None,
) -> Table:
    """The candidates of a plan, in the given order.

    Args:
        candidates: that are shown
        chosen: the plan
        baselines: what people do without a plan
        front: those that no other one beats in both time and memory
        alone_s: time of a step on one device, where speedups are shown [s]

    Returns:
        One row a candidate; `*` marks the chosen one, `=` a baseline, `^` one of the front. The columns of devices,
        epochs, speedups, shares of the devices' peak ("mfu") and limiters are shown where they say something.
    """
    rows = list(candidates)
    marks = (("*", "chosen", [chosen]), ("=", "baseline", baselines), ("^", "Pareto: time, memory, devices", front))
    marked = [(mark, what, {_row_key(one) for one in some if one is not None}) for mark, what, some in marks]
    legend = "   ".join(f"{mark} {what}" for mark, what, known in marked if any(_row_key(row) in known for row in rows))
    peak = "of the device" if all(row.strategy.devices == 1 for row in rows) else "of the fullest rank"
    columns = ["interval: 90 %, in the unit of the step", f"peak: memory {peak}"]
    table = frame_table("Candidates")
    add_words(table, "", no_wrap=True)
    table.add_column("strategy", min_width=12)
    add_figures(table, "step", "interval", "peak")
    more: list[tuple[str, Callable[[Option], str]]] = []
    if len({row.devices for row in rows if isinstance(row, AnalyticalCandidate)}) > 1:
        more.append(("devices", lambda row: str(row.strategy.devices)))
    if any(row.epoch_s is not None for row in rows):
        more.append(("epoch", lambda row: "–" if row.epoch_s is None else format_seconds(row.epoch_s)))
    if alone_s is not None:
        more.append(("speedup", lambda row: f"{alone_s / row.step_time_s:.2f}"))
        columns.append("speedup: by one device")
    if any(isinstance(row, AnalyticalCandidate) for row in rows):
        more.append(("mfu", lambda row: f"{row.utilization:.2f}" if isinstance(row, AnalyticalCandidate) else "–"))
        columns.append("mfu: share of the devices' peak")
    add_figures(table, *(title for title, _ in more))
    if any(row.limiter for row in rows):
        table.add_column("limiter", min_width=13)
        more.append(("limiter", _limiter_words))
        columns.append("limiter: bottleneck, with its share of the step")
    for row in rows:
        unit, size = unit_of(row.step_time_s)
        table.add_row(
            "".join(mark for mark, _, known in marked if _row_key(row) in known),
            row.strategy.name,
            f"{number_in(row.step_time_s, size)} {unit}",
            "–".join(number_in(seconds, size) for seconds in row.interval_s),
            format_bytes(max(row.peak_bytes, default=0)),
            *(cell(row) for _, cell in more),
            style="bold" if row is chosen else None,
        )
    notes = (legend, "; ".join(columns), strategy_legend(row.strategy.name for row in rows))
    table.caption = "\n".join(note for note in notes if note)
    return table


def _limiter_words(row: Option) -> str:
    """The bottleneck with its share of the step."""
    groups_s = row.groups_s
    if not groups_s or not row.step_time_s:
        return row.limiter
    seconds = groups_s["loading"] if row.subject == INPUT_PIPELINE else max(groups_s.values())
    return f"{row.subject} {seconds / row.step_time_s:.0%}"
