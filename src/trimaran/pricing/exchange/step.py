"""A data-parallel step on several devices, taken apart."""

from dataclasses import dataclass
from typing import Literal

from trimaran.pricing.input_pipeline import FedStep
from trimaran.pricing.types import Cost

Sync = Literal["nccl", "kvstore", "server", "byteps"]
"""How gradients are exchanged.

"nccl": all-reduce, in buckets, while the backward runs, and every rank updates. "kvstore": each tensor is copied to one
device, summed and updated there, and copied back (MXNet's KVStore "device"). "server": the same on hosts (parameter
servers; MXNet's "local", TensorFlow's "parameter_server"). "byteps": servers that take part with their own links.
"""

Limiter = Literal["compute", "launches", "communication", "update", "feeding", "loading", "memory"]
"""The resource of a device that limits the step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedGradient:
    """A layer whose gradients cannot overlap the backward.

    Attributes:
        module: path of the layer
        nbytes: of its gradients [bytes]
        ready_s: when they are complete, from the start of the step [s]
        done_s: when they have been exchanged [s]
        exposed_s: the step's wait that goes away if this layer's gradients cost nothing [s]
    """

    module: str
    nbytes: int
    ready_s: float
    done_s: float
    exposed_s: float


class StepSums:
    """Sums of the parts of a step, whatever has them [s]."""

    __slots__ = ()
    forward_s: float
    backward_s: float
    communication_s: float
    exposed_communication_s: float
    update_s: float
    overhead_s: float

    @property
    def fp_bp_s(self) -> float:
        """FP and BP together [s]."""
        return self.forward_s + self.backward_s

    @property
    def wu_s(self) -> float:
        """WU, overlapped parts included: communication, update and overhead [s]."""
        return self.communication_s + self.update_s + self.overhead_s

    @property
    def wu_exposed_s(self) -> float:
        """Time that WU adds to the step [s]."""
        return self.exposed_communication_s + self.update_s + self.overhead_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaledStep(StepSums):
    """The step of a rank in a group: `step = fp + bp + wu_exposed + feeding`; WU is the exchange and the update.

    Attributes:
        devices: in the group
        local_batch: samples of each
        sync: how gradients are exchanged
        step: the whole
        forward_s: FP [s]
        backward_s: BP, as long as it takes during communication [s]
        communication_s: exchange of gradients, overlapped or not [s]
        exposed_communication_s: the part of it that does not overlap the backward [s]
        update_s: the optimizer, where it runs on this rank or this rank waits for it [s]
        overhead_s: calls, synchronization, stragglers [s]
        feeding_s: wait for data [s]
        limiter: the largest part of the step, or what it waits for
        exposed: layers that the step waits for, the longest wait first
        fed: how its data come, and what sets the wait for them; None: data are ready
    """

    devices: int
    local_batch: int
    sync: Sync
    step: Cost
    forward_s: float
    backward_s: float
    communication_s: float
    exposed_communication_s: float
    update_s: float
    overhead_s: float
    feeding_s: float
    limiter: Limiter
    exposed: tuple[ExposedGradient, ...] = ()
    fed: FedStep | None = None
