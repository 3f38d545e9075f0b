"""The step of a row's set-up: on one device, or in a data-parallel group, with one device's measured step or without.

With such an anchor the modelled step of one device is scaled to it. The anchor accumulates the same number of
microbatches as the row.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.base.errors import InputError
from trimaran.graph.kernels.workload import Workload
from trimaran.machine.types import Device
from trimaran.networks.names import with_options
from trimaran.planning.tracing.workloads import workload
from trimaran.pricing.exchange.costs import ExchangeOptions
from trimaran.pricing.exchange.frameworks import RECIPES, exchange_constants
from trimaran.pricing.exchange.step import ScaledStep
from trimaran.pricing.input_pipeline import InputPipeline
from trimaran.pricing.kernels.estimate import StepEstimate, estimate_step
from trimaran.simulator.data_parallel import DataParallelSetup, data_parallel_step
from trimaran_studies.facts.loaders import loader_of, photograph_feed, rate_of_host
from trimaran_studies.facts.sizes import SIZED, sized_workload
from trimaran_studies.validation.measurement import Row, Setup
from trimaran_studies.validation.recipes import Recipe

_PHOTOGRAPH_BYTES = 100 * 100 * 3 * 4
"""Smallest sample that is a photograph to be decoded, where samples are read from disk [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowStep:
    """The step of a row.

    Attributes:
        workload: of one microbatch of one device
        estimate: of that workload on one device
        scaled: in the group, accumulated microbatches included
    """

    workload: Workload
    estimate: StepEstimate
    scaled: ScaledStep

    @property
    def seconds(self) -> float:
        """The whole step [s]."""
        return self.scaled.step.seconds

    @property
    def deviation(self) -> float:
        """Standard deviation of the logarithm of the step on one device, by its curves."""
        forward = self.estimate.forward
        return math.log(forward.high / forward.low) / (2 * 1.645) if forward.low > 0 else 0.0

    @property
    def added_share(self) -> float | None:
        """Share of the step: exposed exchange, its overhead, waits for data; None on one device."""
        if self.scaled.devices == 1:
            return None
        added = self.scaled.exposed_communication_s + self.scaled.overhead_s + self.scaled.feeding_s
        return added / self.seconds


def row_step(row: Row, setup: Setup, recipe: Recipe, *, anchor_s: float | None) -> RowStep:
    """The step of a row's set-up.

    Args:
        row: the row
        setup: of the row
        recipe: of its script
        anchor_s: the same step on one device, as measured; None: it is not used [s]

    Raises:
        InputError: the network's kernels are not known and there is no anchor
    """
    asked = row_workload(setup, recipe)
    if anchor_s is None and setup.network.startswith(SIZED):
        name = setup.network.removeprefix(SIZED)
        raise InputError(
            f'row {row.row_id}: of "{name}" only the size is known, so its scaling can be predicted from one '
            "device's figure, but not its speed",
            row=row.row_id,
        )
    estimate = estimate_step(asked, setup.machine.node.device, setup.software)
    if anchor_s is not None:
        estimate = _anchored(asked, setup, estimate, anchor_s)
    options = ExchangeOptions(
        accumulation=setup.accumulation,
        recipe=RECIPES.get(recipe.exchange),
        wire_share=recipe.wire_share,
        explain=False,
        length_spread=exchange_constants().length_spread if recipe.unequal_lengths else 0.0,
    )
    scaled = data_parallel_step(
        DataParallelSetup(
            workload=asked,
            estimate=estimate,
            machine=setup.machine,
            # With unequal numbers of devices, the node with the most is the bottleneck.
            devices=setup.nodes * math.ceil(setup.devices / setup.nodes),
            nodes=setup.nodes,
            sync=setup.sync,
            software=setup.software,
            options=options,
            # The measured step of one device includes its input pipeline.
            feed=None if setup.devices == 1 and anchor_s is not None else _feed(setup, recipe, asked),
        )
    )
    return RowStep(workload=asked, estimate=estimate, scaled=scaled)


def row_workload(setup: Setup, recipe: Recipe) -> Workload:
    """The workload of a microbatch on a device."""
    if setup.network.startswith(SIZED):
        name = setup.network.removeprefix(SIZED)
        return sized_workload(name, batch=setup.local_batch, precision=setup.precision, split=recipe.split)
    options = dict(setup.options)
    optimizer = options.pop("optimizer", None)
    return workload(
        with_options(setup.network, options),
        batch=setup.local_batch,
        precision=setup.precision,
        optimizer=optimizer,
    )


def _anchored(asked: Workload, setup: Setup, estimate: StepEstimate, anchor_s: float) -> StepEstimate:
    """The estimate of a microbatch, of steps that took `anchor_s` on one device with all their microbatches."""
    passes = estimate.forward.seconds + estimate.backward.seconds
    whole = setup.accumulation * passes + estimate.update.seconds
    one = anchor_s * estimate.seconds / whole
    return estimate_step(asked, setup.machine.node.device, setup.software, anchor_s=one)


def _feed(setup: Setup, recipe: Recipe, asked: Workload) -> InputPipeline | None:
    """The input pipeline of photographs of the row's devices; None where data need no decoding."""
    if recipe.feed_samples_per_s > 0:
        return rate_of_host(recipe.feed_samples_per_s, source="the script's own loader, one process")
    per_sample = asked.input_bytes / max(1, asked.batch)
    if not setup.real_data or per_sample < _PHOTOGRAPH_BYTES:
        return None
    return photograph_feed(
        setup.machine.node,
        loader=recipe.loader or loader_of(setup.software),
        cores=min(recipe.loader_cores, setup.machine.node.cpu_cores) or None,
    )


# ---------------------------------------------------------------------------------------------------------------------
# Baselines: linear scaling, a discount for every doubling, a fixed share of the peak


_SHARE = 0.35
"""Share of the peak that a step of training reaches on any device: a common rule of thumb."""

_DISCOUNT = 0.025
"""Loss of efficiency for every doubling of devices."""


def scaling_baselines(anchor_rate: float, devices: int) -> Mapping[str, float]:
    """Rates of N devices from the rate of one.

    Args:
        anchor_rate: of one device
        devices: N

    Example:
        >>> round(scaling_baselines(100.0, 8)["log2"], 1)
        744.2
    """
    return {"linear": anchor_rate * devices, "log2": anchor_rate * devices / (1 + _DISCOUNT * math.log2(devices))}


def roofline_step_s(workload: Workload, device: Device) -> float:
    """A step at a fixed share of the device's peak [s]."""
    rate = device.compute.get(workload.precision) or device.compute["fp32"]
    return workload.flops() / (_SHARE * rate.flops_per_s)
