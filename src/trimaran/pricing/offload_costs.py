"""Costs of a device for the planning of memory: duration of each operation, and rate of copies to the host.

Durations are fixed: a copy does not slow down an operation that it overlaps.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from trimaran.base.errors import InputError
from trimaran.base.precision import parse_precision, product_dtype
from trimaran.graph.kernels.convert import workload_of
from trimaran.graph.kernels.workload import KERNEL_PRECISIONS
from trimaran.graph.trace.types import StepTrace, TraceOp
from trimaran.machine.types import Device
from trimaran.pricing.copy_codecs import CopyCodec, copy_codec, gpu_coding_rates
from trimaran.pricing.exchange.replica_memory import workspace_bytes
from trimaran.pricing.kernels.estimate import estimate_step
from trimaran.pricing.kernels.software import Software
from trimaran.program.memory import CodecChoice


@dataclass(frozen=True, kw_only=True, eq=False)
class MemoryCosts:
    """Durations of a trace's moments, and the link to the host.

    Attributes:
        durations_s: of each moment, 0 at ticks [s]
        to_host_bytes_per_s: rate of copies to the host [bytes/s]
        to_device_bytes_per_s: rate of copies back [bytes/s]
        copy_latency_s: fixed time of a copy [s]
        source: where the figures come from
        host_bytes: most that may lie on the host at once for this device [bytes]; None: not known, so no limit
        codec: may code copies, where that makes them faster; None: bytes go as they are
        workspace_bytes: of the library of products, besides what is traced [bytes]
    """

    durations_s: NDArray[np.float64]
    to_host_bytes_per_s: float
    to_device_bytes_per_s: float
    copy_latency_s: float
    source: str
    host_bytes: int | None = None
    codec: CopyCodec | None = None
    workspace_bytes: int = 0

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
        return float(self.durations_s.cumsum()[-1]) if len(self.durations_s) else 0.0  # as a clock adds them up

    def to_host_s(self, nbytes: int) -> float:
        """Time of a copy to the host [s]."""
        return self.copy_latency_s + nbytes / self.to_host_bytes_per_s

    def to_device_s(self, nbytes: int) -> float:
        """Time of a copy to the device [s]."""
        return self.copy_latency_s + nbytes / self.to_device_bytes_per_s

    def coded_s(self, number: int, nbytes: int) -> tuple[float, float] | None:
        """Times of the coded copies of a storage to the host and back; None where plain ones are not slower [s, s].

        Args:
            number: of the storage
            nbytes: its size [bytes]
        """
        if self.codec is None:
            return None
        out = self.copy_latency_s + self.codec.seconds(number, nbytes, self.to_host_bytes_per_s)
        back = self.copy_latency_s + self.codec.seconds(number, nbytes, self.to_device_bytes_per_s)
        return (out, back) if out + back < self.to_host_s(nbytes) + self.to_device_s(nbytes) else None


def measured_costs(
    trace: StepTrace,
    *,
    to_host_bytes_per_s: float,
    to_device_bytes_per_s: float,
    copy_latency_s: float = 0.0,
    source: str = "measured",
    host_bytes: int | None = None,
) -> MemoryCosts:
    """Costs of a trace whose operations were timed.

    Args:
        trace: a step that really ran
        to_host_bytes_per_s: measured rate of copies to the host [bytes/s]
        to_device_bytes_per_s: measured rate of copies back [bytes/s]
        copy_latency_s: fixed time of a copy [s]
        source: where the figures come from
        host_bytes: most that may lie on the host at once for this device [bytes]; None: no limit

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
        host_bytes=host_bytes,
    )


def modelled_costs(
    trace: StepTrace,
    device: Device,
    *,
    precision: str = "fp32",
    software: Software | None = None,
    host_bytes: int | None = None,
    codec: CodecChoice | None = None,
) -> MemoryCosts:
    """Costs of a trace on a device of the catalog, by the kernel model; they add up to the step of `estimate_step`.

    The cost of an operation is the time of its kernels, with their launches and their share of the wait for the host.
    The time of work of several operations, such as an update, is shared in proportion to the bytes that each moves.

    Args:
        trace: of a step; for "bf16" and "fp16" recorded under autocast, so that its products are in it
        device: of the catalog
        precision: one of `KERNEL_PRECISIONS`
        software: framework and libraries; None: PyTorch of 2024
        host_bytes: most that may lie on the host at once for this device [bytes]; None: no limit
        codec: may code copies; None: bytes go as they are

    Raises:
        InputError: no such precision, or no operation of the trace is in it
    """
    asked = parse_precision(precision, known=KERNEL_PRECISIONS)
    if asked in ("bf16", "fp16") and not any(op.dtype == product_dtype(asked) for op in trace.ops):
        raise InputError(
            f"no operation of this trace is in {asked}: record the step under autocast in {asked}",
            code="memory-costs.not-in-precision",
            precision=asked,
        )
    workload = workload_of(trace, name="", batch=1, precision=asked, input_bytes=0)
    estimate = estimate_step(workload, device, software or Software())
    durations_s = np.zeros(trace.length)
    moved = np.zeros(trace.length)
    for op in trace.ops:
        moved[op.moment] = op.nbytes
    for work, seconds in zip(workload.works, estimate.work_s, strict=True):
        at = list(work.moments)
        total = moved[at].sum()
        durations_s[at] += seconds * (moved[at] / total if total > 0 else 1.0 / len(at))
    copies = device.copies
    return MemoryCosts(
        durations_s=durations_s,
        to_host_bytes_per_s=copies.to_host_bytes_per_s,
        to_device_bytes_per_s=copies.to_device_bytes_per_s,
        copy_latency_s=copies.latency_s,
        source=f"modelled: kernels of {device.name} in {asked}",
        host_bytes=host_bytes,
        workspace_bytes=workspace_bytes(workload.works, device),
        codec=None
        if codec is None
        else copy_codec(codec, trace, coding_bytes_per_s=gpu_coding_rates(device)[codec.name]),
    )


# ---------------------------------------------------------------------------------------------------------------------
# A step of a whole network as it ran on one rank, with the costs of its operations, copies and hooks


@dataclass(frozen=True, slots=True, kw_only=True)
class HookCosts:
    """Time of a rank that a memory plan takes besides stalls and recomputation.

    Attributes:
        tick_s: a pack with its unpack, in the thread that computes [s]
        moving_s_per_byte: time of the thread that computes, for a byte that goes to the host and comes back: handing
            over, memory that no cache holds [s/byte]
        copying_s_per_byte: time of the threads that copy, for the same [s/byte]
        cores: of the machine
    """

    tick_s: float = 0.0
    moving_s_per_byte: float = 0.0
    copying_s_per_byte: float = 0.0
    cores: int = 1

    def seconds(self, *, packs: int, moved_bytes: int, ranks: int) -> float:
        """Time that hooks add to a step.

        Where every core has a rank, the threads that copy take their time from the ranks.

        Args:
            packs: of a step
            moved_bytes: that go to the host and come back [bytes]
            ranks: busy on the machine

        Returns:
            The time [s].

        Example:
            100 packs of 10 µs; 1 MB that takes 2 ms of the rank, and 1 ms of copying.

            >>> costs = HookCosts(tick_s=10e-6, moving_s_per_byte=2e-9, copying_s_per_byte=1e-9, cores=2)
            >>> costs.seconds(packs=100, moved_bytes=1_000_000, ranks=1)
            0.003
            >>> costs.seconds(packs=100, moved_bytes=1_000_000, ranks=2)
            0.004
        """
        copying_s_per_byte = self.copying_s_per_byte if ranks >= self.cores else 0.0
        return packs * self.tick_s + moved_bytes * (self.moving_s_per_byte + copying_s_per_byte)


@dataclass(frozen=True, kw_only=True, eq=False)
class TracedStep:
    """Input of a memory plan.

    Attributes:
        trace: of one microbatch, with its update
        costs: of its operations, and of copies to the host and back
        hooks: cost of the hooks; nothing on a GPU, whose host runs ahead
        coding_bytes_per_s: of each codec that is known here, the rate of coding and of undoing it, by bytes that go in
            [bytes/s]
    """

    trace: StepTrace
    costs: MemoryCosts
    hooks: HookCosts = HookCosts()
    coding_bytes_per_s: Mapping[str, float] = field(default_factory=dict)
