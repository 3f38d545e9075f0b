"""A step of a whole network as it ran on one rank, with what its operations and copies cost there."""

from dataclasses import dataclass

from trimaran.costs.memory_costs import MemoryCosts
from trimaran.graph.trace.types import StepTrace


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """What a memory plan is made from.

    Attributes:
        trace: of one microbatch, with its update
        costs: of its operations, and of copies to the host and back
    """

    trace: StepTrace
    costs: MemoryCosts
