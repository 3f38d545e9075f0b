"""A job in data-parallel groups of any size on a catalog machine: workload, estimate, step and memory by local batch.

Each is computed once.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from trimaran.base.precision import Precision
from trimaran.graph.kernels.workload import Workload
from trimaran.machine.types import Machine
from trimaran.planning.tracing.workloads import memory_of_step, workload
from trimaran.pricing.collectives.parameter_servers import owner_loads
from trimaran.pricing.exchange.costs import ExchangeOptions
from trimaran.pricing.exchange.replica_memory import ReplicaMemory, replica_memory
from trimaran.pricing.exchange.step import ScaledStep, Sync
from trimaran.pricing.input_pipeline import InputPipeline
from trimaran.pricing.kernels.estimate import StepEstimate, estimate_step
from trimaran.pricing.kernels.software import Software
from trimaran.simulator.data_parallel import DataParallelSetup, data_parallel_step


@dataclass(slots=True, kw_only=True)
class DataParallelJob:
    """Steps of one job on one machine.

    Attributes:
        reference: of the job
        machine: nodes and fabric
        precision: in which is computed
        software: framework and year
        options: of the job
        exchange: settings of the job that differ from its framework's defaults
        estimator: of a step on one device; None: by the device's curves alone
        pipeline: input pipeline of each node; None: data are always ready
    """

    reference: str
    machine: Machine
    precision: Precision = "fp32"
    software: Software = field(default_factory=Software)
    options: Mapping[str, str] = field(default_factory=dict)
    exchange: ExchangeOptions = field(default_factory=lambda: ExchangeOptions(explain=False))
    estimator: Callable[[Workload], StepEstimate] | None = None
    pipeline: InputPipeline | None = None
    _known: dict[int, tuple[Workload, StepEstimate]] = field(default_factory=dict)
    _steps: dict[tuple[int, int, Sync, float], ScaledStep] = field(default_factory=dict)

    def workload(self, batch: int) -> Workload:
        """One device's step.

        Args:
            batch: samples of it
        """
        return workload(self.reference, batch=batch, precision=self.precision, options=self.options or None)

    def known(self, batch: int) -> tuple[Workload, StepEstimate]:
        """One device's step, and its time without exchange.

        Args:
            batch: samples of it
        """
        if batch not in self._known:
            work = self.workload(batch)
            if self.estimator is None:
                self._known[batch] = work, estimate_step(work, self.machine.node.device, self.software)
            else:
                self._known[batch] = work, self.estimator(work)
        return self._known[batch]

    def nodes(self, devices: int) -> int:
        """The nodes that a number of devices fills."""
        return -(-devices // self.machine.node.devices)

    def setup(self, batch: int, devices: int, *, sync: Sync = "nccl", links: float = 1.0) -> DataParallelSetup:
        """The setup that the step of a group depends on.

        Args:
            batch: samples of a device
            devices: in the group
            sync: how gradients are exchanged
            links: how many times as fast links are: bytes on links twice as fast take as long as half of them
        """
        work, estimate = self.known(batch)
        return DataParallelSetup(
            workload=work,
            estimate=estimate,
            machine=self.machine,
            devices=devices,
            nodes=self.nodes(devices),
            sync=sync,
            software=self.software,
            options=replace(self.exchange, wire_share=self.exchange.wire_share / links),
            feed=self.pipeline,
        )

    def step(self, batch: int, devices: int, *, sync: Sync = "nccl", links: float = 1.0) -> ScaledStep:
        """The step of a group.

        Args:
            batch: samples of a device
            devices: in the group
            sync: how gradients are exchanged
            links: how many times as fast links are

        Raises:
            InputError: as `data_parallel_step`
        """
        key = batch, devices, sync, links
        if key not in self._steps:
            self._steps[key] = data_parallel_step(self.setup(batch, devices, sync=sync, links=links))
        return self._steps[key]

    def memory(self, step: ScaledStep, *, owns: bool = True) -> ReplicaMemory:
        """Memory of a rank of a group.

        Args:
            step: of the group
            owns: of the rank that sums the most tensors, where ranks own some; else of one that owns none
        """
        return self.memory_at(step.local_batch, step.devices, sync=step.sync, owns=owns)

    def memory_at(self, batch: int, devices: int, *, sync: Sync = "nccl", owns: bool = True) -> ReplicaMemory:
        """Memory of a rank of a group, without its step.

        Args:
            batch: samples of a device
            devices: in the group
            sync: how gradients are exchanged
            owns: as for `memory`
        """
        work, summed_bytes = self.workload(batch), 0
        if owns and sync == "kvstore":
            summed_bytes = int(max(owner_loads([gradient.nbytes for gradient in work.gradients], devices))[0])
        return replica_memory(
            memory_of_step(self.reference, batch=work.batch, precision=work.precision, options=self.options or None),
            work.works,
            batch=work.batch,
            devices=devices,
            sync=sync,
            device=self.machine.node.device,
            software=self.software,
            summed_bytes=summed_bytes,
        )

    def state_bytes(self, batch: int) -> int:
        """Parameters, buffers, gradients and optimizer state of a replica [bytes].

        Args:
            batch: samples of a device
        """
        memory = memory_of_step(
            self.reference, batch=batch, precision=self.workload(batch).precision, options=self.options or None
        )
        return memory.parameter_bytes + memory.buffer_bytes + memory.gradient_bytes + memory.optimizer_bytes

    def largest_batch(self, devices: int, *, sync: Sync = "nccl", below: int) -> int:
        """The most samples of a device that fit; 0 where not even one does.

        Args:
            devices: in the group
            sync: how gradients are exchanged
            below: samples that do not fit
        """
        fits, fails = 0, below
        while fails - fits > 1:
            middle = (fits + fails) // 2
            if self.memory_at(middle, devices, sync=sync).fits:
                fits = middle
            else:
                fails = middle
        return fits
