"""Predicts steps that were measured with torch's `DataLoader`, from one fitted rate of each loader.

The rows come with Trimaran (`published/loaders.csv`, measured by `benchmarks/loaders`): data sets that are slow in a
known way, on one process and on two that share the host, with 0 to 4 workers each, and the same step with its batch
ready. The row of one process with one worker gives what a sample takes; all others are predicted from it by
`pricing.input_pipeline`, as `trimaran scale` does on machines of the catalog. A row says which resource its data set
takes: waiting that others do not lengthen, a disk that all use in turn, or work of a core. Where it takes two of them,
the waiting is given and the work of a core is fitted.

The processes compute on the cores of the host, so that their steps take part in its bound.
"""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from trimaran.pricing.input_pipeline import GIVEN, InputPipeline, given_samples
from trimaran.pricing.tables import SampleCosts
from trimaran_studies.validation.measurement import Answer, Row
from trimaran_studies.validation.scores import Scored, quantile

FAMILY = "feeding_measured"
"""The family of these answers."""

ALWAYS_THERE = "data always there"
"""The baseline: the step with its batch ready."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoaderStep:
    """A measured step.

    Attributes:
        row_id: of the row
        loader: name of the data set
        wait_s: that a sample waits, whatever others wait for [s]
        side: of the picture that a core decodes for a sample [pixels]; 0: none
        disk_s: that a sample has a disk to itself, which all share [s]
        ranks: processes of the training
        workers: of each; 0: it loads itself
        local_batch: samples of a process
        cores: of the host that ranks and workers share
        step_s: measured [s]
        ready_step_s: measured with a batch that is ready [s]
        machine: where
    """

    row_id: str
    loader: str
    wait_s: float
    side: int
    disk_s: float
    ranks: int
    workers: int
    local_batch: int
    cores: int
    step_s: float
    ready_step_s: float
    machine: str


def measured_steps() -> tuple[LoaderStep, ...]:
    """The measured steps that come with Trimaran."""
    text = (resources.files("trimaran_studies.published") / "loaders.csv").read_text(encoding="utf-8")
    return tuple(
        LoaderStep(
            row_id=cells["row_id"],
            loader=cells["loader"],
            wait_s=float(cells["wait_s"]),
            side=int(cells["side"]),
            disk_s=float(cells["disk_s"]),
            ranks=int(cells["ranks"]),
            workers=int(cells["workers"]),
            local_batch=int(cells["local_batch"]),
            cores=int(cells["cores"]),
            step_s=float(cells["step_s"]),
            ready_step_s=float(cells["ready_step_s"]),
            machine=f"{cells['cores']} cores of {cells['processor']}",
        )
        for cells in csv.DictReader(text.splitlines())
    )


def is_fitted(step: LoaderStep) -> bool:
    """Whether the rate of a loader is taken from a row: one process, one worker."""
    return step.ranks == 1 and step.workers == 1


def fitted_samples(step: LoaderStep) -> SampleCosts:
    """What a sample costs by the row of one worker, which is the step's only limit.

    Args:
        step: of one process with one worker
    """
    each_s, source = step.step_s / step.local_batch, f"row {step.row_id}"
    if step.disk_s:
        return given_samples(shared_s=each_s, source=source)
    if not step.side:
        return given_samples(read_s=each_s, source=source)
    return given_samples(read_s=step.wait_s, decode_s=max(0.0, each_s - step.wait_s), source=source)


def predicted_step(step: LoaderStep, samples: SampleCosts) -> float:
    """A step by the costs of its samples [s].

    Args:
        step: its set-up, and the step with a batch that is ready
        samples: fitted on another row
    """
    pipeline = InputPipeline(samples=samples, workers=step.workers, copies_ahead=0, cores=step.cores, source="")
    busy_s = step.ranks * step.ready_step_s
    return pipeline.fed(step.ready_step_s, batch=step.local_batch, devices=step.ranks, busy_s=busy_s).seconds


def answer_measured_loaders(steps: Sequence[LoaderStep] | None = None) -> tuple[Answer, ...]:
    """Predict the measured steps.

    Args:
        steps: other ones than those that come with Trimaran

    Returns:
        Answers in their order; rows that a rate was taken from are not predicted.
    """
    known = measured_steps() if steps is None else steps
    fits = {step.loader: step for step in known if is_fitted(step)}
    return tuple(_answer(step, fits.get(step.loader)) for step in known)


def _answer(step: LoaderStep, fit: LoaderStep | None) -> Answer:
    fields = {
        "model": "two convolutions",
        "machine": step.machine,
        "n_gpus": str(step.ranks),
        "batch_per_gpu": str(step.local_batch),
        "config": f"{step.loader}, workers={step.workers}",
        "use": "calibrate" if is_fitted(step) else "dev",
        "source_repo": "benchmarks/loaders",
    }
    row = Row(row_id=step.row_id, family=FAMILY, fields=fields, measured=step.step_s, unit="s", anchor=None)
    if fit is None or fit.row_id == step.row_id:
        return Answer(row=row, predicted=None, skipped="its loader's rate was taken from it", basis=step.loader)
    seconds = predicted_step(step, fitted_samples(fit))
    waits_s = seconds - step.ready_step_s
    return Answer(
        row=row,
        predicted=seconds,
        low=seconds - GIVEN * waits_s,
        high=seconds + GIVEN * waits_s,
        baselines={ALWAYS_THERE: step.ready_step_s},
        basis=step.loader,
        anchors=(fit.row_id,),
    )


LIMITED = 0.05
"""A row is limited by its loader where its figure is further than this from that with data always ready."""


def loader_lines(rows: Iterable[Scored]) -> list[str]:
    """How well rows that are limited by their loader are predicted, against their step with data always ready.

    Args:
        rows: of families of loaders
    """
    limited = [
        row
        for row in rows
        if row.error is not None
        and ALWAYS_THERE in row.baselines
        and abs(row.baselines[ALWAYS_THERE] / row.measured - 1.0) > LIMITED
    ]
    if not limited:
        return []
    ours = sorted(abs(row.error or 0.0) for row in limited)
    theirs = sorted(abs(row.baselines[ALWAYS_THERE] / row.measured - 1.0) for row in limited)
    shares = [f"{100 * quantile(ours, share):.1f} %" for share in (0.5, 0.9)]
    return [
        f"limited by the loader: {len(limited)} rows, over {100 * LIMITED:.0f} % from the step with data always ready; "
        f"median error {shares[0]}, 90 % of them below {shares[1]}; {ALWAYS_THERE}: median "
        f"{100 * quantile(theirs, 0.5):.1f} %"
    ]
