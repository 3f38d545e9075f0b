"""What a step is expected to take on a device that is not at hand."""

from dataclasses import dataclass

from trimaran.costs.types import Cost


@dataclass(frozen=True, slots=True, kw_only=True)
class StepEstimate:
    """One rank's step, with nothing to exchange and nothing to wait for.

    Attributes:
        work_s: for each work of the workload, its share of the step, start of its kernels included [s]
        forward: FP
        backward: BP
        update: WU on one device: the optimizer alone
        host_s: what the host needs to ask for all of it; a step is no shorter [s]
        device_s: what the device needs for its kernels, back to back [s]
        source: how it was found, such as "modelled" or "one measured figure, divided as modelled"
    """

    work_s: tuple[float, ...]
    forward: Cost
    backward: Cost
    update: Cost
    host_s: float
    device_s: float
    source: str

    @property
    def seconds(self) -> float:
        """The whole step [s]."""
        return self.forward.seconds + self.backward.seconds + self.update.seconds

    @property
    def launch_bound(self) -> bool:
        """Whether the host cannot keep the device busy."""
        return self.host_s > self.device_s
