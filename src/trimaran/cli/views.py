"""How results look: for people as tables, for programs as JSON documents."""

from typing import Any

from rich.console import Console

from trimaran.planner import Candidate, Search
from trimaran.report.tables import CandidateLine, candidate_table, kind_table, rank_table, utilization_table
from trimaran.report.utilization import utilization
from trimaran.session.planning import Planned
from trimaran.session.training import Trained
from trimaran.units import format_bytes, format_seconds


def print_plan(out: Console, planned: Planned) -> None:
    """Print what was considered, what was chosen, and what the user should know."""
    for warning in planned.warnings:
        out.print(f"[yellow]note:[/] {warning}")
    if planned.search is not None:
        out.print(candidate_table(_lines(planned.search)))
        for reason, names in _by_reason(planned.search).items():
            out.print(f"[dim]rejected {', '.join(names)}: {reason}[/]")
    chosen = planned.chosen
    out.print(
        f"\nPlan for [bold]{planned.job.name}[/], global batch {planned.plan.premises.global_batch_size}: "
        f"[bold]{chosen.strategy.name}[/], {format_seconds(chosen.step_time_s)} a step, limited by {chosen.limiter}"
    )
    if planned.search is not None:
        out.print(_against_baseline(planned.search))


def print_trained(out: Console, trained: Trained) -> None:
    """Print the epochs, predicted against measured, and where everything is."""
    for epoch in trained.epochs:
        accuracy = "" if epoch.accuracy is None else f"   accuracy {epoch.accuracy:.4f}"
        out.print(f"epoch {epoch.number:3d}   loss {epoch.loss:.4f}{accuracy}   {format_seconds(epoch.seconds)}")
    if trained.comparison is not None:
        out.print()
        out.print(rank_table(trained.comparison))
        out.print(kind_table(trained.comparison))
    run = trained.run
    rate = trained.report.samples_per_s
    if rate is not None:
        out.print(f"\n{rate:.0f} samples/s")
    if "accuracy" in trained.report.final:
        out.print(f"accuracy [bold]{trained.report.final['accuracy']:.4f}[/]")
    if trained.comparison is not None:
        out.print(f"trace    {run.trace}  (open in ui.perfetto.dev or chrome://tracing)", soft_wrap=True)
    out.print(f"model    {run.model}", soft_wrap=True)
    out.print(f"run      {run.path}", soft_wrap=True)


def print_simulation(out: Console, planned: Planned) -> None:
    """Print the simulated step of a plan and how each device spends it."""
    chosen = planned.chosen
    low, high = chosen.interval_s
    out.print(
        f"[bold]{chosen.strategy.name}[/]: {format_seconds(chosen.step_time_s)} a step "
        f"(90 %: {format_seconds(low)} to {format_seconds(high)}), limited by {chosen.limiter}"
    )
    out.print(f"peak memory by rank: {', '.join(format_bytes(nbytes) for nbytes in chosen.peak_bytes)}")
    out.print(utilization_table(utilization(chosen.program, chosen.timeline)))


def plan_document(planned: Planned) -> dict[str, Any]:
    """A plan and what it was chosen over, for programs."""
    found = planned.search
    if found is None:
        return {"job": planned.source.reference, "chosen": _candidate(planned.chosen)}
    return {
        "job": planned.source.reference,
        "global_batch_size": planned.plan.premises.global_batch_size,
        "devices": planned.cluster.size,
        "candidates": [_candidate(candidate) for candidate in found.candidates],
        "chosen": _candidate(found.chosen),
        "baseline": _candidate(found.baseline),
        "rejected": [{"strategy": entry.strategy.name, "reason": entry.reason} for entry in found.rejected],
        "notes": list(planned.warnings),
    }


def simulation_document(planned: Planned) -> dict[str, Any]:
    """A simulated step, for programs."""
    spent = utilization(planned.chosen.program, planned.chosen.timeline)
    return _candidate(planned.chosen) | {
        "rank": [device.rank for device in spent],
        "busy_s": [device.busy_s for device in spent],
        "wait_s": [device.wait_s for device in spent],
        "bubble_s": [device.bubble_s for device in spent],
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {
        "strategy": candidate.strategy.name,
        "step_time_s": candidate.step_time_s,
        "interval_s": list(candidate.interval_s),
        "peak_bytes": list(candidate.peak_bytes),
        "limiter": candidate.limiter,
    }


def _lines(found: Search) -> list[CandidateLine]:
    return [
        CandidateLine(
            strategy=candidate.strategy.name,
            step_time_s=candidate.step_time_s,
            interval_s=candidate.interval_s,
            peak_bytes=max(candidate.peak_bytes, default=0),
            limiter=candidate.limiter,
            baseline=candidate is found.baseline,
            chosen=candidate is found.chosen,
        )
        for candidate in found.candidates
    ]


def _by_reason(found: Search) -> dict[str, list[str]]:
    reasons: dict[str, list[str]] = {}
    for rejection in found.rejected:
        reasons.setdefault(rejection.reason, []).append(rejection.strategy.name)
    return reasons


def _against_baseline(found: Search) -> str:
    if found.chosen is found.baseline:
        return "It is the baseline itself: plain data parallelism."
    ratio = found.baseline.step_time_s / found.chosen.step_time_s
    return f"{ratio:.2f}× the speed of the baseline {found.baseline.strategy.name}, as predicted."
