"""Durations of a traced step on a device that is not at hand, from its peaks alone.

    duration = max(FLOP / (peak × share), bytes / (bandwidth × share))

An operation is bound by its arithmetic or by its own memory traffic; shares are what a training step sustains, from the
catalog. Operations that move nothing and compute nothing cost nothing. Left out: workspaces of convolutions, algorithms
that need fewer FLOP than counted, caches, and, unless asked for, the start of kernels. So a step of large kernels is
told well, and one of many small kernels comes out too fast.
"""

from typing import Literal, get_args

import numpy

from trimaran.base.errors import InputError
from trimaran.graph.trace.types import StepTrace, TraceOp
from trimaran.machine.types import Device
from trimaran.pricing.offload_costs import MemoryCosts

RooflinePrecision = Literal["float32", "tf32", "bfloat16"]
"""How products are computed: in float32; the same on tensor cores that round to TF32; or in bfloat16 under autocast."""


def memory_costs(
    trace: StepTrace, device: Device, *, precision: str = "float32", launches: bool = False
) -> MemoryCosts:
    """Durations of the operations of a trace, and the rates of copies to and from the host.

    Args:
        trace: of a step; for "bfloat16" recorded under autocast, so that its products are in it
        device: of the catalog
        precision: one of `RooflinePrecision`
        launches: count the start of a kernel for each operation that does something

    Raises:
        InputError: no such precision, the device does not compute in it, or the trace was not recorded in it

    Source:
        Williams, Waterman, Patterson, "Roofline", Communications of the ACM 52(4), 2009.
    """
    check_precision(precision, device)
    if precision == "bfloat16" and not any(op.flops and op.dtype == "bfloat16" for op in trace.ops):
        raise InputError(
            "no product of this trace is in bfloat16: record the step under autocast in bfloat16",
            code="roofline.no-product-in-precision",
        )
    durations_s = numpy.zeros(trace.length)
    for op in trace.ops:
        durations_s[op.moment] = operation_seconds(op, device, precision=precision, launches=launches)
    copies = device.copies
    return MemoryCosts(
        durations_s=durations_s,
        to_host_bytes_per_s=copies.to_host_bytes_per_s,
        to_device_bytes_per_s=copies.to_device_bytes_per_s,
        copy_latency_s=copies.latency_s,
        source=f"modelled: roofline of {device.name} in {precision}",
    )


def check_precision(precision: str, device: Device) -> None:
    """Refuse a precision that there is not, or in which a device does not compute.

    Raises:
        InputError: it is one of these
    """
    if precision not in get_args(RooflinePrecision):
        raise InputError(
            f'precision must be one of {", ".join(get_args(RooflinePrecision))}, got "{precision}"',
            code="roofline.unknown-precision",
            precision=precision,
        )
    device.sustained_flops_per_s(precision)


def operation_seconds(op: TraceOp, device: Device, *, precision: str, launches: bool = False) -> float:
    """Time of one operation [s].

    Raises:
        InputError: the device does not compute in the dtype of the operation
    """
    if not op.flops and not op.nbytes:
        return 0.0
    seconds = op.nbytes / device.sustained_bytes_per_s
    if op.flops:
        seconds = max(seconds, op.flops / _flops_per_s(device, op.dtype, precision))
    return seconds + (device.launch.seconds if launches else 0.0)


def _flops_per_s(device: Device, dtype: str, precision: str) -> float:
    plain = device.sustained_flops_per_s(dtype)
    if dtype == "float32" and precision == "tf32":
        # GeForce cards run TF32 at the peak of float32; a library then takes what is faster.
        return max(plain, device.sustained_flops_per_s("tf32"))
    return plain
