"""A step whose loss is computed in chunks of its rows: the scores of all rows are never there at once."""

from dataclasses import replace

import numpy as np

from trimaran.base.remedies import LOSS_ACTION, LOSS_ASSUMPTION, LOSS_PARTS, MemoryHelp
from trimaran.base.units import format_bytes
from trimaran.graph.trace.logits import find_logits
from trimaran.graph.trace.types import Role
from trimaran.graph.types import Phase
from trimaran.machine.types import Device
from trimaran.memory.minimum import minimum_memory
from trimaran.planning.tracing.meta_trace import PricedStep
from trimaran.program.memory import KEEP_ALL
from trimaran.simulator.memory import live_bytes

_LEAST_SAVED = 0.01
"""Of the peak; less is not told."""


def chunked_step(step: PricedStep, device: Device) -> PricedStep | None:
    """The step with head and loss in chunks, each recomputed in the backward; None: it has no scores of classes.

    Storages of scores, of their copies and gradients have a chunk's size. Operations on them take as long as before,
    and the shortest of the step once more for each other chunk; the forward ones run twice; the gradient of the head's
    weight is added up.

    Args:
        step: with the loss whole
        device: that it is priced on
    """
    trace = step.trace
    logits = find_logits((op.name, [shape for _, shape in op.operands]) for op in trace.ops)
    if logits is None:
        return None
    numbers: set[int] = set()
    durations_s = step.costs.durations_s.copy()
    launch_s = float(durations_s[durations_s > 0.0].min(initial=np.inf))
    again_s, last = 0.0, 0
    for op in trace.ops:
        shapes = [shape for shape in op.results if shape is not None]
        if op.phase is Phase.UPDATE or not logits.concern([*shapes, *(shape for _, shape in op.operands)]):
            continue
        made = [number for number, version in op.writes if version == 0]
        if any(map(logits.holds, shapes)):
            numbers.update(number for number in made if trace.storages[number].role is Role.ACTIVATION)
        else:
            added = sum(
                trace.storages[number].nbytes for number in made if trace.storages[number].role is Role.GRADIENT
            )
            durations_s[op.moment] += 3 * (LOSS_PARTS - 1) * added / device.sustained_bytes_per_s
        durations_s[op.moment] += (LOSS_PARTS - 1) * launch_s
        if op.phase is Phase.FORWARD:
            again_s += float(durations_s[op.moment])
            last = op.moment
        elif again_s:
            durations_s[op.moment] += again_s
            again_s = 0.0
    if not numbers:
        return None
    if again_s:
        durations_s[last] += again_s
    storages = tuple(
        replace(one, nbytes=-(-one.nbytes // LOSS_PARTS), copy_bytes=-(-one.copy_bytes // LOSS_PARTS))
        if one.number in numbers
        else one
        for one in trace.storages
    )
    less = replace(trace, storages=storages)
    return PricedStep(trace=less, costs=replace(step.costs, durations_s=durations_s), kept=live_bytes(less, KEEP_ALL))


def loss_in_chunks(step: PricedStep, device: Device, *, budget_bytes: int) -> MemoryHelp | None:
    """The loss in chunks as a remedy, without a plan; None where it saves next to nothing.

    Args:
        step: with the loss whole
        device: that it is priced on
        budget_bytes: that it should hold [bytes]
    """
    then = chunked_step(step, device)
    if then is None or step.kept.peak - then.kept.peak < _LEAST_SAVED * step.kept.peak:
        return None
    least = format_bytes(minimum_memory(then.trace).nbytes)
    return MemoryHelp(
        id="chunked-loss",
        rank=0,
        name="loss in chunks",
        action=LOSS_ACTION,
        saves_bytes=step.kept.peak - then.kept.peak,
        reserved_bytes=then.kept.peak,
        fits=then.kept.peak <= budget_bytes,
        basis=f"{format_bytes(step.kept.peak)} at the peak become {format_bytes(then.kept.peak)}, and the minimum "
        f"memory becomes {least}.",
        assumption=LOSS_ASSUMPTION,
        step_time_s=then.costs.compute_s,
    )
