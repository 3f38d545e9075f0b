"""Update, accumulation, clipping and loading of a step on a device that is not at hand.

update        the optimizer's kernels, as `launches × tensors + bytes / rate`, fitted to what each parameter's takes
accumulation  gradients of a further microbatch read, those that are there read and written
clipping      gradients read for their norm, then read and written
loading       none of it is seen: batches are loaded and copied ahead
"""

import numpy

from trimaran.cluster.catalog import CatalogDevice
from trimaran.costs.exchange_recipes import recipe_of
from trimaran.costs.operations.types import StepEstimate
from trimaran.costs.software import Software
from trimaran.costs.tables import StepCosts, TensorFit
from trimaran.costs.types import Cost
from trimaran.graph.types import Phase
from trimaran.graph.workload import Workload

_PASSES = 3
"""Clipping reads a gradient for its norm, then reads and writes it; accumulation reads two and writes one."""

_CLIP_LAUNCHES = 2
"""Kernels for each gradient: its norm, its product with the factor."""

LOADED_AHEAD = "assumed: batches are loaded ahead"


def estimated_step_costs(workload: Workload, estimate: StepEstimate, device: CatalogDevice) -> StepCosts:
    """What a step takes beside its forward and its backward.

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
            per_byte_s=_PASSES / (device.bandwidth.bytes_per_s * device.bandwidth.fraction),
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


def exchange_handling_s(workload: Workload, device: CatalogDevice, software: Software) -> float:
    """Hooks, and copies of gradients into the buffers of an all-reduce and out of them, of one rank's step [s].

    Args:
        workload: of the step, at any batch
        device: of the catalog
        software: whose habits decide
    """
    recipe = recipe_of(software)
    rate = device.bandwidth.bytes_per_s * device.bandwidth.fraction
    return recipe.step_s + recipe.tensor_s * len(workload.gradients) + recipe.passes * workload.gradient_bytes / rate


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
