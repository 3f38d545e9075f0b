"""The page of a run: of its folder, or of `report.json` alone."""

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import msgspec

from trimaran.base import VERSION
from trimaran.base.decoding import decode_typed
from trimaran.base.errors import TrimaranError
from trimaran.base.files import looked_at, read_bytes, read_text
from trimaran.base.secrets import page_command
from trimaran.base.timeline import Timeline
from trimaran.base.units import format_bytes, format_count, format_seconds
from trimaran.program.json_files import to_plain
from trimaran.program.plan_file import Plan, plan_program, read_plan
from trimaran.program.types import Program
from trimaran.report.breakdown import PARTS
from trimaran.report.comparison import Figure
from trimaran.report.page.layout import Contents, Page, Section
from trimaran.report.page.steps import (
    MeasuredNote,
    RankParts,
    candidates_section,
    commands_section,
    considered,
    memory_section,
    parts_section,
    percent,
    placement_section,
    prediction_section,
    rate,
    scaling_section,
    training_section,
)
from trimaran.report.page.timeline import step_timelines
from trimaran.report.plans import training_line
from trimaran.report.run_report import RankColumns, RunReport, noise_line, run_verdict
from trimaran.report.tables import KIND_NAMES
from trimaran.report.timelines import read_timeline
from trimaran.runtime.checkpoint.recovered import Recovered

_Positive = Annotated[float, msgspec.Meta(ge=0, le=1e12)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]


class _Run(msgspec.Struct):
    """What a page takes of `run.json`."""

    status: str
    job: str = ""
    strategy: str = ""
    trimaran: str = ""
    python: str = ""
    started_at: str = ""
    finished_at: str = ""
    reason: str = ""
    command: str = ""
    recovered: Recovered | None = None


class _EpochLine(msgspec.Struct):
    """A line of `metrics.jsonl`."""

    epoch: _Count
    loss: float | None = None
    accuracy: float | None = None
    metric: float | None = None
    seconds: _Positive | None = None


_MOST_EPOCHS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Files:
    """What was found in a run.

    Attributes:
        run: `run.json`; None: only the report is there
        report: `report.json`; None: the run did not get as far
        plan: `plan.json`; None: it is not there
        program: of it
        predicted: the simulated step
        measured: the recorded steps
        epochs: of `metrics.jsonl`
    """

    run: _Run | None = None
    report: RunReport | None = None
    plan: Plan | None = None
    program: Program | None = None
    predicted: Timeline | None = None
    measured: Timeline | None = None
    epochs: tuple[_EpochLine, ...] = ()


def page_of_report(path: Path) -> Page:
    """The page of a `report.json`, or of what `trimaran train --json` printed.

    Args:
        path: of the file

    Raises:
        InputError: it is wrong
        CorruptDataError: it was truncated
    """
    report = _read_report(path)
    return _page(_Files(report=report), shown=report.run_dir or str(path), sources=[path.name])


def page_of_run(folder: Path, *, shown: str) -> Page:
    """The page of the folder of a run.

    Args:
        folder: with `run.json`
        shown: its path for people

    Raises:
        InputError: `run.json` or another file is wrong
        CorruptDataError: a file was truncated or edited
    """
    files = _Files(run=decode_typed(read_bytes(folder / "run.json"), _Run, source=f"{shown}/run.json"))
    sources = ["run.json"]
    if looked_at(folder / "report.json"):
        files = replace(files, report=_read_report(folder / "report.json"))
        sources.append("report.json")
    if looked_at(folder / "plan.json"):
        plan = read_plan(folder / "plan.json")
        files = replace(files, plan=plan, program=plan_program(plan) if plan.has_program else None)
        sources.append("plan.json")
    if looked_at(folder / "predicted.json"):
        files = replace(files, predicted=read_timeline(folder / "predicted.json"))
        sources.append("predicted.json")
    if looked_at(folder / "measured.json"):
        files = replace(files, measured=read_timeline(folder / "measured.json"))
        sources.append("measured.json")
    if looked_at(folder / "metrics.jsonl"):
        files = replace(files, epochs=_read_epochs(folder / "metrics.jsonl"))
        sources.append("metrics.jsonl")
    return _page(files, shown=shown, sources=sources)


def _read_report(path: Path) -> RunReport:
    return decode_typed(read_bytes(path), RunReport, source=str(path))


def _read_epochs(path: Path) -> tuple[_EpochLine, ...]:
    """The epochs of `metrics.jsonl`; a last line that is not complete, as of a run under way, is left out."""
    lines = read_text(path).splitlines()[:_MOST_EPOCHS]
    found = []
    for number, line in enumerate(lines):
        try:
            found.append(decode_typed(line.encode(), _EpochLine, source=f"{path}, line {number + 1}"))
        except TrimaranError:
            if number < len(lines) - 1:
                raise
    return tuple(found)


def _page(files: _Files, *, shown: str, sources: list[str]) -> Page:
    report, run, plan = files.report, files.run, files.plan
    job = report.job if report else run.job if run else ""
    strategy = report.plan.strategy if report else run.strategy if run else ""
    ranks = _ranks(files)
    on = f" on {format_count(ranks, 'rank')}" if ranks else ""
    measured = None if report is None else _measured(report)
    contents = Contents()
    # Of a run that has ended, its report says what was recovered too, among other things.
    recovered = () if run is None or run.recovered is None else (run.recovered.taken, *run.recovered.notes)
    notes = tuple(dict.fromkeys([*recovered, *(() if report is None else report.notes)]))

    train = _train_again(job, plan, shown)
    contents.add(
        None
        if report is None
        else prediction_section(
            report.predicted.step_time_s,
            report.predicted.interval_s,
            measured,
            kinds=[
                (
                    f"{row.kind} {KIND_NAMES.get(row.kind, '')}".strip(),
                    row.count,
                    row.observed,
                    row.predicted_s,
                    row.measured_s,
                )
                for row in report.by_kind
            ],
        ),
        "Predicted against measured",
        f"the run wrote no report.json; one that ends does: {train}",
    )
    contents.add(
        None if report is None or report.by_rank is None else parts_section(_parts(report.by_rank)),
        "Where a step goes, by rank",
        f"no step was recorded; a run that ends records them: {train}",
    )
    timelines = step_timelines(
        files.predicted,
        files.measured,
        program=files.program,
        warmup=0 if report is None else report.measured.warmup,
    )
    contents.add(
        None
        if timelines is None
        else Section(id="timelines", title="Timeline of every rank", content=[timelines], is_wide=True),
        "Timeline of every rank",
        f"give the folder of the run, with predicted.json and measured.json: trimaran report {shlex.quote(shown)}",
    )
    step_s = 0.0 if report is None else report.predicted.step_time_s
    budgets = () if plan is None else plan.premises.memory_bytes
    contents.add(
        memory_section(files.predicted, files.measured, budgets, step_s=step_s),
        "Memory over time",
        f"predicted.json says nothing of memory; trimaran plan {shlex.quote(shown)}/plan.json has its peaks",
    )
    contents.add(
        training_section(
            [
                (one.epoch, one.loss, one.accuracy if one.metric is None else one.metric, one.seconds)
                for one in files.epochs
            ],
            target=None if plan is None or plan.training is None else plan.training.target,
            says="" if plan is None or plan.training is None else f"Planned: {training_line(to_plain(plan.training))}.",
            metric_name="metric" if any(one.metric is not None for one in files.epochs) else "accuracy",
        ),
        "Time to accuracy",
        f"no epoch ended: {train}",
    )
    contents.add(
        None
        if plan is None
        else scaling_section(
            plan,
            measured=(ranks, plan.premises.global_batch_size / measured.step_s)
            if measured and measured.step_s and ranks
            else None,
        ),
        "Scaling",
        f"the plan compares no numbers of devices: trimaran scale {shlex.quote(job)} --cluster NAME --json",
    )
    contents.add(
        None if plan is None else placement_section(plan.strategy),
        "Placement",
        "give the folder of the run, with plan.json",
    )
    contents.add(
        None if plan is None else candidates_section(considered(plan.candidates)),
        "Candidates and the Pareto front",
        f"the plan has none: trimaran plan {shlex.quote(job)} --output plan.json",
    )
    contents.add(
        None,
        "Crossover with model parallelism",
        f"a study: trimaran crossover {shlex.quote(job)} --cluster NAME --json",
    )
    contents.sections.append(commands_section(_environment(files), _commands(files, shown, train)))
    return Page(
        title=f"{job}{on}",
        kind="Training run",
        verdict=_verdict(files, measured, f"{job}{on} ({strategy})" if strategy else f"{job}{on}"),
        facts=_facts(files, measured, strategy),
        sections=contents.sections,
        absent=contents.absent,
        notes=notes,
        sources=sources,
        version=VERSION,
    )


def _ranks(files: _Files) -> int:
    if files.plan is not None:
        return files.plan.strategy.devices
    if files.report is not None and files.report.by_rank is not None:
        return len(files.report.by_rank.rank)
    return 0


def _measured(report: RunReport) -> MeasuredNote | None:
    step_s = report.measured.step_time_s
    if step_s is None:
        return None
    return MeasuredNote(
        step_s=step_s,
        steps=report.measured.steps,
        warmup=report.measured.warmup,
        noise=None if report.noise is None else report.noise.interval,
        noise_words=noise_line(report.noise),
    )


def _verdict(files: _Files, measured: MeasuredNote | None, what: str) -> str:
    report, run = files.report, files.run
    if run is not None and run.status not in ("finished", ""):
        end = f": {run.reason.splitlines()[0]}" if run.reason else ""
        state = "is marked as running" if run.status == "running" else run.status
        return f"{what}: the run {state}{end}"
    if report is None:
        return f"{what}: the run finished and wrote no report"
    step = Figure(
        predicted_s=report.predicted.step_time_s, measured_s=None if measured is None else measured.step_s or None
    )
    return run_verdict(what, step, report.predicted.interval_s, report.others)


def _facts(files: _Files, measured: MeasuredNote | None, strategy: str) -> list[tuple[str, str]]:
    report, run = files.report, files.run
    facts = [("strategy", strategy)] if strategy else []
    if measured is not None:
        facts.append(("measured step", format_seconds(measured.step_s)))
    if report is not None:
        facts.append(("predicted step", format_seconds(report.predicted.step_time_s)))
        if measured is not None and measured.step_s:
            facts.append(("error of the prediction", percent(report.predicted.step_time_s / measured.step_s - 1)))
        if report.samples_per_s:
            facts.append(("throughput, median epoch", f"{rate(report.samples_per_s)} samples/s"))
        if report.predicted.peak:
            facts.append(("predicted peak memory", format_bytes(report.predicted.peak)))
        facts += [(f"final {name}", f"{value:.4g}") for name, value in report.final.items() if value is not None]
    if run is not None and run.status != "finished":
        facts.append(("status", run.status))
    return facts


def _parts(by_rank: RankColumns) -> list[RankParts]:
    found = []
    for n, rank in enumerate(by_rank.rank):
        for source in ("predicted", "measured"):
            columns = [getattr(getattr(by_rank, name), f"{source}_s") for name in (*PARTS, "overlapped")]
            figures = [column[n] for column in columns]
            if any(value is None for value in figures):
                continue
            # What is nothing but for rounding is nothing.
            parts = tuple(max(0.0, value) for value in figures)
            found.append(RankParts(rank=rank, source=source, parts_s=parts[:-1], overlapped_s=parts[-1]))
    return found


def _train_again(job: str, plan: Plan | None, shown: str) -> str:
    words = ["trimaran", "train", job]
    return shlex.join(words if plan is None else [*words, "--plan", f"{shown}/plan.json"])


def _environment(files: _Files) -> dict[str, str]:
    found: dict[str, str] = {}
    if files.run is not None:
        run = files.run
        names = {"trimaran": run.trimaran, "python": run.python, "started": run.started_at, "ended": run.finished_at}
        found |= {name: value for name, value in names.items() if value}
    if files.report is not None:
        found |= files.report.environment
    if files.plan is not None:
        premises = files.plan.premises
        found["global batch"] = f"{premises.global_batch_size:,} samples"
        if premises.memory_bytes:
            found["memory of a device for the job"] = format_bytes(min(premises.memory_bytes))
    return found


def _commands(files: _Files, shown: str, train: str) -> list[tuple[str, str]]:
    found = []
    if files.run is not None and files.run.command:
        found.append(("The run was started by", page_command(files.run.command)))
    found.append(("The same plan again", train))
    if files.plan is not None:
        found.append(("Why this plan", shlex.join(["trimaran", "explain", f"{shown}/plan.json"])))
    found.append(("This report", shlex.join(["trimaran", "report", shown])))
    return found
