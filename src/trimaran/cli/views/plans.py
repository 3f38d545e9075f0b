"""What `trimaran plan`, `train` and `emulate` show."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape

from trimaran.base.files import shown_path
from trimaran.base.progress import Progress
from trimaran.base.units import format_count, format_seconds
from trimaran.cli.output import begin_verdict, console, print_document, progress_shown
from trimaran.jobs.resolve import JobSource
from trimaran.measure.others import busy_note
from trimaran.planning.answer.documents import plan_document
from trimaran.planning.answer.pages import print_lines, print_notes, print_plan
from trimaran.planning.answer.results import Planned
from trimaran.planning.plan import make_plan
from trimaran.planning.rehearsed import PlanRehearsed, rehearsed_document
from trimaran.planning.requests import PlanRequest
from trimaran.program.json_files import to_plain
from trimaran.program.plan_file import write_plan
from trimaran.report.gradient_noise import gradient_noise_lines
from trimaran.report.run_report import compared_columns, noise_line
from trimaran.report.tables import kind_table, rank_table

if TYPE_CHECKING:
    # Results of training bring torch, which a plan does not need.
    from trimaran.features.emulation import Emulated
    from trimaran.features.training.train import FinishedTraining


def _trained_sentence(trained: "FinishedTraining") -> str:
    """The epochs, the speed and what was learned, and how far the prediction is off."""
    report, comparison = trained.report, trained.comparison
    done, before = len(trained.epochs), trained.epochs_before
    if trained.was_over:
        how = trained.how_to_resume(more=True)
        return f"Nothing was left to train: {format_count(done, 'epoch')} had been done before. To train more: {how}"
    parts = [f"Trained {format_count(done - before, 'epoch')}{f' more, {done} in all' if before else ''}"]
    if report.samples_per_s is not None:
        parts.append(f"{report.samples_per_s:.0f} samples/s")
    if report.final.get("accuracy") is not None:
        parts.append(f"{trained.metric} {report.final['accuracy']:.4f}")
    end = ""
    if comparison is not None and comparison.step.measured_s:
        measured, predicted = map(format_seconds, (comparison.step.measured_s, report.predicted.step_time_s))
        end = f" A step took {measured}, predicted {predicted}."
    return f"{', '.join(parts)}.{end}"


def print_trained(out: Console, trained: "FinishedTraining") -> None:
    """Print the epochs, predicted against measured, and where everything is: a page with a verdict as any other."""
    comparison = trained.comparison
    out.print()
    begin_verdict()
    out.print(f"[bold]{escape(_trained_sentence(trained))}[/]", soft_wrap=trained.was_over)
    if trained.verified is not None:
        out.print(escape(str(trained.verified)))
        print_notes(out, trained.verified.notes)
    out.print()
    for epoch in trained.epochs:
        metric = "" if epoch.accuracy is None else f"   {trained.metric} {epoch.accuracy:.4f}"
        loss = "all steps skipped" if epoch.loss is None else f"loss {epoch.loss:.4f}"
        out.print(f"epoch {epoch.epoch:3d}   {loss}{metric}   {format_seconds(epoch.seconds)}")
    if comparison is not None:
        out.print()
        out.print(rank_table(comparison))
        out.print("", kind_table(comparison))
        out.print(noise_line(trained.report.noise))
    if trained.memory is not None:
        out.print(f"\n{escape(str(trained.memory))}")
    if trained.gradient_noise is not None:
        out.print()
        for line in gradient_noise_lines(trained.gradient_noise):
            out.print(escape(line), soft_wrap=True)
    print_notes(out, trained.notes)
    run = trained.run
    out.print()
    if comparison is not None:
        out.print(f"trace    {escape(shown_path(run.trace))}  (for ui.perfetto.dev)", soft_wrap=True)
    if trained.weights is not None:
        out.print(f"model    {escape(shown_path(trained.weights))}", soft_wrap=True)
    out.print(f"run      {escape(run.shown)}", soft_wrap=True)
    if trained.checkpoint is not None:
        out.print(f"go on    {escape(trained.how_to_resume(more=True))}", soft_wrap=True)


def show_plan(
    source: JobSource,
    request: PlanRequest,
    *,
    output: Path | None,
    as_json: bool,
    check: Callable[[Planned, Progress], PlanRehearsed] | None = None,
) -> Planned:
    """Make a plan and print it; one for a machine of the catalog measures nothing.

    Args:
        source: where the job comes from
        request: what to look for, and where
        output: where the plan goes; None: nowhere
        as_json: print a document
        check: rehearses the plan's export before the plan is shown; None: it is not rehearsed
    """
    with progress_shown() as progress:
        planned = make_plan(source, request, progress=progress)
        rehearsed = None if check is None else check(planned, progress)
    if output is not None:
        write_plan(output, planned.evidence.whole_plan)
    if as_json:
        more = {} if rehearsed is None else {"rehearsed": rehearsed_document(rehearsed)}
        print_document(plan_document(planned) | more)
        return planned
    print_plan(console(), planned)
    if rehearsed is not None:
        print_lines(console(), [rehearsed.line, *rehearsed.why])
    return planned


# ---------------------------------------------------------------------------------------------------------------------
# What `trimaran train --emulate` prints


def print_emulation(out: Console, found: "Emulated") -> None:
    """Print the simulated step and the emulated one, by rank and by kind of instruction."""
    out.print(
        f"[bold]{escape(found.strategy.name)}[/]: a step takes {format_seconds(found.predicted_s)} in simulation and "
        f"{format_seconds(found.measured_s)} with real messages: predicted "
        f"{100 * abs(found.error):.1f} % too {'short' if found.error < 0 else 'long'}.\n"
    )
    out.print(rank_table(found.comparison), "", kind_table(found.comparison))
    if note := busy_note(found.others):
        print_notes(out, [note])


def emulation_document(found: "Emulated") -> dict[str, Any]:
    """The same for programs."""
    return {
        "strategy": to_plain(found.strategy, defaults=False),
        "name": found.strategy.name,
        "devices": found.strategy.devices,
        "predicted_s": found.predicted_s,
        "measured_s": found.measured_s,
        "error": found.error,
        "others": found.others,
        "steps": found.comparison.steps,
        **to_plain(compared_columns(found.comparison)),
    }
