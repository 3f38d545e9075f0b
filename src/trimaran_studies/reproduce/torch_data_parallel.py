"""A data-parallel step of one process, in which all transfers go through the first device: `torch.nn.DataParallel`.

With n devices the step is a sum, because its parts run one after the other:

    load       n L               one thread of the host makes the whole batch
    copy       n I / H           the whole batch goes to the first device, from pageable memory
    scatter    sum_k I / P_k     the first device sends the others their shares, one after another
    replicate  max(R, M)         weights go to all devices, while the host makes a copy of every module for each
    forward    max(F, n C)       n threads call their operations, of which one interpreter lets one call at a time
    gather     sum_k 2 O / P_k   outputs come to the first device, their gradients go back
    loss       (n - 1) E         of all other devices' samples; its own loss is in F and B
    backward   B                 a thread of the engine for each device, without the interpreter
    reduce     S                 one node of the graph sums all gradients, after the last backward
    update     U                 on the first device; the others wait

I and O are bytes of a device's samples and outputs, H and P_k rates of the links to the host and to device k, k = 1 to
n - 1. Each of three remedies reduces some terms:

    split      load L, copy max_k I / H_k: every device has its own reader, and nothing is scattered
    pre-load   load and copy of the next batch run during the step, from page-locked memory; the exposed rest is
               max(0, max(load / workers, copy) - all the rest)
    compress   R and S with half as many bytes, plus the time of coding

`transfers_on` prices the transfers on a machine of the catalog. Copies are priced by the links of the node, weights and
gradients by its collectives: `DataParallel` passes them to NCCL in chunks of 10 MiB where it can. Left out: copies of
the next batch that share a link with an exchange.

Source:
    torch/nn/parallel/data_parallel.py, replicate.py, _functions.py (Broadcast, whose backward is one
    ReduceAddCoalesced), parallel_apply.py of PyTorch 2.13. The remedies: Xu et al., "ScaleDNN: Data Movement Aware DNN
    Training on Multi-GPU", ICCAD 2021.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Literal

from trimaran.graph.kernels.workload import WorkKind, Workload
from trimaran.graph.types import Phase
from trimaran.machine.topology import host_bandwidth, host_route, pair
from trimaran.machine.types import Machine
from trimaran.pricing.collectives.algorithms import collective_cost
from trimaran.pricing.kernels.estimate import StepEstimate

Baseline = Literal["replicate-and-scatter", "ddp"]
"""Baselines of the remedies: all transfers through the first device, or a process for each device with its share of
the data and an all-reduce of the gradients (`DistributedDataParallel` with a plain `DataLoader`)."""

BASELINES: tuple[Baseline, ...] = ("replicate-and-scatter", "ddp")


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedies:
    """Which of the three are enabled."""

    split: bool = False
    preload: bool = False
    compress: bool = False

    @property
    def name(self) -> str:
        """For tables and documents.

        Example:
            >>> [remedies.name for remedies in ABLATION]
            ['none', 'split', 'pre-load', 'compress', 'all']
        """
        parts = [("split", self.split), ("pre-load", self.preload), ("compress", self.compress)]
        on = [name for name, is_on in parts if is_on]
        return "all" if len(on) == len(parts) else " + ".join(on) or "none"


NONE = Remedies()
ALL = Remedies(split=True, preload=True, compress=True)
ABLATION = (NONE, Remedies(split=True), Remedies(preload=True), Remedies(compress=True), ALL)
"""One at a time, and all together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWork:
    """Computation of host and devices for the share of one device [s].

    Attributes:
        load_s: L, one thread of the host loads the samples
        forward_s: F, with its loss
        calls_s: C, time of the interpreter for the calls of the forward
        loss_s: E, forward and backward of the loss alone
        backward_s: B
        update_s: U
    """

    forward_s: float
    backward_s: float
    update_s: float
    load_s: float = 0.0
    calls_s: float = 0.0
    loss_s: float = 0.0

    def scaled(self, factor: float) -> "ReplicaWork":
        """The same on devices that take `factor` times as long; the interpreter's part is unchanged."""
        return replace(
            self,
            forward_s=self.forward_s * factor,
            loss_s=self.loss_s * factor,
            backward_s=self.backward_s * factor,
            update_s=self.update_s * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchCopies:
    """Copies of a batch from the host [s].

    Attributes:
        whole_s: all of it to the first device, from pageable memory
        shares_s: to each device its share, all at once, from pageable memory
        whole_ahead_s: all of it to the first device, from page-locked memory
        shares_ahead_s: to each device its share, all at once, from page-locked memory
    """

    whole_s: float = 0.0
    shares_s: float = 0.0
    whole_ahead_s: float = 0.0
    shares_ahead_s: float = 0.0

    def under(self, remedies: Remedies) -> float:
        """The copy that applies with some remedies."""
        if remedies.preload:
            return self.shares_ahead_s if remedies.split else self.whole_ahead_s
        return self.shares_s if remedies.split else self.whole_s

    def scaled(self, factor: float) -> "BatchCopies":
        """The same on links that take `factor` times as long."""
        return BatchCopies(
            whole_s=self.whole_s * factor,
            shares_s=self.shares_s * factor,
            whole_ahead_s=self.whole_ahead_s * factor,
            shares_ahead_s=self.shares_ahead_s * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfers:
    """Times of the transfers through the first device [s].

    Attributes:
        copies: of the batch, from the host
        scatter_s: shares of the batch, from the first device to the others
        gather_s: outputs to the first device, and their gradients back
        weights_s: R, to all devices
        gradients_s: S, summed on the first device
        compressed_weights_s: R compressed
        compressed_gradients_s: S compressed
        coding_s: time to code both, where they are compressed
        making_s: M, the host copies the modules
    """

    copies: BatchCopies
    weights_s: float
    gradients_s: float
    scatter_s: float = 0.0
    gather_s: float = 0.0
    compressed_weights_s: float = 0.0
    compressed_gradients_s: float = 0.0
    coding_s: float = 0.0
    making_s: float = 0.0

    def scaled(self, *, links: float = 1.0, host: float = 1.0) -> "Transfers":
        """The same where links and host take the given factors as long."""
        return replace(
            self,
            copies=self.copies.scaled(links),
            scatter_s=self.scatter_s * links,
            gather_s=self.gather_s * links,
            weights_s=self.weights_s * links,
            gradients_s=self.gradients_s * links,
            compressed_weights_s=self.compressed_weights_s * links,
            compressed_gradients_s=self.compressed_gradients_s * links,
            making_s=self.making_s * host,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicatedStep:
    """The parts of a step; they sum to it [s].

    Attributes:
        feed_s: exposed loading and copying of the batch
        scatter_s: shares to the other devices
        replicate_s: weights to all devices, copies of modules
        forward_s: FP
        gather_s: outputs to the first device, their gradients back, the loss of the other devices' samples
        backward_s: BP
        reduce_s: gradients to the first device, coding of weights and gradients
        update_s: WU on the first device
    """

    feed_s: float
    scatter_s: float
    replicate_s: float
    forward_s: float
    gather_s: float
    backward_s: float
    reduce_s: float
    update_s: float

    @property
    def step_s(self) -> float:
        """The whole [s]."""
        return self.feed_s + self._rest_s

    @property
    def _rest_s(self) -> float:
        exchanged_s = self.scatter_s + self.replicate_s + self.gather_s + self.reduce_s
        return exchanged_s + self.forward_s + self.backward_s + self.update_s


def replicated_step(
    work: ReplicaWork, transfers: Transfers, *, devices: int, remedies: Remedies | None = None, workers: int = 1
) -> ReplicatedStep:
    """A step through the first device.

    Args:
        work: of one device's share
        transfers: times of the transfers of all devices together
        devices: n
        remedies: enabled; None: none
        workers: threads or processes that load ahead, for each reader

    Example:
        Two devices that load 1 s, compute 2 s and 3 s, copy 2 s, scatter 1 s, and move weights and gradients in 4 s
        each: 2 + 2 + 1 + 4 + 2 + 3 + 4.

        >>> work = ReplicaWork(load_s=1.0, forward_s=2.0, backward_s=3.0, update_s=0.0)
        >>> copies = BatchCopies(whole_s=2.0, shares_s=1.0, whole_ahead_s=2.0, shares_ahead_s=1.0)
        >>> transfers = Transfers(copies=copies, scatter_s=1.0, weights_s=4.0, gradients_s=4.0,
        ...                     compressed_weights_s=2.0, compressed_gradients_s=2.0)
        >>> [replicated_step(work, transfers, devices=2, remedies=remedies).step_s for remedies in ABLATION]
        [18.0, 15.0, 14.0, 14.0, 9.0]
    """
    on = remedies or NONE
    weights_s, gradients_s, coding_s = transfers.weights_s, transfers.gradients_s, 0.0
    if on.compress:
        weights_s, gradients_s = transfers.compressed_weights_s, transfers.compressed_gradients_s
        coding_s = transfers.coding_s
    step = ReplicatedStep(
        feed_s=0.0,
        scatter_s=0.0 if on.split else transfers.scatter_s,
        replicate_s=max(weights_s, transfers.making_s),
        forward_s=max(work.forward_s, devices * work.calls_s),
        gather_s=transfers.gather_s + (devices - 1) * work.loss_s,
        backward_s=work.backward_s,
        reduce_s=gradients_s + coding_s,
        update_s=work.update_s,
    )
    load_s = work.load_s if on.split else devices * work.load_s
    copy_s = transfers.copies.under(on)
    feed_s = max(0.0, max(load_s / workers, copy_s) - step.step_s) if on.preload else load_s + copy_s
    return replace(step, feed_s=feed_s)


CHUNK_BYTES = 10 * (1 << 20)
"""Size of a chunk: tensors that are sent together. Source: buffer_size of broadcast_coalesced and reduce_add_coalesced,
torch/nn/parallel/comm.py."""

PAGEABLE = 0.45
"""Share of a link that a copy from pageable memory sustains: 5e9 to 6e9 of 12.4e9 B/s on PCIe 3.0 x16 (V100, logs of
microsoft/superbenchmark, dask-cuda), 9e9 to 18e9 of 26e9 B/s on PCIe 4.0. A separate thread does each copy."""

COPY_S = 10e-6
"""Fixed time of a copy: 9.2 to 9.9 us between devices (uuudown/Tartan@e3166ab)."""

MODULE_S = 14e-6
"""Time in which the host copies a module, with its parameters and buffers: 13.8 to 15.0 us for ResNet-50, GoogLeNet and
Inception-v3, `replicate` of PyTorch 2.13 without its transfers, measured on one core of an EPYC."""

CALLS = 0.5
"""Part of the host's time for an operation during which the interpreter's lock is held: assumed. PyTorch releases
it while an operation is dispatched."""

CODED_WEIGHTS = 3.0
"""Bytes read and written for a byte of weights that is sent as 16 bits: cast (4 and 2), cast back (2 and 4), of 4."""

CODED_GRADIENTS = 8.5
"""The same for gradients with error feedback: add the previous error (8 and 4), cast (4 and 2), keep the new error
(6 and 4), cast back (2 and 4), of 4."""

HALF = 0.5
"""Bytes of 16-bit numbers by those of 32-bit ones."""


def replica_work(workload: Workload, estimate: StepEstimate) -> ReplicaWork:
    """The computation of a device in a step; samples are ready in the host's memory.

    Args:
        workload: one device's share
        estimate: of that workload
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
    """Size of a device's outputs, the input of the loss; 0 where the loss is not a cross entropy [bytes]."""
    return max(
        (
            4 * work.dims[0]
            for work in workload.works
            if work.phase is Phase.FORWARD and work.kind is WorkKind.SOFTMAX and "log_softmax" in work.name
        ),
        default=0,
    )


def transfers_on(machine: Machine, workload: Workload, *, devices: int, year: float) -> Transfers:
    """Times of the transfers through the first device.

    Args:
        machine: of one node
        workload: one device's share
        devices: of the node, its first ones
        year: of the communication library
    """
    node = machine.node
    others = [pair(node, 0, number).bytes_per_s for number in range(1, devices)]
    gradients = [gradient.nbytes for gradient in workload.gradients]
    untrained = workload.parameter_bytes + workload.buffer_bytes - sum(gradients)
    weights = [*gradients, untrained] if untrained > 0 else gradients
    memory = node.device.sustained_bytes_per_s

    def sent_s(op: str, sizes: Sequence[int], share: float) -> float:
        """Time of chunks one after another, each packed and unpacked once [s]."""
        calls = (
            collective_cost(op, nbytes, machine=machine, devices=devices, year=year).seconds
            for nbytes in chunks(round(share * size) for size in sizes)
        )
        return sum(calls) + 2 * share * sum(sizes) / memory

    return Transfers(
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
    """Sizes of the chunks in which tensors are sent, one after another; a large tensor is one chunk [bytes].

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
    """Number of modules of a network, containers included, by the names in its works and weights."""
    paths = {work.module for work in workload.works} | {gradient.module for gradient in workload.gradients}
    return len({""} | {part for path in paths if path for part in accumulate(path.split("."), "{}.{}".format)})


def _is_of_loss(name: str) -> bool:
    return any(part in name for part in ("log_softmax", "nll_loss", "cross_entropy"))
