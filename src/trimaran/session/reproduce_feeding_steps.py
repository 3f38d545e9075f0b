"""Steps of one network on one machine under both baselines, with each of the three remedies, and how sure they are.

Samples are ready in the host's memory, as where loaders keep up. Against the first device through which everything
goes, remedies change terms of `costs.replicate`. With a process for each device the batch is split already; its copy is
pageable and the step waits for it, unless it is made ahead; compression halves what the all-reduces carry.

What is unsure has three parts that have nothing to do with each other: how fast devices compute, how fast links carry,
and what the host's interpreter takes. A saving compares two steps with the same devices, links and host, so its
interval comes from both steps with each part longer and shorter at a time; the three add in quadrature.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace

from trimaran.cluster.machines import Machine
from trimaran.costs.exchange import ExchangeOptions
from trimaran.costs.exchange_recipes import recipe_of
from trimaran.costs.operations.estimate import estimate_step
from trimaran.costs.operations.types import StepEstimate
from trimaran.costs.replicate import Baseline, Passages, Remedies, replicated_step
from trimaran.costs.replicate_machine import (
    CODED_GRADIENTS,
    HALF,
    batch_copies,
    passages_on,
    replica_work,
)
from trimaran.costs.scaled import ScaledStep
from trimaran.costs.software import Software
from trimaran.costs.types import Cost
from trimaran.graph.workload import Workload
from trimaran.session.scaling.memory import RankMemory, rank_memory
from trimaran.session.workloads import workload
from trimaran.simulator.exchange import scale_step

LINKS_UNSURE = 0.3
"""Half the width of the 90 % interval of copies and collectives, as a share of them."""

HOST_UNSURE = 0.5
"""The same of what the host's interpreter takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How many times as long things take as expected."""

    compute: float = 1.0
    links: float = 1.0
    host: float = 1.0


AS_EXPECTED = Pace()


@dataclass(frozen=True, slots=True)
class Case:
    """A baseline and what is switched on.

    Attributes:
        baseline: where everything else is as it was
        remedies: switched on
    """

    baseline: Baseline
    remedies: Remedies


@dataclass(slots=True)
class FedSteps:
    """Steps of one network on one machine at one batch.

    Attributes:
        reference: of the network
        machine: of one node
        devices: of it
        batch: samples of a device
        software: framework and year
    """

    reference: str
    machine: Machine
    devices: int
    batch: int
    software: Software
    _known: tuple[Workload, StepEstimate] | None = None
    _passages: Passages | None = None
    _steps: dict[tuple[Case, Pace], dict[str, float]] = field(default_factory=dict)

    def step(self, case: Case) -> Cost:
        """A step with its 90 % interval."""
        seconds = self._seconds(case)
        low, high = self._interval(lambda pace: self._seconds(case, pace))
        return Cost(seconds, low, high, f"simulated: {self._at()[1].source}")

    def parts(self, case: Case) -> dict[str, float]:
        """What the step consists of, by name; they sum to it [s]."""
        return dict(self._parts(case, AS_EXPECTED))

    def saved(self, case: Case, base: Case) -> tuple[float, tuple[float, float]]:
        """Time that a case saves, as a share of the step of another, with its 90 % interval.

        Args:
            case: with remedies
            base: what it is held against
        """

        def share(pace: Pace) -> float:
            return 1.0 - self._seconds(case, pace) / self._seconds(base, pace)

        return share(AS_EXPECTED), self._interval(share)

    def memory(self) -> RankMemory:
        """Of a rank with a process of its own."""
        work, estimate = self._at()
        return rank_memory(
            self.reference,
            work,
            self._scaled(work, estimate, 1.0),
            device=self.machine.node.device,
            software=self.software,
            options=None,
        )

    def _interval(self, figure: Callable[[Pace], float]) -> tuple[float, float]:
        middle = figure(AS_EXPECTED)
        below = above = 0.0
        for shorter, longer in self._paces():
            ends = figure(shorter), figure(longer)
            below = math.hypot(below, max(0.0, middle - min(ends)))
            above = math.hypot(above, max(0.0, max(ends) - middle))
        return middle - below, middle + above

    def _paces(self) -> list[tuple[Pace, Pace]]:
        _, estimate = self._at()
        compute = estimate.forward
        ends = {
            "compute": (compute.low / compute.seconds, compute.high / compute.seconds),
            "links": (1 - LINKS_UNSURE, 1 + LINKS_UNSURE),
            "host": (1 - HOST_UNSURE, 1 + HOST_UNSURE),
        }
        return [(Pace(**{name: low}), Pace(**{name: high})) for name, (low, high) in ends.items()]

    def _seconds(self, case: Case, pace: Pace = AS_EXPECTED) -> float:
        return sum(self._parts(case, pace).values())

    def _parts(self, case: Case, pace: Pace) -> dict[str, float]:
        if (case, pace) not in self._steps:
            found = self._replicated if case.baseline == "replicate-and-scatter" else self._exchanged
            self._steps[case, pace] = found(case.remedies, pace)
        return self._steps[case, pace]

    def _replicated(self, remedies: Remedies, pace: Pace) -> dict[str, float]:
        work, estimate = self._at()
        own = replica_work(work, estimate).scaled(pace.compute)
        if self._passages is None:
            self._passages = passages_on(self.machine, work, devices=self.devices, year=self.software.year)
        step = replicated_step(
            replace(own, calls_s=own.calls_s * pace.host),
            self._passages.scaled(links=pace.links, host=pace.host),
            devices=self.devices,
            remedies=remedies,
        )
        return {one.name.removesuffix("_s"): getattr(step, one.name) for one in fields(step)}

    def _exchanged(self, remedies: Remedies, pace: Pace) -> dict[str, float]:
        """A process for each device: its own copy, DDP's buckets."""
        work, estimate = self._at()
        share = HALF if remedies.compress else 1.0
        # Bytes on links half as fast take as long as twice of them.
        step = self._scaled(work, _slower(estimate, pace.compute), share * pace.links)
        coding_s = CODED_GRADIENTS * work.gradient_bytes / self.machine.node.device.sustained_bytes_per_s
        parts = {
            "forward": step.forward_s,
            "backward": step.backward_s,
            "exchange": step.exposed_communication_s + step.overhead_s + (coding_s if remedies.compress else 0.0),
            "update": step.update_s,
        }
        copies = batch_copies(self.machine, work.input_bytes, devices=self.devices).scaled(pace.links)
        waited_s = copies.shares_s
        if remedies.preload:
            waited_s = max(0.0, copies.shares_ahead_s - sum(parts.values()))
        return {"feed": waited_s, **parts}

    def _scaled(self, work: Workload, estimate: StepEstimate, wire: float) -> ScaledStep:
        habit = recipe_of(self.software)
        # A bucket holds as many gradients, however many bytes they are on the wire.
        recipe = replace(
            habit, first_bytes=round(habit.first_bytes * wire), bucket_bytes=round(habit.bucket_bytes * wire)
        )
        return scale_step(
            work,
            estimate,
            self.machine,
            devices=self.devices,
            software=self.software,
            options=ExchangeOptions(explain=False, wire_share=wire, recipe=recipe),
        )

    def _at(self) -> tuple[Workload, StepEstimate]:
        if self._known is None:
            work = workload(self.reference, batch=self.batch)
            self._known = work, estimate_step(work, self.machine.node.device, self.software)
        return self._known


def _slower(estimate: StepEstimate, factor: float) -> StepEstimate:
    """The same step on a device that takes so many times as long."""
    return replace(
        estimate,
        work_s=tuple(seconds * factor for seconds in estimate.work_s),
        forward=estimate.forward.scaled(factor),
        backward=estimate.backward.scaled(factor),
        update=estimate.update.scaled(factor),
        host_s=estimate.host_s * factor,
        device_s=estimate.device_s * factor,
    )
