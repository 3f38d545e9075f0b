"""Steps of a job at any batch, and what they cost on a device of the catalog."""

from dataclasses import dataclass, replace

from trimaran.cluster.catalog import CatalogDevice
from trimaran.costs.memory_costs import MemoryCosts
from trimaran.costs.roofline import memory_costs
from trimaran.graph.trace.types import StepTrace
from trimaran.program.memory import KEEP_ALL
from trimaran.runtime.split import Split
from trimaran.session.memory.tracing import JobTracer
from trimaran.simulator.memory import LiveBytes, live_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class PricedStep:
    """A step on a device.

    Attributes:
        trace: the step
        costs: of its operations
        kept: live bytes with everything kept
    """

    trace: StepTrace
    costs: MemoryCosts
    kept: LiveBytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedSteps:
    """Steps of a job at any batch, and what they cost on a device.

    Attributes:
        tracer: traces them
        device: prices them
        precision: in which products are computed
    """

    tracer: JobTracer
    device: CatalogDevice
    precision: str

    def costs(self, trace: StepTrace) -> MemoryCosts:
        """What a step costs."""
        return memory_costs(trace, self.device, precision=self.precision)

    def step(self, samples: int) -> PricedStep:
        """The step with so many samples."""
        trace = self.tracer.trace(samples)
        return PricedStep(trace=trace, costs=self.costs(trace), kept=live_bytes(trace, KEEP_ALL))

    def split(self, split: Split) -> "PricedSteps":
        """Steps of the same job with some modules in parts of the batch."""
        return replace(self, tracer=self.tracer.split(split))
