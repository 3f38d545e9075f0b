"""What `trimaran plan` does on this machine, and for one that is not here."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from trimaran.base.errors import InputError
from trimaran.base.units import format_bytes, format_seconds
from trimaran.cli.output import console, print_json, progress_shown
from trimaran.features.emulation import Emulated
from trimaran.features.training.train import Trained
from trimaran.jobs.resolve import JobSource
from trimaran.machine.types import Link
from trimaran.measure.costs import name_link
from trimaran.planner.candidates import Candidate
from trimaran.planner.choice import shown, simplicity
from trimaran.planner.result import Search
from trimaran.planner.search import PinPrice
from trimaran.planner.space import Rejection
from trimaran.planning.documents import chosen_document, goal_of_plan, rule_of_search, search_document, with_outlook
from trimaran.planning.input_pipeline import feeding_document
from trimaran.planning.plan import plan_job
from trimaran.planning.requests import PlanRequest
from trimaran.planning.results import Planned
from trimaran.program.json_files import to_plain
from trimaran.program.plan import write_plan
from trimaran.program.strategy import Strategy
from trimaran.report.breakdown import utilization
from trimaran.report.gradient_noise import gradient_noise_lines
from trimaran.report.plans import outlook_lines, training_line
from trimaran.report.run_report import comparison_document, noise_line
from trimaran.report.tables import CandidateLine, candidate_table, kind_table, rank_table, utilization_table

if TYPE_CHECKING:
    from trimaran.planning.requests import ClusterRequest


# ---------------------------------------------------------------------------------------------------------------------
# Sentences and tables of a page, in terminals and in files


_ENDLESS = 100_000
"""More columns than any line has."""


def print_lines(out: Console, lines: Iterable[str | Table]) -> None:
    """Print sentences and tables: in a terminal wrapped at its width; elsewhere each sentence and row stays one line.

    Args:
        out: where to
        lines: in order; brackets in sentences are no markup
    """
    if not out.is_terminal:
        out = Console(file=out.file, width=_ENDLESS, highlight=False)
    for line in lines:
        out.print(line, markup=False)


# ---------------------------------------------------------------------------------------------------------------------
# How results look: for people as tables, for programs as JSON documents


def print_plan(out: Console, planned: Planned) -> None:
    """Print what was considered, what was chosen, and what the user should know."""
    print_notes(out, planned.warnings)
    if planned.search is not None:
        print_candidates(out, planned.search)
    chosen = planned.chosen
    epoch = "" if chosen.epoch_s is None else f"{format_seconds(chosen.epoch_s)} an epoch, "
    out.print(
        f"\nPlan for [bold]{escape(planned.job.name)}[/], "
        f"global batch {planned.plan.premises.global_batch_size}{over_links(planned.cluster.machine.node.rate_limit)}: "
        f"[bold]{chosen.strategy.name}[/], {epoch}{format_seconds(chosen.step_time_s)} a step, "
        f"limited by {escape(chosen.limiter)}"
    )
    if planned.outlook is not None:
        print_lines(out, outlook_lines(with_outlook(_plan_document(planned), planned.outlook)))
    print_training(out, planned)
    if planned.search is not None:
        print_rule(out, rule_of_search(planned.search, goal=goal_of_plan(planned.outlook)))
    if planned.search is not None and planned.outlook is None:
        out.print(_against_baseline(planned.search))
        print_prices(out, planned.prices)
        _print_missing_baselines(out, planned.search)
        out.print(f"[dim]{escape(_search_line(planned.search))}[/]")


def print_training(out: Console, planned: Planned) -> None:
    """What a plan from a file says of the training to its target; of a plan just made the table says it."""
    if planned.plan.training is not None and planned.outlook is None:
        out.print(escape(training_line(to_plain(planned.plan.training))), soft_wrap=True)


def print_rule(out: Console, rule: str) -> None:
    """What rule chose the plan, where something faster is listed."""
    if rule:
        out.print(escape(rule), soft_wrap=True)


def print_prices(out: Console, prices: Iterable[PinPrice]) -> None:
    """What each pin costs."""
    for entry in prices:
        if entry.without is None:
            out.print(f"{escape(entry.pin)}: nothing fits without it")
            continue
        name = entry.without.name
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


def over_links(link: Link | None) -> str:
    """The rate limit of links, as the end of a phrase; empty where there is none."""
    return "" if link is None else f" over {name_link(link)}"


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
    over = over_links(planned.cluster.machine.node.rate_limit)
    out.print(
        f"[bold]{chosen.name}[/]{over}: {format_seconds(chosen.step_time_s)} a step "
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
        "link": None
        if planned.cluster.machine.node.rate_limit is None
        else name_link(planned.cluster.machine.node.rate_limit),
        "objective": planned.plan.objective,
        "candidates": [_candidate(one) | {"pareto": id(one) in front} for one in found.candidates],
        "chosen": _candidate(found.chosen)
        | {"pareto": id(found.chosen) in front}
        | chosen_document(planned.graph, found),
        "feeding": feeding_document(found.chosen.strategy, found),
        "baseline": _candidate(found.baseline) | {"pareto": id(found.baseline) in front},
        **search_document(found, prices=planned.prices, goal=goal_of_plan(planned.outlook)),
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
        "link": None
        if planned.cluster.machine.node.rate_limit is None
        else name_link(planned.cluster.machine.node.rate_limit),
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


def plan_here(
    job: str, request: PlanRequest, *, batch: int | None, seed: int | None, output: Path | None, as_json: bool
) -> Planned | None:
    """Plan for this machine and print what was considered.

    Args:
        job: reference of the job
        request: what to look for
        batch: samples of one update; None: the job's
        seed: None: the job's
        output: where the plan goes; None: nowhere
        as_json: print a document

    Returns:
        The plan; None where everything is printed.
    """
    with progress_shown() as progress:
        planned = plan_job(JobSource(reference=job, global_batch_size=batch, seed=seed), request, progress=progress)
    if output is not None:
        write_plan(output, planned.plan)
    if as_json:
        print_json(plan_document(planned))
        return None
    print_plan(console(), planned)
    return planned


def plan_there(
    job: str,
    cluster: str,
    request: PlanRequest,
    *,
    batch: int | None,
    precision: str | None,
    software: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Plan for a machine of the catalog and print what was considered; nothing is measured, and nothing can be run.

    Args:
        job: reference of the job
        cluster: name of the machine
        request: what to look for
        batch: samples of one update; None: the job's
        precision: in which is computed; None: fp32
        software: framework and year; None: PyTorch of today
        output: where the plan goes; None: nowhere
        as_json: print a document

    Raises:
        InputError: an option that means nothing there
    """
    from trimaran.planning.documents import machine_plan_document
    from trimaran.planning.plan import plan_on_machine
    from trimaran.planning.plan_files import write_machine_plan
    from trimaran.report.plans import machine_plan_lines

    asked = request_there(cluster, request, batch=batch, precision=precision, software=software)
    with progress_shown() as progress:
        found = plan_on_machine(job, asked, progress=progress)
    if output is not None:
        write_machine_plan(output, found)
    if as_json:
        print_json(machine_plan_document(found))
        return
    print_lines(console(), machine_plan_lines(machine_plan_document(found)))


def request_there(
    cluster: str, request: PlanRequest, *, batch: int | None, precision: str | None, software: str | None
) -> "ClusterRequest":
    """What is asked of a machine of the catalog.

    Args:
        cluster: name of the machine
        request: what to look for
        batch: samples of one update; None: the job's
        precision: in which is computed; None: fp32
        software: framework and year; None: PyTorch of today

    Raises:
        InputError: an option that means nothing there
    """
    from trimaran.planning.requests import ClusterRequest, parse_software

    lost = [name for name in ("link", "calibration") if getattr(request, name) is not None]
    if lost:
        raise InputError(
            f"--{lost[0]} is for plans of this machine and means nothing with --cluster: leave it out", option=lost[0]
        )
    if request.pins.workers is not None:
        raise InputError(
            "--workers is for plans of this machine and means nothing with --cluster, where data are taken to be "
            "there: leave it out",
            option="workers",
        )
    asked = ClusterRequest(
        cluster=cluster,
        devices=request.devices,
        batch=batch,
        pins=request.pins,
        precision=precision or "float32",
        execution=request.execution,
        memory_bytes=request.memory_bytes,
        time_limit_s=request.time_limit_s,
        gap=request.gap,
        objective=request.objective,
        target=request.target,
    )
    return asked if software is None else replace(asked, software=parse_software(software))


# ---------------------------------------------------------------------------------------------------------------------
# What `trimaran emulate` prints


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
