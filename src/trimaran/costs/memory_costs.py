"""What the planning of memory knows of a device: how long each operation takes, and how fast copies to the host are.

Durations are fixed: what a copy takes away from an operation that runs beside it is left out.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trimaran.errors import InputError
from trimaran.graph.trace.types import StepTrace, TraceOp


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryCosts:
    """Durations of a trace's moments, and the link to the host.

    Attributes:
        durations_s: of each moment, 0 at ticks [s]
        to_host_bytes_per_s: rate of copies to the host [bytes/s]
        to_device_bytes_per_s: rate of copies back [bytes/s]
        copy_latency_s: what a copy takes beside its bytes [s]
        source: where the figures come from
    """

    durations_s: NDArray[np.float64]
    to_host_bytes_per_s: float
    to_device_bytes_per_s: float
    copy_latency_s: float
    source: str

    def __post_init__(self) -> None:
        for name in ("to_host_bytes_per_s", "to_device_bytes_per_s"):
            value = getattr(self, name)
            if not value > 0:
                raise InputError(
                    f"MemoryCosts.{name} is {value}: give a rate above 0 bytes/s",
                    code="memory-costs.bad-rate",
                    **{name: value},
                )
        if not self.copy_latency_s >= 0:
            raise InputError(
                f"MemoryCosts.copy_latency_s is {self.copy_latency_s}: give 0 s or more",
                code="memory-costs.negative-latency",
                copy_latency_s=self.copy_latency_s,
            )
        if not (np.isfinite(self.durations_s).all() and (self.durations_s >= 0).all()):
            raise InputError(
                "MemoryCosts.durations_s has entries that are negative or not finite", code="memory-costs.bad-durations"
            )

    @property
    def compute_s(self) -> float:
        """Time of all operations, one after the other [s]."""
        return float(self.durations_s.sum())

    def to_host_s(self, nbytes: int) -> float:
        """Time of a copy to the host [s]."""
        return self.copy_latency_s + nbytes / self.to_host_bytes_per_s

    def to_device_s(self, nbytes: int) -> float:
        """Time of a copy to the device [s]."""
        return self.copy_latency_s + nbytes / self.to_device_bytes_per_s


def measured_costs(
    trace: StepTrace,
    *,
    to_host_bytes_per_s: float,
    to_device_bytes_per_s: float,
    copy_latency_s: float = 0.0,
    source: str = "measured",
) -> MemoryCosts:
    """Costs of a trace whose operations were timed.

    Args:
        trace: a step that really ran
        to_host_bytes_per_s: measured rate of copies to the host [bytes/s]
        to_device_bytes_per_s: measured rate of copies back [bytes/s]
        copy_latency_s: what a copy takes beside its bytes [s]
        source: where the figures come from

    Raises:
        InputError: an operation has no duration, or a rate is not above 0
    """
    durations_s = np.zeros(trace.length)
    for event in trace.events:
        if not isinstance(event, TraceOp):
            continue
        if event.duration_s is None:
            raise InputError(
                f"operation {event.name} at moment {event.moment} was not timed (traced on {trace.device}): "
                f"trace a real step, or price the trace for a device of the catalog",
                code="memory-costs.not-timed",
                moment=event.moment,
            )
        durations_s[event.moment] = event.duration_s
    return MemoryCosts(
        durations_s=durations_s,
        to_host_bytes_per_s=to_host_bytes_per_s,
        to_device_bytes_per_s=to_device_bytes_per_s,
        copy_latency_s=copy_latency_s,
        source=source,
    )
