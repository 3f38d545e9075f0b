"""What goes through the first device of a machine of the catalog, and how long it takes: the terms of `replicate`.

Copies are priced by the links of the node, weights and gradients by its collectives: `DataParallel` hands them to NCCL
in chunks of 10 MiB where it can. Left out: copies of the next batch that share a link with an exchange.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from trimaran.cluster.machines import Machine
from trimaran.cluster.topology import host_bandwidth, host_route, pair
from trimaran.costs.collectives import collective_cost
from trimaran.costs.operations.types import StepEstimate
from trimaran.costs.replicate import BatchCopies, Passages, ReplicaWork
from trimaran.graph.types import Phase
from trimaran.graph.workload import WorkKind, Workload

CHUNK_BYTES = 10 * (1 << 20)
"""Tensors that are sent as one. Source: buffer_size of broadcast_coalesced and reduce_add_coalesced,
torch/nn/parallel/comm.py."""

PAGEABLE = 0.45
"""Share of a link that a copy from pageable memory sustains: 5e9 to 6e9 of 12.4e9 B/s on PCIe 3.0 x16 (V100, logs of
microsoft/superbenchmark, dask-cuda), 9e9 to 18e9 of 26e9 B/s on PCIe 4.0. Each copy has a thread of its own."""

COPY_S = 10e-6
"""Fixed cost of a copy: 9.2 to 9.9 us between devices (uuudown/Tartan@e3166ab)."""

MODULE_S = 14e-6
"""The host makes one copy of a module, with its parameters and buffers: 13.8 to 15.0 us for ResNet-50, GoogLeNet and
Inception-v3, `replicate` of PyTorch 2.13 without its transfers, measured on one core of an EPYC."""

CALLS = 0.5
"""Part of the host's time for an operation during which the interpreter is held: assumed. PyTorch lets go of it
while an operation is dispatched."""

CODED_WEIGHTS = 3.0
"""Bytes read and written for a byte of weights that is sent as 16 bits: cast (4 and 2), cast back (2 and 4), of 4."""

CODED_GRADIENTS = 8.5
"""The same for gradients with error feedback: add what was lost before (8 and 4), cast (4 and 2), keep what is lost
(6 and 4), cast back (2 and 4), of 4."""

HALF = 0.5
"""Bytes of 16-bit numbers by those of 32-bit ones."""


def replica_work(workload: Workload, estimate: StepEstimate) -> ReplicaWork:
    """What a device computes of a step; samples are ready in the host's memory.

    Args:
        workload: one device's share
        estimate: of it
    """
    seconds = list(zip(workload.works, estimate.work_s, strict=True))
    launches = sum(work.launches for work in workload.works) or 1
    calls = sum(work.launches for work in workload.works if work.phase is Phase.FORWARD) / launches
    return ReplicaWork(
        forward_s=estimate.forward.seconds,
        backward_s=estimate.backward.seconds,
        update_s=estimate.update.seconds,
        calls_s=CALLS * calls * estimate.host_s,
        loss_s=sum(s for work, s in seconds if work.kind is WorkKind.SOFTMAX and _is_of_loss(work.name)),
    )


def output_bytes(workload: Workload) -> int:
    """What a device's outputs take: what the loss reads; 0 where it is not a cross entropy [bytes]."""
    return max(
        (
            4 * work.dims[0]
            for work in workload.works
            if work.phase is Phase.FORWARD and work.kind is WorkKind.SOFTMAX and "log_softmax" in work.name
        ),
        default=0,
    )


def passages_on(machine: Machine, workload: Workload, *, devices: int, year: float) -> Passages:
    """Durations of what goes through the first device.

    Args:
        machine: of one node
        workload: one device's share
        devices: of the node, its first ones
        year: of the library of collectives
    """
    node = machine.node
    others = [pair(node, 0, number).bytes_per_s for number in range(1, devices)]
    gradients = [gradient.nbytes for gradient in workload.gradients]
    beside = workload.parameter_bytes + workload.buffer_bytes - sum(gradients)
    weights = [*gradients, beside] if beside > 0 else gradients
    memory = node.device.sustained_bytes_per_s

    def sent_s(op: str, sizes: Sequence[int], share: float) -> float:
        """Chunks one after another, each packed and unpacked once [s]."""
        calls = (
            collective_cost(op, nbytes, machine=machine, devices=devices, year=year).seconds
            for nbytes in chunks(round(share * size) for size in sizes)
        )
        return sum(calls) + 2 * share * sum(sizes) / memory

    return Passages(
        copies=batch_copies(machine, workload.input_bytes, devices=devices),
        scatter_s=sum(COPY_S + workload.input_bytes / rate for rate in others),
        gather_s=2 * sum(COPY_S + output_bytes(workload) / rate for rate in others),
        weights_s=sent_s("broadcast", weights, 1.0),
        gradients_s=sent_s("reduce", gradients, 1.0),
        compressed_weights_s=sent_s("broadcast", weights, HALF),
        compressed_gradients_s=sent_s("reduce", gradients, HALF),
        coding_s=(CODED_WEIGHTS * sum(weights) + CODED_GRADIENTS * sum(gradients)) / memory,
        making_s=devices * count_modules(workload) * MODULE_S,
    )


def batch_copies(machine: Machine, nbytes: int, *, devices: int) -> BatchCopies:
    """Copies of a batch from the host.

    Args:
        machine: of one node
        nbytes: of a device's share [bytes]
        devices: of the node, its first ones
    """
    node = machine.node
    whole = host_route(node, 0).bytes_per_s
    alone = [host_route(node, number).bytes_per_s for number in range(devices)]
    together = host_bandwidth(node, range(devices))
    shares = [min(PAGEABLE * rate, together[number]) for number, rate in enumerate(alone)]
    return BatchCopies(
        whole_s=COPY_S + devices * nbytes / (PAGEABLE * whole),
        shares_s=COPY_S + nbytes / min(shares),
        whole_ahead_s=COPY_S + devices * nbytes / whole,
        shares_ahead_s=COPY_S + nbytes / min(together.values()),
    )


def chunks(sizes: Iterable[int], limit: int = CHUNK_BYTES) -> list[int]:
    """Bytes of the chunks that tensors are sent in, one after another; a large tensor is one of its own.

    Args:
        sizes: of the tensors, in order [bytes]
        limit: that a chunk of several tensors does not exceed [bytes]

    Example:
        >>> chunks([4, 4, 4, 20, 2], limit=10)
        [8, 4, 20, 2]
    """
    found: list[int] = []
    for size in sizes:
        if found and found[-1] + size <= limit:
            found[-1] += size
        else:
            found.append(size)
    return found


def count_modules(workload: Workload) -> int:
    """Modules of a network, those that hold others included, as far as its works and weights name them."""
    paths = {work.module for work in workload.works} | {gradient.module for gradient in workload.gradients}
    return len({""} | {part for path in paths if path for part in accumulate(path.split("."), "{}.{}".format)})


def _is_of_loss(name: str) -> bool:
    return any(part in name for part in ("log_softmax", "nll_loss", "cross_entropy"))
