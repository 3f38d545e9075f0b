"""How results look: for people as tables, for programs as JSON documents."""

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from trimaran.cli.lines import print_lines
from trimaran.measure.costs import name_link
from trimaran.planner import Candidate, Rejection, Search, shown, simplicity
from trimaran.planner.prices import PinPrice
from trimaran.program import Strategy
from trimaran.program.files import to_plain
from trimaran.report.accuracy import outlook_lines, training_line
from trimaran.report.gradient_noise import gradient_noise_lines
from trimaran.report.noise import noise_line
from trimaran.report.tables import CandidateLine, candidate_table, kind_table, rank_table, utilization_table
from trimaran.report.utilization import utilization
from trimaran.session.accuracy.document import with_outlook
from trimaran.session.feeding import feeding_document
from trimaran.session.planning import Planned
from trimaran.session.searches import chosen_document, search_document
from trimaran.session.training import Trained
from trimaran.units import format_bytes, format_seconds


def print_plan(out: Console, planned: Planned) -> None:
    """Print what was considered, what was chosen, and what the user should know."""
    print_notes(out, planned.warnings)
    if planned.search is not None:
        print_candidates(out, planned.search)
    chosen = planned.chosen
    epoch = "" if chosen.epoch_s is None else f"{format_seconds(chosen.epoch_s)} an epoch, "
    out.print(
        f"\nPlan for [bold]{escape(planned.job.name)}[/], "
        f"global batch {planned.plan.premises.global_batch_size}{over_links(planned)}: "
        f"[bold]{chosen.strategy.name}[/], {epoch}{format_seconds(chosen.step_time_s)} a step, "
        f"limited by {escape(chosen.limiter)}"
    )
    if planned.outlook is not None:
        print_lines(out, outlook_lines(with_outlook(_plan_document(planned), planned.outlook)))
    print_training(out, planned)
    if planned.search is not None and planned.outlook is None:
        out.print(_against_baseline(planned.search))
        print_prices(out, planned.prices)
        _print_missing_baselines(out, planned.search)
        out.print(f"[dim]{escape(_search_line(planned.search))}[/]")


def print_training(out: Console, planned: Planned) -> None:
    """What a plan from a file says of the training to its target; of a plan just made the table says it."""
    if planned.plan.training is not None and planned.outlook is None:
        out.print(escape(training_line(to_plain(planned.plan.training))), soft_wrap=True)


def print_prices(out: Console, prices: Iterable[PinPrice]) -> None:
    """What each pin costs."""
    for entry in prices:
        if entry.without is None:
            out.print(f"{escape(entry.pin)}: nothing fits without it")
            continue
        name = entry.without.strategy.name
        cost = "costs nothing" if entry.price <= 0.0 else f"costs {100 * entry.price:.1f} %"
        cost += " to the target" if entry.to_target else ""
        out.print(
            f"{escape(entry.pin)} {cost}: without it {name}, {format_seconds(entry.without.time_s)}",
            soft_wrap=True,
        )


def _print_missing_baselines(out: Console, found: Search) -> None:
    for entry in found.baselines:
        if entry.candidate is None:
            out.print(f"[dim]no {escape(entry.role)}: {escape(entry.reason)}[/]", soft_wrap=True)


def _search_line(found: Search) -> str:
    end = "" if found.is_complete else ", its time ran out"
    return f"search: {format_seconds(found.seconds)}{end}; gap to the bound {100 * found.gap:.1f} %"


def print_notes(out: Console, notes: Iterable[str]) -> None:
    """Print what the user should know."""
    for note in notes:
        out.print(f"[yellow]note:[/] {escape(note)}")


def over_links(planned: Planned) -> str:
    """What links are held to, as the end of a phrase; empty where they are not held."""
    return "" if planned.cluster.link is None else f" over {name_link(planned.cluster.link)}"


def print_candidates(out: Console, found: Search) -> None:
    """Print those of the candidates that a person should see, and how many were rejected for what."""
    known = {id(one): one for one in (*found.candidates, *found.references)}
    ranked = sorted(known.values(), key=lambda one: (one.objective_s, simplicity(one.strategy)))
    rows = shown(ranked, always=(found.chosen, *found.references), front=found.pareto)
    out.print(candidate_table(_lines(found, rows)))
    more = len(ranked) - len(rows)
    if more:
        out.print(f"[dim]and {more} more: --json lists all[/]")
    by_cause: dict[str, list[Rejection]] = {}
    for rejection in found.rejected:
        by_cause.setdefault(rejection.cause, []).append(rejection)
    for rejections in by_cause.values():
        out.print(f"[dim]{escape(rejection_line(rejections))}[/]")


def print_trained(out: Console, trained: Trained) -> None:
    """Print the epochs, predicted against measured, and where everything is."""
    if trained.verified is not None:
        out.print(escape(str(trained.verified)), soft_wrap=True)
        print_notes(out, trained.verified.notes)
    for epoch in trained.epochs:
        accuracy = "" if epoch.accuracy is None else f"   accuracy {epoch.accuracy:.4f}"
        out.print(f"epoch {epoch.number:3d}   loss {epoch.loss:.4f}{accuracy}   {format_seconds(epoch.seconds)}")
    if trained.comparison is not None:
        out.print()
        out.print(rank_table(trained.comparison))
        out.print(kind_table(trained.comparison))
        out.print(noise_line(trained.report.noise))
    if trained.memory is not None:
        out.print(f"\n{escape(str(trained.memory))}")
    if trained.gradient_noise is not None:
        out.print()
        for line in gradient_noise_lines(trained.gradient_noise):
            out.print(escape(line), soft_wrap=True)
    print_notes(out, trained.notes)
    run = trained.run
    rate = trained.report.samples_per_s
    if rate is not None:
        out.print(f"\n{rate:.0f} samples/s")
    if "accuracy" in trained.report.final:
        out.print(f"accuracy [bold]{trained.report.final['accuracy']:.4f}[/]")
    if trained.comparison is not None:
        out.print(f"trace    {escape(str(run.trace))}  (open in ui.perfetto.dev or chrome://tracing)", soft_wrap=True)
    out.print(f"model    {escape(str(run.model))}", soft_wrap=True)
    out.print(f"run      {escape(str(run.path))}", soft_wrap=True)


def print_simulation(out: Console, planned: Planned) -> None:
    """Print the simulated step of a plan, how each device spends it, and what the user should know."""
    print_notes(out, planned.warnings)
    chosen = planned.chosen
    low, high = chosen.interval_s
    out.print(
        f"[bold]{chosen.strategy.name}[/]{over_links(planned)}: {format_seconds(chosen.step_time_s)} a step "
        f"(90 %: {format_seconds(low)} to {format_seconds(high)}), limited by {escape(chosen.limiter)}"
    )
    out.print(f"peak memory by rank: {', '.join(format_bytes(nbytes) for nbytes in chosen.peak_bytes)}")
    out.print(utilization_table(utilization(chosen.program, chosen.timeline)))


def plan_document(planned: Planned) -> dict[str, Any]:
    """A plan and what it was chosen over, for programs."""
    document = _plan_document(planned)
    return document if planned.outlook is None else with_outlook(document, planned.outlook)


def _plan_document(planned: Planned) -> dict[str, Any]:
    found = planned.search
    if found is None:
        return {
            "job": planned.source.reference,
            "objective": planned.plan.objective,
            "chosen": _candidate(planned.chosen),
            "feeding": feeding_document(planned.chosen.strategy, None),
        }
    front = {id(candidate) for candidate in found.pareto}
    return {
        "job": planned.source.reference,
        "global_batch_size": planned.plan.premises.global_batch_size,
        "devices": planned.cluster.size,
        "link": None if planned.cluster.link is None else name_link(planned.cluster.link),
        "objective": planned.plan.objective,
        "candidates": [_candidate(one) | {"pareto": id(one) in front} for one in found.candidates],
        "chosen": _candidate(found.chosen)
        | {"pareto": id(found.chosen) in front}
        | chosen_document(planned.graph, found),
        "feeding": feeding_document(found.chosen.strategy, found),
        "baseline": _candidate(found.baseline) | {"pareto": id(found.baseline) in front},
        **search_document(found, prices=planned.prices),
        "rejected": [
            {"strategy": entry.strategy.name, "cause": entry.cause, "reason": entry.reason} for entry in found.rejected
        ],
        "notes": list(planned.warnings),
    }


def simulation_document(planned: Planned) -> dict[str, Any]:
    """A simulated step, for programs."""
    spent = utilization(planned.chosen.program, planned.chosen.timeline)
    return {
        "job": planned.source.reference,
        "global_batch_size": planned.job.global_batch_size,
        "link": None if planned.cluster.link is None else name_link(planned.cluster.link),
        "objective": planned.chosen.objective,
        **_candidate(planned.chosen),
        "rank": [device.rank for device in spent],
        "busy_s": [device.busy_s for device in spent],
        "wait_s": [device.wait_s for device in spent],
        "bubble_s": [device.bubble_s for device in spent],
        "notes": list(planned.warnings),
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "strategy": candidate.strategy.name,
        "step_time_s": candidate.step_time_s,
        "interval_s": list(candidate.interval_s),
        "peak_bytes": list(candidate.peak_bytes),
        "limiter": candidate.limiter,
    } | _epoch(candidate)


def _epoch(candidate: Candidate) -> dict[str, Any]:
    if candidate.epoch_s is None or candidate.epoch_interval_s is None:
        return {}
    return {"epoch_s": candidate.epoch_s, "epoch_interval_s": list(candidate.epoch_interval_s)}


def rejection_line(rejections: Sequence[Rejection]) -> str:
    """Rejections of one cause, in a line."""
    first = rejections[0]
    if len(rejections) == 1:
        return f"rejected {first.strategy.name}: {first.reason}"
    if all(rejection.reason == first.reason for rejection in rejections):
        return f"rejected {len(rejections)}: {first.reason}"
    return f"rejected {len(rejections)}, such as {first.strategy.name}: {first.reason}"


def _lines(found: Search, rows: Iterable[Candidate]) -> list[CandidateLine]:
    front, references = ({id(one) for one in some} for some in (found.pareto, found.references))
    return [
        CandidateLine(
            strategy=candidate.strategy.name,
            step_time_s=candidate.step_time_s,
            interval_s=candidate.interval_s,
            peak_bytes=max(candidate.peak_bytes, default=0),
            epoch_s=candidate.epoch_s,
            limiter=candidate.limiter,
            baseline=id(candidate) in references,
            pareto=id(candidate) in front,
            chosen=candidate is found.chosen,
        )
        for candidate in rows
    ]


def _against_baseline(found: Search) -> str:
    if found.chosen is found.baseline:
        plain = found.baseline.strategy == Strategy(dp=found.baseline.strategy.dp)
        return f"It is the baseline itself{': plain data parallelism' if plain else ''}."
    ratio = found.baseline.time_s / found.chosen.time_s
    return f"{ratio:.2f}× the speed of the baseline {found.baseline.strategy.name}, as predicted."
