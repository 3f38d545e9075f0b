"""Steps of data-parallel replicas, of one device each or of several, at any local batch.

    step = what a worker takes alone + what the exchange adds: exposed communication, calls, waits for the slowest

The exchange of workers of M devices: each device sums its part of the gradients with its peers, and the M groups share
the links of a node, so it takes as long as that of all gradients over all M·N devices. Their backward is shorter by
SU^M, so less of it is hidden; waits for the slowest are in proportion to compute, and each device copies its part of
the gradients alone, so these are shorter by SU^M too.
"""

import math
from dataclasses import dataclass, field

from trimaran.cluster.machines import Machine
from trimaran.costs.exchange import ExchangeOptions
from trimaran.costs.operations.estimate import estimate_step
from trimaran.costs.operations.types import StepEstimate
from trimaran.costs.scaled import ScaledStep
from trimaran.graph.workload import Workload
from trimaran.session.crossover.request import CrossoverRequest
from trimaran.session.scaling.memory import rank_memory
from trimaran.session.workloads import workload
from trimaran.simulator.exchange import scale_step


@dataclass(frozen=True, slots=True)
class Exchanged:
    """What an exchange adds to a step.

    Attributes:
        exposed_s: communication that nothing hides [s]
        hidden_s: communication that the backward hides [s]
        backward_s: the backward of one device, which may hide it [s]
        other_s: calls, copies into buffers, waits [s]
    """

    exposed_s: float
    hidden_s: float
    backward_s: float
    other_s: float

    def beside(self, speedup: float) -> float:
        """What it adds where the backward is so many times as fast [s].

        Example:
            >>> Exchanged(exposed_s=1.0, hidden_s=3.0, backward_s=4.0, other_s=0.5).beside(2.0)
            2.25
        """
        exposed_s = max(self.exposed_s, self.exposed_s + self.hidden_s - self.backward_s / speedup)
        return exposed_s + self.other_s / speedup


@dataclass(slots=True)
class Replicas:
    """Steps of one job on one machine, each estimated once.

    Attributes:
        reference: of the job
        request: says precision and software
        machine: with enough nodes
    """

    reference: str
    request: CrossoverRequest
    machine: Machine
    _known: dict[int, tuple[Workload, StepEstimate]] = field(default_factory=dict)
    _steps: dict[tuple[int, int, float], ScaledStep] = field(default_factory=dict)
    _fits: dict[int, bool] = field(default_factory=dict)

    def is_even(self, devices: int) -> bool:
        """Whether so many devices are equally many on each node that they take."""
        return devices % math.ceil(devices / self.machine.node.devices) == 0

    def alone_s(self, batch: int) -> float:
        """A step of one device [s]."""
        return self._scaled(batch, 1, 1.0).step.seconds

    def exchange(self, batch: int, devices: int, links: float = 1.0) -> Exchanged:
        """What an exchange over so many devices adds.

        Args:
            batch: samples of a device, or of a worker of several
            devices: in all
            links: how many times as fast they are
        """
        if devices == 1:
            return Exchanged(0.0, 0.0, 1.0, 0.0)
        step, alone = self._scaled(batch, devices, links), self._scaled(batch, 1, 1.0)
        added_s = step.step.seconds - alone.step.seconds
        exposed_s = step.exposed_communication_s
        return Exchanged(
            exposed_s=exposed_s,
            hidden_s=step.communication_s - exposed_s,
            backward_s=alone.backward_s,
            other_s=max(0.0, added_s - exposed_s),
        )

    def fits(self, batch: int) -> bool:
        """Whether a device holds a step of so many samples."""
        if batch not in self._fits:
            work, _ = self._at(batch)
            step = self._scaled(batch, min(2, self.machine.devices), 1.0)
            memory = rank_memory(
                self.reference,
                work,
                step,
                device=self.machine.node.device,
                software=self.request.software,
                options=self.request.options or None,
            )
            self._fits[batch] = memory.fits
        return self._fits[batch]

    def _scaled(self, batch: int, devices: int, links: float) -> ScaledStep:
        key = batch, devices, links
        if key not in self._steps:
            work, estimate = self._at(batch)
            self._steps[key] = scale_step(
                work,
                estimate,
                self.machine,
                devices=devices,
                nodes=-(-devices // self.machine.node.devices),
                software=self.request.software,
                # Bytes on links twice as fast take as long as half of them.
                options=ExchangeOptions(explain=False, wire_share=1.0 / links),
            )
        return self._steps[key]

    def _at(self, batch: int) -> tuple[Workload, StepEstimate]:
        if batch not in self._known:
            options = self.request.options or None
            work = workload(self.reference, batch=batch, precision=self.request.precision, options=options)
            self._known[batch] = work, estimate_step(work, self.machine.node.device, self.request.software)
        return self._known[batch]
