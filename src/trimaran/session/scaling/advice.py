"""What change of a network, or of how it is trained, would help, with what each is expected to gain.

Each proposal is a changed workload put through the same simulation: nothing is proposed by a rule of thumb alone. They
are tried on the largest group of each batch and method. Left out: whether the changed network learns as well.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from trimaran.costs.operations.types import StepEstimate
from trimaran.graph.types import Phase
from trimaran.graph.workload import WeightGradient, WorkKind, Workload
from trimaran.report.scaling.study import Advice, ScalingRow

Known = Callable[[int], tuple[Workload, StepEstimate]]
Seconds = Callable[[Workload, StepEstimate, ScalingRow], float]

_WORTH = 0.02
_SMALL_BYTES = 64 * 1024
_LARGE_SHARE = 0.15
_TINY = (WorkKind.ELEMENTWISE, WorkKind.NORMALIZATION, WorkKind.POOLING, WorkKind.COPY, WorkKind.REDUCTION)


def advise(rows: Sequence[ScalingRow], known: Known, seconds: Seconds) -> tuple[Advice, ...]:
    """Changes that gain at least two per cent, the largest gain first.

    Args:
        rows: of the study
        known: workload and estimate at a batch
        seconds: a step of a changed workload in a row's set-up [s]
    """
    found: list[Advice] = []
    for row in _largest(rows):
        work, estimate = known(row.step.batch_per_device)
        found += _splitting(row, work, estimate, seconds)
        found += _shrinking(row, work, estimate, seconds)
        found += _joining(row, work, estimate, seconds)
        found += _merging(row, work, estimate)
        found += _enlarging(row, known, seconds)
    return tuple(sorted((advice for advice in found if advice.gain >= _WORTH), key=lambda advice: -advice.gain))


def _largest(rows: Sequence[ScalingRow]) -> list[ScalingRow]:
    """The largest group of each batch and method."""
    found: dict[tuple[int, str], ScalingRow] = {}
    for row in rows:
        key = (row.step.batch_per_device, row.step.sync)
        if key not in found or found[key].step.devices < row.step.devices:
            found[key] = row
    return [row for row in found.values() if row.step.devices > 1]


def _splitting(row: ScalingRow, work: Workload, estimate: StepEstimate, seconds: Seconds) -> list[Advice]:
    """A tensor that has one home, cut into one for each device."""
    large = [gradient for gradient in work.gradients if gradient.nbytes > _LARGE_SHARE * work.gradient_bytes]
    if row.step.sync != "p2p" or not large:
        return []
    parts = row.step.devices
    gradients: list[WeightGradient] = []
    for gradient in work.gradients:
        if gradient in large:
            part = replace(gradient, nbytes=gradient.nbytes // parts, elements=gradient.elements // parts)
            gradients += [part] * parts
        else:
            gradients.append(gradient)
    names = _named(large)
    return [
        Advice(
            change=f"split {names} into {parts} tensors",
            reason="each has one home, whose links carry all of it",
            gain=_gain(row, seconds(replace(work, gradients=tuple(gradients)), estimate, row)),
            row=row,
        )
    ]


def _shrinking(row: ScalingRow, work: Workload, estimate: StepEstimate, seconds: Seconds) -> list[Advice]:
    """The layer whose gradients are waited for the longest, with a quarter of its weights."""
    if not row.step.exposed:
        return []
    layer = row.step.exposed[0]
    gradients = tuple(
        replace(gradient, nbytes=gradient.nbytes // 4) if gradient.module == layer.module else gradient
        for gradient in work.gradients
    )
    return [
        Advice(
            change=f"a quarter of the weights in {layer.module} (a narrower layer, two factors, pooling before it)",
            reason="its gradients cannot hide behind the backward",
            gain=_gain(row, seconds(replace(work, gradients=gradients), estimate, row)),
            row=row,
        )
    ]


def _joining(row: ScalingRow, work: Workload, estimate: StepEstimate, seconds: Seconds) -> list[Advice]:
    """Small tensors exchanged as one."""
    small = [gradient for gradient in work.gradients if gradient.nbytes < _SMALL_BYTES]
    if len(small) < 8:
        return []
    last = max(small, key=lambda gradient: gradient.work)
    joined = replace(last, nbytes=sum(gradient.nbytes for gradient in small))
    gradients = tuple(gradient for gradient in work.gradients if gradient not in small)
    changed = replace(work, gradients=(*gradients, joined))
    return [
        Advice(
            change=f"exchange the {len(small)} tensors below 64 KiB as one",
            reason="each is a call of its own, whatever its size",
            gain=_gain(row, seconds(changed, estimate, row)),
            row=row,
        )
    ]


def _merging(row: ScalingRow, work: Workload, estimate: StepEstimate) -> list[Advice]:
    """Tiny kernels merged into the ones before them, where the host cannot keep up."""
    launches = sum(item.launches for item in work.works if item.phase is not Phase.UPDATE)
    tiny = sum(item.launches for item in work.works if item.kind in _TINY and item.phase is not Phase.UPDATE)
    if not estimate.launch_bound or not launches:
        return []
    shorter_s = max(estimate.device_s, estimate.host_s * (1 - tiny / launches))
    saved_s = max(0.0, estimate.seconds - shorter_s)
    return [
        Advice(
            change=f"merge the {tiny} elementwise and normalization kernels of {launches} (compile, or larger layers)",
            reason="the host cannot launch kernels as fast as the device runs them",
            gain=_gain(row, max(row.step.step.seconds - saved_s, 1e-9)),
            row=row,
        )
    ]


def _enlarging(row: ScalingRow, known: Known, seconds: Seconds) -> list[Advice]:
    """Twice the batch on each device."""
    work, estimate = known(2 * row.step.batch_per_device)
    return [
        Advice(
            change=f"{work.batch} samples a device instead of {row.step.batch_per_device}",
            reason="the same exchange and the same launches for twice the samples",
            gain=_gain(row, seconds(work, estimate, row) / 2),
            row=row,
        )
    ]


def _gain(row: ScalingRow, step_s: float) -> float:
    return row.step.step.seconds / step_s - 1


def _named(gradients: Sequence[WeightGradient]) -> str:
    names = list(dict.fromkeys(gradient.name for gradient in gradients))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
