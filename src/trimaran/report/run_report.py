"""The report of a run as a JSON file, `report.json`.

One nested object, `schema_version` first. Errors are `predicted / measured - 1`, intervals are at 90 % as
`[low, high]`, figures of ranks and instructions are lists, one entry each; null: not measured.

The noise of repeated runs, as it is said with a comparison.

An error of a prediction means little where it is smaller than the difference of two runs that are alike.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trimaran.base.files import write_whole
from trimaran.base.html import DataTable, fragment
from trimaran.base.units import format_seconds, format_span
from trimaran.pricing.noise import Noise
from trimaran.program.json_files import to_plain
from trimaran.program.plan_file import Prediction
from trimaran.program.strategy import Strategy
from trimaran.program.types import Kind
from trimaran.report.breakdown import PARTS, PHASES
from trimaran.report.comparison import Comparison, Figure
from trimaran.report.slow_rank import SlowRank


def noise_line(noise: Noise | None) -> str:
    """One line for people, to be read with a measured figure.

    Args:
        noise: of runs like the measured one; None where it is not known

    Example:
        >>> runs = {"ranks": 2, "step_time_s": (0.1, 0.101), "date": "2026-11-20", "source": "example"}
        >>> noise_line(Noise(low=-0.038, high=0.04, **runs))
        'identical runs on 2 ranks differ by up to ±4.0 % (90 %), calibrated 2026-11-20'
        >>> noise_line(None)
        'noise of repeated runs unknown here: trimaran calibrate'
    """
    if noise is None:
        return "noise of repeated runs unknown here: trimaran calibrate"
    ranks = "1 rank" if noise.ranks == 1 else f"{noise.ranks} ranks"
    percent = 100 * noise.high
    return (
        f"identical runs on {ranks} differ by up to ±{percent:.{1 if percent < 10 else 0}f} % (90 %), "
        f"calibrated {noise.date}"
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
    kinds = [kind for kind in comparison.kinds if kind.kind in _COMPUTE and kind.each.measured_s]
    ratios = [(kind.each.measured_s or 0.0) / kind.each.predicted_s for kind in kinds if kind.each.predicted_s]
    if len(ratios) < 2 or not (min(ratios) > 1 + _APART or max(ratios) < 1 / (1 + _APART)):
        return ""
    taken = sum(kind.count * (kind.each.measured_s or 0.0) for kind in kinds)
    ratio = taken / sum(kind.count * kind.each.predicted_s for kind in kinds)
    return (
        f"forward, backward and update each took {'longer' if ratio > 1 else 'less'} than when their costs were "
        f"measured, together {ratio:.2f} times as long: this machine is {'slower' if ratio > 1 else 'faster'} now than "
        f"it was then; `trimaran calibrate {job}` measures again"
    )


def noise_document(noise: Noise | None) -> dict[str, Any] | None:
    """The same for programs.

    Args:
        noise: of runs like the measured one; None where it is not known

    Returns:
        `interval`, at 90 %, of the ratio of two identical runs minus 1; `date`, `ranks`, `runs`, `source`.
    """
    if noise is None:
        return None
    return {
        "interval": [noise.low, noise.high],
        "date": noise.date,
        "ranks": noise.ranks,
        "runs": len(noise.step_time_s),
        "source": noise.source,
    }


REPORT_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReport:
    """The record of a run.

    Attributes:
        job: reference or name of the job
        strategy: how it ran
        prediction: of the step, before the run
        comparison: of prediction and measurement; None where nothing was recorded
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

    job: str
    strategy: Strategy
    prediction: Prediction
    comparison: Comparison | None = None
    samples_per_s: float | None = None
    final: Mapping[str, float | None] = field(default_factory=dict)
    run_dir: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    noise: Noise | None = None
    others: float | None = None
    memory: Mapping[str, Any] | None = None
    gradient_noise: Mapping[str, Any] | None = None
    verified: Mapping[str, Any] | None = None
    slow_ranks: tuple[SlowRank, ...] = ()
    skipped_steps: tuple[int, ...] = ()
    rollbacks: tuple[Mapping[str, Any], ...] = ()
    restarts: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        compared = self.comparison
        step = Figure(
            predicted_s=self.prediction.step_time_s, measured_s=None if compared is None else compared.step.measured_s
        )
        verdict = run_verdict(f"{self.job} ({self.strategy.name})", step, self.prediction.interval_s, self.others)
        rows = (
            [("step", step)]
            if compared is None
            else [
                (f"rank {rank.rank}, {part}", rank.figure(part)) for rank in compared.ranks for part in ("step", *PARTS)
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


def report_document(report: RunReport) -> dict[str, Any]:
    """The report as the object that its file holds.

    Args:
        report: of a run
    """
    comparison = report.comparison
    measured_s = comparison.step.measured_s if comparison else None
    step = Figure(predicted_s=report.prediction.step_time_s, measured_s=measured_s)
    document: dict[str, Any] = {
        "schema_version": REPORT_VERSION,
        "job": report.job,
        "plan": {"strategy": report.strategy.name, "details": to_plain(report.strategy)},
        "predicted": _predicted(report.prediction),
        "measured": {
            "step_time_s": measured_s,
            "steps": comparison.steps if comparison else 0,
            "warmup": comparison.warmup if comparison else 0,
        },
        "error": step.error,
        "noise": noise_document(report.noise),
        "others": report.others,
        "memory": None if report.memory is None else dict(report.memory),
        **({} if report.gradient_noise is None else {"gradient_noise": dict(report.gradient_noise)}),
        **({} if report.verified is None else {"verified": dict(report.verified)}),
        **({"slow_ranks": [to_plain(one) for one in report.slow_ranks]} if report.slow_ranks else {}),
        **({"skipped_steps": list(report.skipped_steps)} if report.skipped_steps else {}),
        **({"rollbacks": list(map(dict, report.rollbacks))} if report.rollbacks else {}),
        **({"restarts": list(map(dict, report.restarts))} if report.restarts else {}),
        "samples_per_s": report.samples_per_s,
        "final": dict(report.final),
        "run_dir": report.run_dir,
        "environment": dict(report.environment),
        "notes": list(report.notes),
    }
    return document | (comparison_document(comparison) if comparison else {})


def _predicted(prediction: Prediction) -> dict[str, Any]:
    peaks = list(prediction.peak_bytes)
    plain: dict[str, Any] = to_plain(prediction)
    return plain | {"peak_bytes": max(peaks, default=0), "peak_bytes_by_rank": peaks}


def comparison_document(comparison: Comparison) -> dict[str, Any]:
    """The parts of a comparison as JSON data.

    Args:
        comparison: of prediction and measurement

    Returns:
        `by_rank`, one list a part of the step, and what the host takes before the spans of each phase of the measured
        step; `by_kind`, one object a kind; `by_instruction`, lists.
    """
    ranks = comparison.ranks
    return {
        "by_rank": {
            "rank": [rank.rank for rank in ranks],
            **{name: _lists(rank.figure(name) for rank in ranks) for name in ("step", *PARTS, "overlapped")},
            "host_s": {name: [rank.measured.host.get(name, 0.0) for rank in ranks] for name in PHASES},
        },
        "by_kind": [
            {
                "kind": kind.kind.value,
                "count": kind.count,
                "observed": kind.observed,
                "predicted_s": kind.each.predicted_s,
                "measured_s": kind.each.measured_s,
                "error": kind.each.error,
            }
            for kind in comparison.kinds
        ],
        "by_instruction": {
            "instruction": list(comparison.instructions),
            **_lists(comparison.instructions.values()),
        },
    }


def write_report(path: Path, report: RunReport) -> None:
    """Write the report of a run; the file is there whole or not at all.

    Args:
        path: where; an existing file is replaced
        report: of the run

    Raises:
        EnvironmentProblem: it cannot be written there
    """
    write_whole(path, (json.dumps(report_document(report), indent=1, ensure_ascii=False) + "\n").encode())


def _lists(figures: Iterable[Figure]) -> dict[str, list[float | None]]:
    rows = list(figures)
    return {
        "predicted_s": [figure.predicted_s for figure in rows],
        "measured_s": [figure.measured_s for figure in rows],
        "error": [figure.error for figure in rows],
    }
