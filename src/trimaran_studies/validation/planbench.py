"""PlanBench: how well plans of sharded transformers are predicted and chosen, on everything published, in one table.

    grids     the same network, batch and devices, measured under several degrees: error of each figure, and how much of
              the gap between the guides' plan and the best one our choice closes (`regret.py`)
    memory    peaks that were measured: error, and how many that ran are called unfit
    runs      documented trainings, by their degrees: error, interval, verdict on memory, our plan's step against
              that of the degrees that ran, both as predicted, and the time to answer
    peers     other predictors on the same rows (`peers.py`)

Nothing is fitted here, and no figure of a constant comes from here.
"""

import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from rich.table import Table

from trimaran.base.progress import Progress
from trimaran.base.units import format_span
from trimaran.planner.analytical.candidates import AnalyticalModel
from trimaran.planner.analytical.search import search_degrees, transformer_problem
from trimaran.pricing.analytical.fits_device import judge_fit
from trimaran.program.strategy import Degrees, Strategy
from trimaran.report.tables import add_figures, frame_table
from trimaran_studies.validation.field import FAMILY as FIELD
from trimaran_studies.validation.field import field_run
from trimaran_studies.validation.measurement import Answer
from trimaran_studies.validation.peers import COMMITS, PeerLine, compare_peers
from trimaran_studies.validation.regret import FAMILIES, GapClosed, Job, gap_closed, noise_of, regret_jobs
from trimaran_studies.validation.scores import Score, score
from trimaran_studies.validation.validate import ValidationRequest, scored, validate


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of the table.

    Attributes:
        part: "grids", "memory", "runs" or "peers"
        name: of the source
        score: of the errors; None where nothing was predicted
        unfit: of rows that ran, how many are called unfit; None where that does not apply
        regret: median time of our choice over the best plan's; None without a choice
        rule: the same of the guides' plan
        gap: that our choice closes; None without a choice
        peer: another predictor on the same rows
        own: predicted step of our plan over that of the degrees that ran, median and worst; None without runs
        seconds: of work until the slowest answer [s]; None without runs
    """

    part: str
    name: str
    score: Score | None
    unfit: int | None = None
    regret: float | None = None
    rule: float | None = None
    gap: GapClosed | None = None
    peer: PeerLine | None = None
    own: tuple[float, float] | None = None
    seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """All lines.

    Attributes:
        lines: in the order of the table
        noise: of each source of grids, as a share of a measurement
    """

    lines: tuple[Line, ...]
    noise: Mapping[str, float] = field(default_factory=dict)


def planbench(files: Sequence[Path] = (), *, peers: Path | None = None, progress: Progress) -> Bench:
    """Score everything.

    Args:
        files: of rows; none: those that come with Trimaran
        peers: folder with checkouts of peers; None: they are left out
        progress: called after every part

    Raises:
        InputError: a file cannot be read, a cell of it is wrong, or the folder has no peers at their commits
        EnvironmentProblem: a peer cannot be run
    """
    lines: list[Line] = []
    answers = [
        answer
        for family in FAMILIES
        for answer in validate(ValidationRequest(files=tuple(files), family=family), progress=progress)
    ]
    jobs = regret_jobs(answers)
    noise = noise_of(jobs)
    for source, found in _by_source(answers).items():
        lines.append(_grid_line(source, found, [job for job in jobs if job.source == source], noise))
    lines.append(_grid_line("all", answers, jobs, noise))
    memory = validate(ValidationRequest(files=tuple(files), family="memory"), progress=progress)
    for source, found in _by_source(memory).items():
        lines.append(Line(part="memory", name=source, score=_score(found), unfit=_unfit(found)))
    lines += _run_lines(validate(ValidationRequest(files=tuple(files), family=FIELD), progress=progress))
    if peers is not None:
        rows = {source: [answer.row for answer in found] for source, found in _by_source(answers).items()}
        found_peers = compare_peers(peers, rows)
        lines += [Line(part="peers", name=f"{one.peer}: {one.rows}", score=None, peer=one) for one in found_peers]
    return Bench(lines=tuple(lines), noise=noise)


def _by_source(answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        found.setdefault(answer.row.fields.get("source_repo", ""), []).append(answer)
    return found


def _score(answers: Iterable[Answer]) -> Score | None:
    return score(scored(answer) for answer in answers)


def _unfit(answers: Iterable[Answer]) -> int | None:
    known = [answer.fits for answer in answers if answer.fits is not None]
    return sum(not fits for fits in known) if known else None


def _run_lines(answers: Sequence[Answer]) -> list[Line]:
    """Documented trainings: their degrees as they ran, and our plan for the same devices and batch."""
    known = [answer for answer in answers if answer.predicted is not None]
    if not known:
        return []
    judged = [_judged(answer) for answer in known]
    return [
        Line(
            part="runs",
            name="documented trainings",
            score=_score(answers),
            unfit=sum(not one.fits for one in judged),
            own=(statistics.median(one.own for one in judged), max(one.own for one in judged)),
            seconds=max(one.seconds for one in judged),
        )
    ]


@dataclass(frozen=True, slots=True)
class _Judged:
    """A training: whether its degrees fit, our plan's step over theirs, and seconds of work of the search [s]."""

    fits: bool
    own: float
    seconds: float


def _judged(answer: Answer) -> _Judged:
    run, machine = field_run(answer.row)
    degrees = run.degrees
    asked = transformer_problem(
        run.shape,
        machine,
        batch=degrees.dp * degrees.microbatch * degrees.microbatches,
        precision=run.program.precision,
        devices=degrees.devices,
    )
    problem = replace(asked, program=run.program)
    ran = AnalyticalModel(problem=problem).price(_strategy(degrees))
    begin = time.process_time()
    found = search_degrees(problem)
    seconds = time.process_time() - begin
    fit = judge_fit(run.shape, degrees, keeping=problem.bookkeeping, device_bytes=problem.device_bytes)
    return _Judged(
        fits=fit.verdict != "does not fit",
        own=found.chosen.step_time_s / ran.step_time_s,
        seconds=seconds,
    )


def _strategy(degrees: Degrees) -> Strategy:
    named = {one.name: getattr(degrees, one.name) for one in fields(Degrees)}
    return Strategy(**named | {"schedule": "interleaved" if degrees.chunks > 1 else "1f1b"})


def _grid_line(source: str, answers: Sequence[Answer], jobs: Sequence[Job], noise: Mapping[str, float]) -> Line:
    several = [job for job in jobs if len(job.plans) > 1]
    if not several:
        return Line(part="grids", name=source, score=_score(answers))
    return Line(
        part="grids",
        name=source,
        score=_score(answers),
        regret=statistics.median(job.regret(job.chosen) for job in several),
        rule=statistics.median(job.regret(job.by_rule) for job in several),
        gap=gap_closed(several, noise),
    )


# ---------------------------------------------------------------------------------------------------------------------
# For programs and for people


def planbench_document(bench: Bench) -> dict[str, object]:
    """All lines as one object."""
    document: dict[str, object] = {"schema_version": 1, "noise": dict(bench.noise)}
    if any(line.peer is not None for line in bench.lines):
        document["peers"] = dict(COMMITS)
    return document | {"lines": [_line_document(line) for line in bench.lines]}


def _line_document(line: Line) -> dict[str, object]:
    found, gap = line.score, line.gap
    document: dict[str, object] = {"part": line.part, "name": line.name}
    if found is not None:
        document |= {
            "rows": found.rows,
            "answered": found.answered,
            "median": found.median,
            "p80": found.p80,
            "bias": found.bias,
            "coverage": found.coverage,
        }
    if line.peer is not None:
        document |= {"rows": line.peer.count, "median": line.peer.ours, "peer_median": line.peer.theirs}
    if line.own is not None:
        document |= {"own_plan": line.own[0], "own_plan_worst": line.own[1], "answer_s": line.seconds}
    if line.unfit is not None:
        document["called_unfit"] = line.unfit
    if gap is not None:
        document |= {
            "regret": line.regret,
            "rule_of_thumb_regret": line.rule,
            "jobs": gap.of,
            "jobs_apart": gap.jobs,
            "gap_closed": gap.share,
            "gap_closed_interval": None if gap.share is None else [gap.low, gap.high],
        }
    return document


def planbench_tables(bench: Bench) -> tuple[Table, Table]:
    """All lines for people: errors, and choices of plans."""
    errors = _table(
        "Errors",
        "part: grids of plans of a job, peaks of memory, documented runs, other predictors\n"
        "error, p80, bias: median and 80th percentile of |predicted / measured - 1|, and its median with the sign; "
        "inside: of the 90 % intervals\n"
        "unfit: rows that ran and are said not to fit; peer: its error on the same rows, at the commit of --json",
        *("rows", "error", "p80", "bias", "inside", "unfit", "peer"),
    )
    choices = _table(
        "Choices of plans",
        "jobs: those in which the guides' plan is slower than the best one by more than noise, of all with several "
        "plans\n"
        "ours, rule: median time of our plan, and of the guides', over that of the best; gap closed: of these jobs, "
        "with its 90 % interval\n"
        "of runs, ours: predicted step of our plan over that of the degrees that ran, median–worst; answer: processor "
        "time of the longest search",
        *("jobs", "ours", "rule", "gap closed", "answer"),
    )
    for line in bench.lines:
        found, gap = line.score, line.gap
        if line.peer is not None:
            peer = line.peer
            errors.add_row(line.part, line.name, f"{peer.count}", f"{peer.ours:.1%}", *[""] * 4, f"{peer.theirs:.1%}")
        elif found is not None:
            inside = "" if found.coverage is None else f"{found.coverage:.0%}"
            unfit = "" if line.unfit is None else str(line.unfit)
            figures = (
                f"{found.answered}",
                f"{found.median:.1%}",
                f"{found.p80:.0%}",
                f"{found.bias:+.1%}",
                inside,
                unfit,
            )
            errors.add_row(line.part, line.name, *figures, "")
        if line.own is not None:
            median, worst = line.own
            choices.add_row(
                line.part,
                line.name,
                "",
                format_span(f"{median:.2f}", f"{worst:.2f}", to="–"),
                "",
                "",
                f"{line.seconds:.1f} s",
            )
        if gap is not None:
            closed = "–" if gap.share is None else f"{gap.share:.0%} ({_span(gap, to='–')})"
            jobs, ours, rule = f"{gap.jobs}/{gap.of}", f"{line.regret:.3f}", f"{line.rule:.3f}"
            choices.add_row(line.part, line.name, jobs, ours, rule, closed, "")
    return errors, choices


def _table(title: str, legend: str, *figures: str) -> Table:
    table = frame_table(title, legend)
    table.add_column("part", no_wrap=True)
    table.add_column("source", max_width=20)
    add_figures(table, *figures)
    return table


def planbench_verdict(bench: Bench) -> str:
    """How well plans are predicted and chosen, in a sentence."""
    line = next(line for line in bench.lines if (line.part, line.name) == ("grids", "all"))
    if line.score is None:
        return "No figure of a published plan is predicted."
    said = f"{line.score.answered} figures of published plans: median error {line.score.median:.1%}; "
    if line.gap is None or line.gap.share is None:
        return f"{said}in no job is the guides' plan slower than the best one by more than noise."
    gap = line.gap
    return (
        f"{said}our choice closes {gap.share:.0%} (90 %: {_span(gap)}) of the gap between the "
        f"guides' plan and the best one, which is beyond noise in {gap.jobs} of {gap.of} jobs."
    )


def _span(gap: GapClosed, **style: str) -> str:
    """The interval of a gap that has one."""
    return format_span(f"{gap.low:.0%}", f"{gap.high:.0%}", **style)
