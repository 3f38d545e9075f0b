"""Memory of a replica of a network in data parallelism: its step, and buffers of the exchange of gradients.

    counted by torch's allocator             also on the card
    step: weights, state, activations        communicators of NCCL
    buckets: gradients a second time         context of the driver (of the catalog, per device)
    sums: copies that an owner of tensors receives
    workspace of the library of products

An owner of tensors, as in MXNet's KVStore "device", sums them in a buffer, keeps a copy from each of the others and
the weight itself, and has their state of the optimizer; the others have no state then.

What a replica of a plan needs (`pricing.program`) and what a data-parallel job needs (`planning.data_parallel_job`) are
both asked here, of the same traced step. Software differs in the gradients:

    PyTorch's DDP         copied into buckets that are there all the time; gradients themselves come and go
    Trimaran's runtime    views of the buckets, there once and all the time
    before torch 2.0,     set to zero from step to step, and copied
    other frameworks

Left out: rounding and fragments of the allocator (a few per cent), batches that are loaded ahead, and workspaces of
convolutions: which algorithm runs is not known, and torch takes one whose workspace fits in what is free.

Source:
    pytorch/pytorch, aten/src/ATen/native/cudnn/Conv_v8.cpp, `max_block_size`, for workspaces of convolutions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from trimaran.graph.kernels.workload import Work, WorkKind
from trimaran.graph.trace.live_bytes import StepMemory
from trimaran.machine.types import Device
from trimaran.pricing.exchange.step import Sync
from trimaran.pricing.kernels.software import Software

_MIB = 1 << 20

PRODUCT_WORKSPACE_BYTES = {"hopper": 32 * _MIB, "blackwell": 32 * _MIB}
"""Workspace that torch keeps for cuBLAS, by architecture; elsewhere 8 MiB and 125 KiB.

Source: pytorch aten/src/ATen/cuda/CublasHandlePool.cpp: ":4096:2:16:8", on Hopper and later 32 MiB.
"""
_PRODUCT_WORKSPACE_BYTES = 2 * 4096 * 1024 + 8 * 16 * 1024

CHANNELS = 16
"""Of a communicator; assumed: NCCL takes 2 to 32, as links allow."""

CONNECTION_BYTES = 4 * _MIB + 4_915_200 + 524_288
"""Buffers of one connection, for NCCL's three protocols: simple 4 MiB, LL128 640 x 120 x 64, LL 512 x 16 x 64.

Source: NVIDIA/nccl src/include/device.h, with NCCL_BUFFSIZE as by default.
"""
_CONNECTIONS = 2  # a channel receives over a ring and over a tree
COMMUNICATOR_BYTES = CHANNELS * _CONNECTIONS * CONNECTION_BYTES
"""Buffers of NCCL, which no allocator counts."""

_DROPPED_SINCE = 2023.2
"""Since torch 2.0 `zero_grad` drops gradients; before, and in other frameworks, they stay from step to step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMemory:
    """Memory of one rank.

    Attributes:
        step_bytes: weights, gradients, state and activations at their peak [bytes]
        bucket_bytes: gradients a second time, in the buckets of the exchange [bytes]
        owned_bytes: for the tensors that are summed here, less the state of the others, which it does not have [bytes]
        workspace_bytes: of libraries [bytes]
        communicator_bytes: buffers of NCCL, which no allocator counts [bytes]
        context_bytes: of the driver [bytes]
        card_bytes: memory of the card [bytes]
    """

    step_bytes: int
    bucket_bytes: int
    owned_bytes: int
    workspace_bytes: int
    communicator_bytes: int
    context_bytes: int
    card_bytes: int

    @property
    def peak_bytes(self) -> int:
        """Largest memory that the allocator of the framework counts [bytes]."""
        return self.step_bytes + self.bucket_bytes + self.owned_bytes + self.workspace_bytes

    @property
    def needed_bytes(self) -> int:
        """Largest memory, with what no allocator counts [bytes]."""
        return self.peak_bytes + self.communicator_bytes + self.context_bytes

    @property
    def fits(self) -> bool:
        """Whether the card has room for all of it."""
        return self.needed_bytes <= self.card_bytes


def replica_memory(
    memory: StepMemory,
    works: Sequence[Work],
    *,
    batch: int,
    devices: int,
    sync: Sync,
    device: Device,
    software: Software,
    summed_bytes: int = 0,
) -> ReplicaMemory:
    """Memory of one rank.

    Args:
        memory: of its step
        works: of its step at this batch, for the workspaces that they need
        batch: samples of its step
        devices: in the group
        sync: how gradients are exchanged
        device: of the rank
        software: whose replica it is
        summed_bytes: gradients that this rank owns, with "kvstore"; 0: none [bytes]
    """
    alone = devices == 1
    step_bytes, bucket_bytes = step_with_buckets(memory, software, batch=batch, buckets=sync == "nccl" and not alone)
    return ReplicaMemory(
        step_bytes=step_bytes,
        bucket_bytes=bucket_bytes,
        owned_bytes=0 if alone or sync != "kvstore" else _owned_bytes(memory, devices, summed_bytes),
        workspace_bytes=workspace_bytes(works, device),
        communicator_bytes=0 if alone or sync in ("kvstore", "server") else COMMUNICATOR_BYTES,
        context_bytes=device.memory.context_bytes,
        card_bytes=device.memory.reported_bytes,
    )


def step_with_buckets(
    memory: StepMemory, software: Software, *, batch: int, buckets: bool, stay: bool = False
) -> tuple[int, int]:
    """The peak of a step, and the copy of its gradients in buckets [bytes].

    Args:
        memory: of the step of a microbatch
        software: whose replica it is
        batch: samples of a microbatch
        buckets: gradients are exchanged in buckets
        stay: gradients stay in any case, as where several microbatches add theirs up
    """
    views = buckets and software.gradient_views
    drops = software.framework == "pytorch" and software.year >= _DROPPED_SINCE
    step_bytes = memory.peak(batch, keeps_gradients=views or stay or not drops)
    return step_bytes, memory.gradient_bytes if buckets and not views else 0


def holds_words(software: Software) -> str:
    """Whose memory of replicas a figure is, for people.

    Example:
        >>> holds_words(Software())
        'memory is of pytorch:2024, with gradients copied into buckets; --software trimaran: without the copy'
    """
    if software.gradient_views:
        return "memory is of Trimaran's runtime, with gradients once; --software pytorch: with DDP's copy in buckets"
    name = software.text
    return f"memory is of {name}, with gradients copied into buckets; --software trimaran: without the copy"


def _owned_bytes(memory: StepMemory, devices: int, summed_bytes: int) -> int:
    """Of each tensor summed here: the sum, a copy from every other device, the weight; and state of these alone.

    Source:
        MXNet src/kvstore/comm.h, CommDevice: `merged` and `copy_buf`; kvstore_local.h: `local_`, updated on the owner.
    """
    if not memory.gradient_bytes:
        return 0
    state = memory.optimizer_bytes * summed_bytes // memory.gradient_bytes
    return summed_bytes * (devices + 1) + state - memory.optimizer_bytes


def workspace_bytes(works: Sequence[Work], device: Device) -> int:
    """Workspace that torch keeps for the library of products [bytes].

    Args:
        works: of a step
        device: of the rank
    """
    if not any(work.kind in (WorkKind.PRODUCT, WorkKind.RECURRENT) for work in works):
        return 0
    return PRODUCT_WORKSPACE_BYTES.get(device.generation, _PRODUCT_WORKSPACE_BYTES)
