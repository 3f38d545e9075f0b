"""Remedies for a step that waits for its data."""

from collections.abc import Callable, Iterator

from trimaran.measure.observe import Findings, Parts
from trimaran.report.remedies import Remedy
from trimaran.session.advice.gains import gain
from trimaran.units import format_seconds

_MOST_WORKERS = 8
_ENOUGH = 0.8
# A smaller share of the step is not worth measuring the handing over for.
_WORTH = 0.02


def workers(findings: Findings, *, handover: Callable[[int], float | None]) -> Iterator[Remedy]:
    """More worker processes.

    Args:
        findings: of an observed script
        handover: time that a batch of so many bytes takes to arrive from a worker [s]; None where it is not known
    """
    loader = findings.facts["loader"]
    mean = findings.mean
    if loader is None or mean.load < _WORTH * mean.step_s:
        return
    first, cores = findings.first, findings.facts["cores"]
    now = loader["workers"]
    handed_over = 0.0 if now else handover(findings.facts["batch_nbytes"])
    # A step may load several batches, to accumulate over them.
    arrives = (handed_over or 0.0) * max(1.0, findings.counts["batches_loaded"])
    # With workers that are waited for, all of them are busy all the time.
    one_batch = mean.load if not now else now * mean.step_s
    rest = mean.step_s - mean.load
    here = [rank for rank in findings.ranks if rank.record.facts["host"] == findings.facts["host"]]
    busy = sum(rank.busy_cores for rank in here)
    computes = first.load_cpu > 0.5 or now > 0
    # The processor time of workers that exist already is not seen: they are taken to compute.
    demand = (busy + (now * len(here) if now else 0)) if computes else 0.0

    def after(parts: Parts, workers: int) -> float:
        batch = parts.load if not now else now * parts.step_s
        bounds = (parts.step_s - parts.load + arrives, batch / workers, demand * parts.step_s / cores)
        return float(max(bounds))

    most = _MOST_WORKERS if not computes else max(1, cores - len(here))
    wanted = next((n for n in range(1, most) if one_batch / n <= _ENOUGH * rest), most)
    if wanted <= now:
        return
    text = "worker" if wanted == 1 else "workers"
    yield Remedy(
        limiter="loader",
        name=f"load in {wanted} {text}",
        action=f"Give the DataLoader num_workers={wanted} (now {now}) and persistent_workers=True.",
        basis=(
            f"A step's data takes {format_seconds(one_batch)} to load and {format_seconds(arrives)} to arrive from "
            f"workers, the rest of a step {format_seconds(rest)}; the step becomes the longer of the rest with the "
            f"arrival and {format_seconds(one_batch)}/{wanted}, and no less than its processor time on {cores} cores."
        ),
        assumption=_of_workers(iterable=loader.get("iterable", False), known=handed_over is not None),
        setting={"workers": wanted},
        **gain(findings, lambda parts: parts.step_s - after(parts, wanted)),
    )


def _of_workers(*, iterable: bool, known: bool) -> str:
    text = "loading spreads over workers and does not slow the training process down"
    if iterable:
        text += "; an IterableDataset must give each worker its own share (get_worker_info)"
    if not known:
        text += "; handing a batch over is free, because it could not be measured"
    return text + "."


def persistent(findings: Findings) -> Iterator[Remedy]:
    """Workers that are not started anew each epoch."""
    loader = findings.facts["loader"]
    if loader is None or not loader["workers"] or loader["persistent_workers"]:
        return
    yield Remedy(
        limiter="loader",
        name="keep the workers",
        action="Give the DataLoader persistent_workers=True.",
        basis=f"Starting workers anew each epoch takes {format_seconds(findings.mean.start)} of the mean step.",
        setting={},
        **gain(findings, lambda parts: parts.start),
    )
