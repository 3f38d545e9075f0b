"""A step of a tuned training, as submissions to a benchmark run it, and how it changes with devices and batch.

    step = forward + backward + update by the device's curves      scaled to one measured run
         + the part of the exchange that backward does not hide
         + what devices gather from each other for their samples    tables of embeddings
         + waits for the slowest

Copies into buffers are fused away. Since round 1.0 a step is captured once and replayed, so what a host asks for costs
nothing; before, it does. Of a device that the catalog does not have no curve is known: its time is taken between that
of one that stands in and one in proportion to its samples. Where a step has fewer samples than devices, 2, 4, 8, … of
them share a sample and the rest evaluate.
"""

import math
from dataclasses import dataclass

from trimaran.cluster.machines import Machine
from trimaran.costs.collectives import collective_cost
from trimaran.costs.exchange import ExchangeOptions, straggling
from trimaran.costs.exchange_recipes import RECIPES
from trimaran.costs.operations.estimate import estimate_step
from trimaran.costs.software import Software
from trimaran.graph.workload import Workload
from trimaran.session.validation.time_to_train_benchmarks import Benchmark
from trimaran.session.validation.time_to_train_submissions import Submission
from trimaran.simulator.exchange import scale_step

_YEARS = {0.5: 2018.9, 0.6: 2019.4, 0.7: 2020.5, 1.0: 2021.4, 1.1: 2021.8, 2.0: 2022.4, 2.1: 2022.8, 3.0: 2023.4}
"""When the results of a round were made: by the releases of containers that labels name."""

_CAPTURED = 1.0
"""The round since which steps are captured and replayed (CUDA graphs)."""

_USUAL = 32
"""Samples of a device at which one that is not in the catalog is compared with the one that stands in."""

_MOST = math.log(64.0)
"""Bound of the factor between a measured step and the modelled one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunedStep:
    """A step of all devices.

    Attributes:
        seconds: the whole [s]
        added_s: of it, what one device alone would not have [s]
    """

    seconds: float
    added_s: float


class StepModel:
    """The step of a submission by the speed of its devices.

    Args:
        submission: devices, batch and machine
        benchmark: what it trains

    Attributes:
        unsure: logarithm of the factor by which the time alone may be larger or smaller than modelled, for its shape
    """

    def __init__(self, submission: Submission, benchmark: Benchmark) -> None:
        self._submission, self._benchmark = submission, benchmark
        self._machine = submission.machine
        self._software = _software(submission.version)
        self._devices, self._samples = divided(submission.batch, submission.devices, at_least=benchmark.divided)
        self._asked = _asked(benchmark, self._samples, self._machine)
        self._alone_s, self.unsure = self._modelled_s()

    def step(self, factor: float) -> TunedStep:
        """The step where a device's kernels take `factor` times what its curves say."""
        alone = estimate_step(
            self._asked, self._machine.node.device, self._software, anchor_s=max(1e-7, self._alone_s * factor)
        )
        if self._submission.devices == 1:
            return TunedStep(seconds=alone.seconds, added_s=0.0)
        nodes = max(1, min(self._machine.nodes, self._devices))
        devices = nodes * math.ceil(self._devices / nodes)
        scaled = scale_step(
            self._asked,
            alone,
            self._machine,
            devices=devices,
            nodes=nodes,
            software=self._software,
            options=ExchangeOptions(recipe=RECIPES["ddp"], wire_share=0.5, explain=False),
        )
        passes_s = scaled.forward_s + scaled.backward_s
        update_s = scaled.update_s / math.ceil(devices / nodes) if self._benchmark.sharded_update else scaled.update_s
        gather_s = max(0.0, self._gather_s(devices, nodes) - passes_s)
        added_s = scaled.exposed_communication_s + gather_s + straggling(devices, nodes) * passes_s
        return TunedStep(seconds=passes_s + update_s + added_s, added_s=added_s)

    def factor(self, step_s: float) -> float | None:
        """The factor with which a step takes the time that it took; None where none between 1/64 and 64 does.

        Args:
            step_s: measured [s]
        """
        low, high = -_MOST, _MOST
        if not self.step(math.exp(low)).seconds < step_s < self.step(math.exp(high)).seconds:
            return None
        while high - low > 1e-4:
            middle = (low + high) / 2
            below = self.step(math.exp(middle)).seconds < step_s
            low, high = (middle, high) if below else (low, middle)
        return math.exp((low + high) / 2)

    def _modelled_s(self) -> tuple[float, float]:
        """A step on one device by curves [s]; how unsure its shape is, as a logarithm."""
        device = self._machine.node.device
        found = estimate_step(self._asked, device, self._software)
        if self._submission.known:
            return found.device_s if self._submission.version >= _CAPTURED else found.seconds, 0.0
        usual = estimate_step(_asked(self._benchmark, _USUAL, self._machine), device, self._software)
        share = usual.device_s * self._samples / _USUAL
        return math.sqrt(found.device_s * share), math.log(found.device_s / share) / 2

    def _gather_s(self, devices: int, nodes: int) -> float:
        gathered = math.ceil(self._samples * self._benchmark.gathered_bytes)
        if not gathered:
            return 0.0
        if nodes > 1 and self._machine.fabric is not None:
            cards, link = self._machine.fabric
            per_device = cards * link.bytes_per_s * nodes / devices
            return 2 * (link.latency_s + gathered * (nodes - 1) / nodes / per_device)
        cost = collective_cost("all_to_all", gathered, machine=self._machine, devices=devices, year=self._software.year)
        return 2 * cost.seconds


def divided(batch: int, devices: int, *, at_least: int = 1) -> tuple[int, float]:
    """Devices that train, and samples of each.

    Args:
        batch: samples of a step
        devices: in all
        at_least: that share a sample, where a replica spans several

    Example:
        >>> divided(3264, 64), divided(84, 768)
        ((64, 51.0), (672, 0.125))
    """
    if batch >= devices or at_least > 1:
        return devices, batch / devices
    sharing = 2 ** math.floor(math.log2(devices / batch))
    return batch * sharing, 1 / sharing


def _asked(benchmark: Benchmark, samples: float, machine: Machine) -> Workload:
    precision = "float16" if "float16" in machine.node.device.compute else "float32"
    return benchmark.step_workload(samples, precision=precision)


def _software(version: float) -> Software:
    year = max((year for known, year in _YEARS.items() if known <= version), default=_YEARS[0.5])
    captured = version >= _CAPTURED
    return Software(
        framework="pytorch", year=year, compiled=captured, channels_last=True, source="tuned for a benchmark"
    )
