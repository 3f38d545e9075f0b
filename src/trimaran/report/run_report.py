"""The report of a run as a JSON file, `report.json`.

One nested object, `schema_version` first. Errors are `predicted / measured - 1`, intervals are at 90 % as
`[low, high]`, figures of ranks and instructions are lists, one entry each; null: not measured.

The noise of repeated runs, as it is said with a comparison.

An error of a prediction means little where it is smaller than the difference of two runs that are alike.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from trimaran.base.decoding import Count, Positive, Real
from trimaran.base.files import write_whole
from trimaran.base.html import DataTable, fragment
from trimaran.base.units import format_count, format_seconds, format_span
from trimaran.pricing.noise import Noise
from trimaran.program.json_files import to_plain
from trimaran.program.plan_file import Prediction
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind
from trimaran.report.breakdown import PARTS, PHASES
from trimaran.report.comparison import Comparison, Figure, KindComparison
from trimaran.report.slow_rank import SlowRank


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseInterval:
    """How far identical runs are apart.

    Attributes:
        interval: 90 % of the ratio of two such runs, minus 1
        date: day on which they ran
        ranks: that ran
        runs: how many there were
        source: the program that ran
    """

    interval: tuple[Real, Real]
    date: str
    ranks: Count
    runs: Count = 0
    source: str = ""


def noise_interval(noise: Noise | None) -> NoiseInterval | None:
    """The noise of runs like the measured one as reports have it; None where it is not known."""
    if noise is None:
        return None
    return NoiseInterval(
        interval=(noise.low, noise.high),
        date=noise.date,
        ranks=noise.ranks,
        runs=len(noise.step_time_s),
        source=noise.source,
    )


def noise_line(noise: NoiseInterval | None) -> str:
    """One line for people, to be read with a measured figure.

    Args:
        noise: of runs like the measured one; None where it is not known

    Example:
        >>> noise_line(NoiseInterval(interval=(-0.038, 0.04), ranks=2, date="2026-11-20"))
        'identical runs on 2 ranks differ by up to ±4.0 % (90 %), calibrated 2026-11-20'
        >>> noise_line(None)
        'noise of repeated runs unknown here: trimaran doctor --measure'
    """
    if noise is None:
        return "noise of repeated runs unknown here: trimaran doctor --measure"
    percent = 100 * noise.interval[1]
    return (
        f"identical runs on {format_count(noise.ranks, 'rank')} differ by up to "
        f"±{percent:.{1 if percent < 10 else 0}f} % (90 %), calibrated {noise.date}"
    )


_APART = 0.15
"""Compute is called faster or slower than when it was measured if each of its kinds is, by this share at least.

Runs on an idle machine are up to 12 % apart from what was measured just before."""

_COMPUTE = frozenset({Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT, Kind.UPDATE})


def pace_note(comparison: Comparison, job: str) -> str:
    """What to say of a run whose compute is slower or faster throughout than its costs say; empty where it is not.

    Costs are kept, and machines change: their clock rates, and what other virtual machines of the same host take.

    Args:
        comparison: of the run
        job: its reference
    """
    kinds = [kind for kind in comparison.kinds if kind.kind in _COMPUTE and kind.measured_s]
    ratios = [(kind.measured_s or 0.0) / kind.predicted_s for kind in kinds if kind.predicted_s]
    if len(ratios) < 2 or not (min(ratios) > 1 + _APART or max(ratios) < 1 / (1 + _APART)):
        return ""
    taken = sum(kind.count * (kind.measured_s or 0.0) for kind in kinds)
    ratio = taken / sum(kind.count * kind.predicted_s for kind in kinds)
    return (
        f"forward, backward and update each took {'longer' if ratio > 1 else 'less'} than when their costs were "
        f"measured, together {ratio:.2f} times as long: this machine is {'slower' if ratio > 1 else 'faster'} now than "
        f"it was then; `trimaran doctor --measure {job}` measures again"
    )


REPORT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FigureColumns:
    """Durations, one entry each.

    Attributes:
        predicted_s: as simulated [s]
        measured_s: as they were [s]; None where nobody could see it
    """

    derived: ClassVar = ("error",)
    predicted_s: tuple[Real, ...]
    measured_s: tuple[Real | None, ...]

    @property
    def error(self) -> list[float | None]:
        """`predicted / measured - 1` of each."""
        return [figure.error for figure in self.figures]

    @property
    def figures(self) -> list[Figure]:
        """Each with both times."""
        both = zip(self.predicted_s, self.measured_s, strict=True)
        return [Figure(predicted_s=predicted, measured_s=measured) for predicted, measured in both]


@dataclass(frozen=True, slots=True, kw_only=True)
class InstructionColumns(FigureColumns):
    """Durations of instructions.

    Attributes:
        instruction: id of each
    """

    instruction: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankColumns:
    """The step and its parts, one entry a rank.

    Attributes:
        rank: of each entry
        step: the whole
        forward: FP
        backward: BP
        update: WU
        load: reading and copying samples
        exposed: communication that the step waits for
        idle: waiting for others
        unattributed: what no span has
        overlapped: communication at the same time as compute, no part of the sum
        host_s: what the host takes before the spans of each phase of the measured step [s]
    """

    rank: tuple[Count, ...]
    step: FigureColumns
    forward: FigureColumns
    backward: FigureColumns
    update: FigureColumns
    load: FigureColumns
    exposed: FigureColumns
    idle: FigureColumns
    unattributed: FigureColumns
    overlapped: FigureColumns
    host_s: Mapping[str, tuple[Real, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        columns = [getattr(self, name) for name in ("step", *PARTS, "overlapped")]
        sizes = {len(self.rank), *(len(each) for one in columns for each in (one.predicted_s, one.measured_s))}
        if len(sizes) > 1:
            raise ValueError("by_rank has columns of different lengths")


@dataclass(frozen=True, slots=True, kw_only=True)
class StrategyRecord:
    """How a run ran.

    Attributes:
        strategy: its name
        details: each of its fields, plain
    """

    strategy: str
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictedStep:
    """The prediction before the run.

    Attributes:
        step_time_s: time of a step [s]
        interval_s: 90 % [s]
        peak_bytes: of the fullest rank; of each, in reports of before [bytes]
        epoch_s: time of an epoch with its evaluation, where that was made best [s]
        epoch_interval_s: 90 % [s]
        peak_bytes_by_rank: of each [bytes]
    """

    step_time_s: Positive
    interval_s: tuple[Positive, Positive]
    peak_bytes: Count | tuple[Count, ...] = 0
    epoch_s: Positive | None = None
    epoch_interval_s: tuple[Positive, Positive] | None = None
    peak_bytes_by_rank: tuple[Count, ...] = ()

    @property
    def peak(self) -> int:
        """Of the fullest rank [bytes]; 0: not known."""
        return max(self.peak_bytes, default=0) if isinstance(self.peak_bytes, tuple) else self.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedStep:
    """What was measured.

    Attributes:
        step_time_s: mean over the ranks [s]; None: nothing was recorded
        steps: that were compared
        warmup: steps before them that were left out
    """

    step_time_s: Positive | None = None
    steps: Count = 0
    warmup: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The record of a run, as `report.json` has it.

    Attributes:
        job: reference or name of the job
        plan: how it ran
        predicted: the step, before the run
        measured: the step, as it was
        by_rank: parts of the step; None where nothing was recorded
        by_kind: instructions of each kind
        by_instruction: each instruction; None where nothing was recorded
        samples_per_s: of an epoch, with all that is in its time; median of the epochs [samples/s]
        final: figures at the end by name, such as "accuracy" and "loss"; None: no finite number
        run_dir: directory of the run
        environment: versions and device by name
        noise: how far identical runs are apart here; None where that is not known
        others: part of the cores that other programs took meanwhile [0..1]; None where that is not known
        memory: what the memory plan of rank 0 did, by name; None where there is none
        gradient_noise: noise scale of the gradients, as `gradient_noise_document` has it; None where nobody asked
        verified: how far the first steps were from those of one process; None where nobody asked
        slow_ranks: ranks that compute slower than the others
        skipped_steps: numbers of the steps whose update was left out, because their loss was not a finite number
        rollbacks: the times that the training went back to a checkpoint for such a loss: step, to, batches left out
        restarts: the times that it was started again after a failure, as `run.json` has them
        notes: what the user should know, such as what the model could not be used for
    """

    derived: ClassVar = ("error",)
    job: str
    plan: StrategyRecord
    predicted: PredictedStep
    measured: RecordedStep
    by_rank: RankColumns | None = None
    by_kind: tuple[KindComparison, ...] = ()
    by_instruction: InstructionColumns | None = None
    samples_per_s: Positive | None = None
    final: Mapping[str, float | None] = field(default_factory=dict)
    run_dir: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    noise: NoiseInterval | None = None
    others: float | None = None
    memory: Mapping[str, Any] | None = None
    gradient_noise: Mapping[str, Any] | None = None
    verified: Mapping[str, Any] | None = None
    slow_ranks: tuple[SlowRank, ...] = ()
    skipped_steps: tuple[int, ...] = ()
    rollbacks: tuple[Mapping[str, Any], ...] = ()
    restarts: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def step(self) -> Figure:
        """The step as predicted and as measured."""
        return Figure(predicted_s=self.predicted.step_time_s, measured_s=self.measured.step_time_s)

    @property
    def error(self) -> float | None:
        """`predicted / measured - 1` of the step; None where nothing was measured."""
        return self.step.error

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        ranks = self.by_rank
        verdict = run_verdict(f"{self.job} ({self.plan.strategy})", self.step, self.predicted.interval_s, self.others)
        rows = (
            [("step", self.step)]
            if ranks is None
            else [
                (f"rank {rank}, {part}", getattr(ranks, part).figures[number])
                for number, rank in enumerate(ranks.rank)
                for part in ("step", *PARTS)
            ]
        )
        table = DataTable(
            columns=("", "predicted", "measured", "error"),
            rows=[
                (
                    name,
                    format_seconds(figure.predicted_s),
                    "–" if figure.measured_s is None else format_seconds(figure.measured_s),
                    "–" if figure.error is None else f"{figure.error:+.0%}",
                )
                for name, figure in rows
                if figure.predicted_s or figure.measured_s
            ],
        )
        return fragment(verdict, table, (noise_line(self.noise), *self.notes))


_DISTURBED = 0.1
"""Part of the cores that other programs take, above which a verdict says so."""


def run_verdict(what: str, step: Figure, interval_s: tuple[float, float], others: float | None = None) -> str:
    """A run in one sentence: its step as predicted and as measured.

    Args:
        what: ran, for people
        step: both times
        interval_s: 90 % interval of the prediction [s]
        others: part of the cores that other programs took meanwhile [0..1]; None where that is not known

    Example:
        >>> run_verdict("digits (dp2)", Figure(predicted_s=0.012, measured_s=0.01), (0.009, 0.014))[:63]
        'digits (dp2): a step took 10.0 ms and was predicted at 12.0 ms '
    """
    low, high = interval_s
    ends = format_span(format_seconds(low), format_seconds(high))
    predicted = format_seconds(step.predicted_s)
    if step.measured_s is None or step.error is None:
        return f"{what}: a step was predicted at {predicted} (90 %: {ends}); nothing was measured."
    share = abs(step.error)
    far = f"{100 * share:.{1 if share < 0.0995 else 0}f} % too {'long' if step.error > 0 else 'short'}"
    where = "inside" if low <= step.measured_s <= high else "outside"
    return (
        f"{what}: a step took {format_seconds(step.measured_s)} and was predicted at {predicted} ({far}); the "
        f"measurement is {where} the prediction's 90 % interval, {ends}"
        + (f", while other programs took {100 * others:.0f} % of the cores." if others and others > _DISTURBED else ".")
    )


def run_report(
    *,
    job: str,
    strategy: Strategy,
    prediction: Prediction,
    comparison: Comparison | None = None,
    noise: Noise | None = None,
    **more: Any,
) -> RunReport:
    """The report of a run.

    Args:
        job: reference or name of the job
        strategy: how it ran
        prediction: of the step, before the run
        comparison: of prediction and measurement; None where nothing was recorded
        noise: how far identical runs are apart here; None where that is not known
        more: other fields of the report
    """
    peaks = tuple(prediction.peak_bytes)
    measured = RecordedStep()
    if comparison is not None:
        step_s = comparison.step.measured_s
        measured = RecordedStep(step_time_s=step_s, steps=comparison.steps, warmup=comparison.warmup)
    return RunReport(
        job=job,
        plan=StrategyRecord(strategy=strategy.name, details=to_plain(strategy)),
        predicted=PredictedStep(
            step_time_s=prediction.step_time_s,
            interval_s=prediction.interval_s,
            peak_bytes=max(peaks, default=0),
            epoch_s=prediction.epoch_s,
            epoch_interval_s=prediction.epoch_interval_s,
            peak_bytes_by_rank=peaks,
        ),
        measured=measured,
        noise=noise_interval(noise),
        **({} if comparison is None else compared_columns(comparison)),
        **more,
    )


def compared_columns(comparison: Comparison) -> dict[str, Any]:
    """A comparison by rank, by kind and by instruction, as fields of a report.

    Args:
        comparison: of prediction and measurement
    """
    ranks = comparison.ranks
    parts = {
        name: FigureColumns(**_columns([rank.figure(name) for rank in ranks]))
        for name in ("step", *PARTS, "overlapped")
    }
    host = {name: tuple(rank.measured.host.get(name, 0.0) for rank in ranks) for name in PHASES}
    return {
        "by_rank": RankColumns(rank=tuple(rank.rank for rank in ranks), **parts, host_s=host),
        "by_kind": comparison.kinds,
        "by_instruction": InstructionColumns(
            instruction=tuple(comparison.instructions), **_columns(list(comparison.instructions.values()))
        ),
    }


def _columns(figures: Sequence[Figure]) -> dict[str, Any]:
    return {
        "predicted_s": tuple(figure.predicted_s for figure in figures),
        "measured_s": tuple(figure.measured_s for figure in figures),
    }


def write_report(path: Path, report: RunReport) -> None:
    """Write the report of a run; the file is there whole or not at all.

    Args:
        path: where; an existing file is replaced
        report: of the run

    Raises:
        EnvironmentProblem: it cannot be written there
    """
    document = {"schema_version": REPORT_VERSION} | to_plain(report)
    write_whole(path, (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode())
