"""The cost table of a graph on a device of the catalog, at given batch sizes.

The kernels of a step at a batch are priced as a whole (`estimate`): the device's time, and of the wait for the
host the share that each kernel's launch causes. An operation's cost is the sum of its kernels'. So the sum over all
operations is the estimate of the step, and a part of the network that runs elsewhere takes its launches with it: the
host of each device asks for its own kernels. The exchange of gradients is priced with the program
(`pricing.program`), by the same rules as a data-parallel step (`simulator.data_parallel`).

Errors of the estimate are common to all kernels. They are the interval of the whole, and none of a single operation's.
Left out: that one part of a network may wait for its host while another does not (the whole decides).

Update, accumulation, clipping and loading of a step on a device that is not at hand.

update        the optimizer's kernels, as `launches × tensors + bytes / rate`, fitted to what each parameter's takes
accumulation  gradients of a further microbatch read, those that are there read and written
clipping      gradients read for their norm, then read and written
loading       none of it is seen: batches are loaded and copied ahead
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy
from numpy.typing import NDArray

from trimaran.base.errors import InputError
from trimaran.graph.kernels.attribution import Attribution, attribute
from trimaran.graph.kernels.workload import Workload
from trimaran.graph.trace.live_bytes import StepMemory
from trimaran.graph.types import Graph, Op, Phase
from trimaran.machine.types import Device
from trimaran.pricing.exchange.frameworks import recipe_of
from trimaran.pricing.exchange.replica_memory import workspace_bytes
from trimaran.pricing.kernels.constants import constants
from trimaran.pricing.kernels.estimate import StepEstimate, estimate_step
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.tables import (
    FORMS,
    CostTable,
    Fingerprint,
    OperationKey,
    StepCosts,
    StepNeeds,
    TensorFit,
    WholeCost,
    WholeKey,
)
from trimaran.pricing.transfers import SEND
from trimaran.pricing.types import Cost, Interference, OpCost
from trimaran.program.types import Kind

_PASSES = 3
"""Clipping reads a gradient for its norm, then reads and writes it; accumulation reads two and writes one."""

_CLIP_LAUNCHES = 2
"""Kernels for each gradient: its norm, its product with the factor."""

LOADED_AHEAD = "assumed: batches are loaded ahead"


def estimated_step_costs(workload: Workload, estimate: StepEstimate, device: Device) -> StepCosts:
    """Costs of a step besides its forward and its backward.

    Args:
        workload: of the step, at any batch
        estimate: of that workload on the device
        device: of the catalog
    """
    update = estimate.update
    low, high = (update.low / update.seconds, update.high / update.seconds) if update.seconds > 0 else (1.0, 1.0)
    trained = workload.gradient_bytes
    per_tensor_s, per_byte_s = _fit(workload, estimate)

    def over_gradients(launches: int) -> TensorFit:
        return TensorFit(
            fixed_s=0.0,
            per_tensor_s=launches * device.launch.seconds,
            per_byte_s=_PASSES / device.sustained_bytes_per_s,
            low=low,
            high=high,
            source="analytic: gradients read twice and written once",
        )

    nothing = Cost(0.0, 0.0, 0.0, LOADED_AHEAD)
    return StepCosts(
        update=TensorFit(
            fixed_s=0.0, per_tensor_s=per_tensor_s, per_byte_s=per_byte_s, low=low, high=high, source=update.source
        ),
        clip=over_gradients(_CLIP_LAUNCHES),
        load={1: nothing},
        accumulate=over_gradients(1),
        state_bytes_per_byte=workload.optimizer_bytes / trained if trained else 0.0,
    )


def _fit(workload: Workload, estimate: StepEstimate) -> tuple[float, float]:
    """Seconds for each tensor and for each byte of it, whose sum is the whole update."""
    seconds = [s for s, work in zip(estimate.work_s, workload.works, strict=True) if work.phase is Phase.UPDATE]
    sizes = [gradient.nbytes for gradient in workload.gradients]
    total, count, nbytes = sum(seconds), len(sizes), float(sum(sizes))
    if total <= 0.0 or not sizes or nbytes <= 0.0:
        return 0.0, 0.0
    if len(seconds) != count:
        return 0.0, total / nbytes
    smallest = float(numpy.quantile(seconds, 0.1))
    per_tensor_s = min(smallest, total / count)
    return per_tensor_s, max(0.0, total - per_tensor_s * count) / nbytes


def estimated_table(
    graph: Graph,
    workload_at: Callable[[int], Workload],
    *,
    device: Device,
    batches: Collection[int],
    softwares: Mapping[str, Software],
    memory_at: Callable[[int], StepMemory] | None = None,
) -> CostTable:
    """Costs of the operations of a graph on a device.

    Args:
        graph: of a job
        workload_at: the step of that job at a batch
        device: of the catalog
        batches: sizes of microbatches that will be asked for [samples]
        softwares: by execution: "eager", and "compiled" where that is wanted
        memory_at: memory of that step at a batch; None: not known

    Returns:
        A table with every operation at every batch.

    Raises:
        InputError: no batch, or no software for "eager"
    """
    if not batches or "eager" not in softwares:
        raise InputError(
            "an estimated table needs at least one batch size and a software for eager execution",
            code="estimate.no-batch",
        )
    operations: dict[OperationKey, dict[int, OpCost]] = {}
    steps: dict[int, StepCosts] = {}
    wholes: dict[WholeKey, dict[int, WholeCost]] = {}
    needs: dict[int, StepNeeds] = {}
    sizes = sorted(set(batches))
    attribution = attribute(graph, workload_at(sizes[-1]))
    for execution, software in softwares.items():
        for batch in sizes:
            work = workload_at(batch)
            estimate = estimate_step(work, device, software)
            starts_s = launch_seconds(work, estimate, device)
            if execution == "eager":
                steps[batch] = estimated_step_costs(work, estimate, device)
                if memory_at is not None:
                    workspace = workspace_bytes(work.works, device)
                    needs[batch] = StepNeeds(memory=memory_at(batch), workspace_bytes=workspace)
            _add_operations(operations, graph, attribution, work, estimate, starts_s, batch, execution)
            for form in FORMS:
                wholes.setdefault(WholeKey(graph.digest, form, execution), {})[batch] = _whole(estimate)
    software, step = softwares["eager"], steps[sizes[-1]]
    recipe = recipe_of(software)
    return CostTable(
        fingerprint=Fingerprint(
            device=device.title,
            kind="cuda",
            torch=f"{software.framework} {software.year:g}",
            threads=1,
            ranks=1,
            cores=1,
        ),
        operations=operations,
        wholes=wholes,
        steps={graph.digest: replace(step, updates={batch: one.update for batch, one in steps.items()}, needs=needs)},
        interference={
            SEND: Interference(source="assumed: messages leave compute alone"),
            str(Kind.ALL_REDUCE): Interference(compute=recipe.interference, source=recipe.source),
        },
        software=software,
    )


def launch_seconds(workload: Workload, estimate: StepEstimate, device: Device) -> list[float]:
    """The part of each kernel's time that is its launch: its start on the device, and the wait for the host [s].

    Args:
        workload: of the step
        estimate: of that workload
        device: of the catalog
    """
    start_s = device.launch.seconds * constants()["launch"]
    priced = list(zip(workload.works, estimate.work_s, strict=True))
    launches = [work.launches if seconds > 0.0 else 0 for work, seconds in priced]
    wait_s = max(0.0, sum(estimate.work_s) - estimate.device_s) / max(1, sum(launches))
    return [min(seconds, count * (start_s + wait_s)) for count, (_, seconds) in zip(launches, priced, strict=True)]


def _whole(estimate: StepEstimate) -> WholeCost:
    return WholeCost(forward=estimate.forward, backward=estimate.backward, evaluation=estimate.forward)


def _add_operations(
    operations: dict[OperationKey, dict[int, OpCost]],
    graph: Graph,
    attribution: Attribution,
    work: Workload,
    estimate: StepEstimate,
    starts_s: Sequence[float],
    batch: int,
    execution: str,
) -> None:
    """Add the cost of each operation at a batch; operations of the same content share the mean of theirs."""
    count = len(graph.ops)
    sums = [attribution.sums(estimate.work_s, count, backward=backward) for backward in (False, True)]
    starts = sum(attribution.sums(starts_s, count, backward=backward) for backward in (False, True))
    alike: dict[str, list[int]] = {}
    for number, op in enumerate(graph.ops):
        alike.setdefault(op.content, []).append(number)
    for content, numbers in alike.items():
        forward, backward = (_exact(part, numbers, estimate.source) for part in sums)
        whole_s = forward.seconds + backward.seconds
        started_s = float(numpy.asarray(starts)[numbers].mean())
        operations.setdefault(OperationKey(content, execution), {})[batch] = OpCost(
            forward=forward,
            backward=backward,
            launches=min(1.0, started_s / whole_s) if whole_s > 0.0 else 0.0,
            complete=_complete(graph.ops[numbers[0]], numbers[0], attribution, work, estimate),
        )


_MANY = 3
"""From this number of parameters on, an operation is a region: a weight and its bias are complete at once."""


def _complete(
    op: Op, number: int, attribution: Attribution, work: Workload, estimate: StepEstimate
) -> tuple[float, ...]:
    """The fraction of an operation's backward after which the gradient of each of its parameters is complete."""
    if len(op.parameters) < _MANY:
        return ()
    chosen = attribution.backward & (attribution.op == number)
    places = attribution.work[chosen]
    passed = numpy.cumsum(numpy.asarray(estimate.work_s)[places] * attribution.fraction[chosen])
    if not len(passed) or passed[-1] <= 0.0:
        return ()
    last = {gradient.name: gradient.work for gradient in work.gradients}
    found = []
    for name in op.parameters:
        upto = int(numpy.searchsorted(places, last.get(name, places[-1]), side="right"))
        found.append(min(1.0, float(passed[upto - 1] / passed[-1])) if upto else 0.0)
    return tuple(found)


def _exact(seconds: NDArray[numpy.float64], numbers: Sequence[int], source: str) -> Cost:
    mean = float(seconds[list(numbers)].mean())
    return Cost(mean, mean, mean, f"analytic: {source}")
