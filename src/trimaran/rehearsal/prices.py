"""What recorded kernels and collectives take on a target cluster: the models that plans are priced by, no others.

    kernel       TraceOp ─▶ works ─▶ curves of the device (`pricing/kernels`) × the user's calibration
    collective   group ─▶ links that it crosses on the machine ─▶ curves of collectives (`pricing/collectives`)

A group is priced with all groups like it under way at once, the slowest layout of them: ranks that are not rehearsed
use the same cards. Transfers of one rank that are under way at once share what limits them: its links inside a node, or
those to the network. Ranks have the devices node by node.

Fused attention in 16 bits reaches the share of peak that it has in published steps of transformers (`analytical`), and
large products their rate there. Where attention is causal, half of its operations count, as its kernels skip what is
masked. Products in eight bits take half the time of those in sixteen. Copies between host and device are as fast as
from page-locked memory while all ranks of a node copy. Left out: kernels of the script's own whose names say nothing;
they are taken to move their tensors once.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np

from trimaran.base.decoding import decode_typed
from trimaran.base.errors import InputError
from trimaran.base.files import read_bytes
from trimaran.graph.kernels.convert import ITEM_BYTES, works_alone
from trimaran.graph.kernels.workload import Gradient, Work, WorkKind
from trimaran.graph.trace.types import TraceOp
from trimaran.graph.types import Phase
from trimaran.machine.topology import host_bandwidth
from trimaran.machine.types import Device, Machine
from trimaran.pricing.analytical.step_time import EIGHT_BITS, LATE_KERNELS, NEW_UNITS, step_constants
from trimaran.pricing.collectives.algorithms import crossing_cost
from trimaran.pricing.collectives.links import LinkUse, crossing_of, group_crossings, transfer_crossings
from trimaran.pricing.kernels.constants import constants
from trimaran.pricing.kernels.durations import PLAIN
from trimaran.pricing.kernels.estimate import framework_constant, seconds_alone
from trimaran.pricing.kernels.software import Software
from trimaran.pricing.types import Cost, Transfer
from trimaran.rehearsal.record import Collective, Kernel, TensorForm

# ---------------------------------------------------------------------------------------------------------------------
# Factors from one device that was measured


class RehearsalCalibration(msgspec.Struct, frozen=True, kw_only=True):
    """Measured by modelled times, from one device.

    Attributes:
        kernels: by name of the operator, with or without its overload ("aten.mm" or "aten.mm.default")
        kinds: by family of kernels, for those that `kernels` does not name
        others: of all other kernels
        host: of the host's time for a launch
        collectives: by operation, such as "all_gather"
        spread: standard deviation of the logarithm of what remains unknown
        source: where the factors come from
        device: that was measured, a name of the catalog; empty: not said
    """

    kernels: dict[str, float] = {}
    kinds: dict[str, float] = {}
    others: float = 1.0
    host: float = 1.0
    collectives: dict[str, float] = {}
    spread: float = 0.05
    source: str
    device: str = ""

    def of(self, name: str, kind: str) -> float:
        """The factor of a kernel.

        Args:
            name: with its overload
            kind: family

        Example:
            >>> table = RehearsalCalibration(kernels={"aten.mm": 1.2}, kinds={"softmax": 0.9}, source="example")
            >>> table.of("aten.mm.default", "product"), table.of("aten._softmax.default", "softmax")
            (1.2, 0.9)
        """
        for spelling in (name, name.rpartition(".")[0]):
            if spelling in self.kernels:
                return self.kernels[spelling]
        return self.kinds.get(kind, self.others)


class _WrittenAnswer(msgspec.Struct, frozen=True):
    """What is read of the answer to a rehearsal."""

    calibration: RehearsalCalibration | None = None


_MOST_CALIBRATION_BYTES = 16 * 2**20


def read_calibration(path: Path) -> RehearsalCalibration:
    """Factors that the rehearsal of one rank found from a profile, of its answer as JSON (`--output`).

    Raises:
        InputError: no file, no factors in it, or a factor that is not positive
        CorruptDataError: it is no such answer
    """
    found = decode_typed(
        read_bytes(path, most_bytes=_MOST_CALIBRATION_BYTES), _WrittenAnswer, source=str(path)
    ).calibration
    if found is None:
        raise InputError(
            f"{path} has no calibration: rehearse the script on one rank with a profile of it, "
            f"`trimaran rehearse --world 1 --measured TRACE --output {path.name} -- SCRIPT`",
            code="rehearse.no-calibration",
        )
    factors = {"others": found.others, "host": found.host, **found.kernels, **found.kinds, **found.collectives}
    for name, factor in factors.items():
        if not (factor > 0.0 and math.isfinite(factor)):
            raise InputError(
                f"{path}: the factor of {name} is {factor}: measured by modelled time is a number above 0",
                code="rehearse.bad-factor",
                name=name,
                factor=factor,
            )
    if not (found.spread >= 0.0 and math.isfinite(found.spread)):
        raise InputError(
            f"{path}: spread is {found.spread}: a standard deviation is 0 or more", code="rehearse.bad-spread"
        )
    return found


# ---------------------------------------------------------------------------------------------------------------------
# Kernels


@dataclass(frozen=True, slots=True)
class KernelPrice:
    """A launch of a kernel.

    Attributes:
        device_s: of the device, nothing else running [s]
        host_s: of the host, to ask for it [s]
        flops: as counted for a share of peak: half of them of causal attention [FLOP]
        kind: family, such as "product"; "" where nothing runs
    """

    device_s: float
    host_s: float
    flops: float
    kind: str


_NOTHING = KernelPrice(0.0, 0.0, 0.0, "")


def price_kernels(
    kernels: Sequence[Kernel],
    device: Device,
    software: Software,
    *,
    calibration: RehearsalCalibration | None = None,
) -> list[KernelPrice]:
    """The price of each of a record's kernels.

    Args:
        kernels: of a record
        device: of the catalog
        software: framework and year
        calibration: factors from one device

    Returns:
        A price for each, in order.
    """
    found = [_NOTHING] * len(kernels)
    works, owners = [], []
    for number, kernel in enumerate(kernels):
        places = {form.device for form in (*kernel.inputs, *kernel.outputs)}
        if places == {"cuda", "cpu"} and _copies(kernel):
            found[number] = _host_copy(kernel, device, software)
        elif "cuda" in places:
            share = 0.5 if _is_causal(kernel) else 1.0
            works_here = _recurrent_works(kernel) if "_cudnn_rnn" in kernel.name else works_alone(as_operation(kernel))
            for work in works_here:
                works.append(replace(work, flops=work.flops * share))
                owners.append(number)
    if not works:
        return found
    seconds = [
        zip(*(column.tolist() for column in seconds_alone(works, device, software, precision=each)), strict=True)
        for each in ("ieee", "tf32")
    ]
    for number, work, exact, rounded in zip(owners, works, *seconds, strict=True):
        on_device, on_host = rounded if kernels[number].tf32 else exact
        before, name = found[number], kernels[number].name
        kind = str(work.kind)
        if work.kind is WorkKind.ATTENTION:
            on_device = _attention_seconds(work, on_device, device, software)
        if (share := kernels[number].share) != 1.0:
            least = min(on_device, work.launches * device.launch.seconds)
            on_device = least + share * (on_device - least)
        factor = 1.0 if calibration is None else calibration.of(name, kind)
        if "_scaled_" in name and work.kind is WorkKind.PRODUCT:
            factor /= EIGHT_BITS
        found[number] = KernelPrice(
            before.device_s + on_device * factor,
            before.host_s + on_host * (1.0 if calibration is None else calibration.host),
            before.flops + work.flops * kernels[number].share,
            before.kind or kind,
        )
    return found


def _attention_seconds(work: Work, alike_s: float, device: Device, software: Software) -> float:
    """Time of a fused attention: at the share of peak that transformers reach, as it keeps its tiles on the chip [s].

    Args:
        work: of it
        alike_s: of products of its shapes, which price it in 32 bits, and bound it from below by its bytes [s]
        device: of the catalog
        software: decides the generation of its kernels
    """
    if work.dtype not in ("bfloat16", "float16") or device.architecture in PLAIN:
        return alike_s
    table = step_constants()
    late = software.year >= LATE_KERNELS
    share = table.attention_share if late else table.early_attention_share
    share /= table.attention_factor(work.dims[3])
    if not late and device.architecture in NEW_UNITS:
        share *= table.ported_share
    peak = device.compute["bf16" if work.dtype == "bfloat16" else "fp16"].flops_per_s
    moved_s = work.nbytes / device.sustained_bytes_per_s
    return max(work.flops / (peak * share), moved_s) + work.launches * device.launch.seconds


def _is_causal(kernel: Kernel) -> bool:
    """Whether an attention skips what is masked."""
    given = kernel.arguments
    return any(part in kernel.name for part in ("attention", "flash_attn")) and bool(
        given.get("is_causal") or given.get("causal") or given.get("custom_mask_type") in (1, 2)
    )


def as_operation(kernel: Kernel) -> TraceOp:
    """A recorded kernel as an operation of a traced step, as far as its price asks."""
    forms = kernel.outputs or kernel.inputs
    # What is written into an argument is that argument, which is counted already.
    made = () if kernel.name.endswith("out") else kernel.outputs
    return TraceOp(
        moment=0,
        name=kernel.name if kernel.name.count(".") > 1 else f"{kernel.name}.default",
        phase=Phase.BACKWARD if "backward" in kernel.name else Phase.FORWARD,
        module="",
        reads=(),
        writes=(),
        flops=float(kernel.flops),
        nbytes=sum(map(nbytes_of, (*kernel.inputs, *made))),
        dtype=forms[0].dtype if forms else "",
        repeatable=False,
        operands=tuple((place, form.shape) for place, form in enumerate(kernel.inputs)),
        results=_results(kernel),
    )


def _results(kernel: Kernel) -> tuple[tuple[int, ...] | None, ...]:
    """Shapes of results; None in the place of a gradient that nobody asked for."""
    shapes = iter([form.shape for form in kernel.outputs])
    mask = kernel.arguments.get("output_mask")
    if isinstance(mask, list) and sum(map(bool, mask)) == len(kernel.outputs):
        return tuple(next(shapes) if asked else None for asked in mask)
    return tuple(shapes)


def nbytes_of(form: TensorForm) -> int:
    """Bytes of the elements that a tensor has, each once: an expanded one repeats them [bytes].

    Example:
        >>> nbytes_of(TensorForm((4, 8), "bfloat16")), nbytes_of(TensorForm((4, 8), "bfloat16", strides=(0, 1)))
        (64, 16)
    """
    sizes = form.shape
    if form.strides is not None:
        sizes = tuple(size for size, stride in zip(form.shape, form.strides, strict=False) if stride)
    return math.prod(sizes) * ITEM_BYTES.get(form.dtype, 1 if "float8" in form.dtype else 4)


_CELLS = (1, 1, 4, 3)
"""Matrices of a cell by cuDNN's mode: ReLU, tanh, LSTM, GRU."""


def _recurrent_works(kernel: Kernel) -> Iterator[Work]:
    """The layers of a call of cuDNN for recurrent networks, of which each goes through its steps one after another."""
    asked, tensor = kernel.arguments, kernel.inputs[0]
    steps_of_batch = asked.get("batch_sizes") or ()
    if len(tensor.shape) == 2:  # rows of sequences of different lengths
        rows, steps = tensor.shape[0], max(1, len(steps_of_batch))
    else:
        rows, steps = tensor.shape[0] * tensor.shape[1], tensor.shape[1 if asked.get("batch_first") else 0]
    gates, cells = _CELLS[int(asked["mode"])], int(asked["hidden_size"])
    directions = 2 if asked.get("bidirectional") else 1
    carried = int(asked.get("proj_size") or 0) or cells
    item = ITEM_BYTES.get(tensor.dtype, 4)
    backward = "backward" in kernel.name
    mask = asked.get("output_mask") or (True, True, True, True)
    width = tensor.shape[-1]
    for _ in range(int(asked["num_layers"])):
        weights = directions * (gates * cells * (width + carried) + (cells * carried if carried != cells else 0))
        one = Work(
            kind=WorkKind.RECURRENT,
            phase=Phase.BACKWARD if backward else Phase.FORWARD,
            gradient=Gradient.INPUT if backward else Gradient.NONE,
            module="",
            name=kernel.name.rpartition(".")[0],
            dtype=tensor.dtype,
            flops=2.0 * rows * weights,
            nbytes=item * (weights + rows * (width + directions * (gates + 1) * cells)),
            dims=(steps, max(1, -(-rows // max(1, steps))), width, cells, gates, directions),
            launches=(1 + 2 * steps) * directions,
        )
        yield one
        if backward and mask[-1]:
            yield replace(one, gradient=Gradient.WEIGHT, launches=2 * directions)
        width = directions * carried


def sharing_host(machine: Machine, ranks: int) -> Device:
    """The device of a machine, with its rates to the host while all ranks of a node copy at once.

    Args:
        machine: nodes and their links to devices
        ranks: of a node, on its first devices

    Example:
        >>> from trimaran.machine.find import find_machine
        >>> machine = find_machine("dgx1-v100")
        >>> [round(sharing_host(machine, ranks).copies.to_device_bytes_per_s / 1e9, 1) for ranks in (1, 8)]
        [12.4, 6.2]
    """
    device = machine.node.device
    least = min(host_bandwidth(machine.node, range(ranks)).values(), default=math.inf)
    copies = replace(
        device.copies,
        to_host_bytes_per_s=min(device.copies.to_host_bytes_per_s, least),
        to_device_bytes_per_s=min(device.copies.to_device_bytes_per_s, least),
    )
    return replace(device, copies=copies)


def _copies(kernel: Kernel) -> bool:
    return kernel.name.split(".")[1:2] in (["copy_"], ["_to_copy"], ["_copy_from"], ["to"])


def _host_copy(kernel: Kernel, device: Device, software: Software) -> KernelPrice:
    """A copy from page-locked memory of the host, or to it."""
    forms = kernel.outputs or kernel.inputs[:1]
    copies = device.copies
    rate = copies.to_device_bytes_per_s if forms[0].device == "cuda" else copies.to_host_bytes_per_s
    seconds = copies.latency_s + (max(map(nbytes_of, kernel.inputs)) / rate if rate > 0 else 0.0)
    return KernelPrice(seconds, host_seconds(software), 0.0, "host copy")


def host_seconds(software: Software) -> float:
    """Time of a host to launch one kernel [s]."""
    table = constants()
    return framework_constant("host", software, table) * (table["host.compiled"] if software.compiled else 1.0)


# ---------------------------------------------------------------------------------------------------------------------
# Collectives


_PRICED_AS = {
    "gather": "all_gather",
    "scatter": "all_gather",
    "barrier": "all_reduce",
    "send": "send_recv",
    "recv": "send_recv",
}
"""A gather and a scatter move what a member of an all-gather gets; a barrier is a sum of one number."""

_EMPTY_BYTES = 8
"""A transfer of this size takes its latency only, which no sharing lengthens."""


class Links:
    """Prices of transfers between ranks on a machine.

    Args:
        machine: nodes and what joins them
        world: ranks in all
        per_node: ranks of a node; they have its first devices
        year: of the software, which decides the library of collectives
        calibration: factors from runs

    Raises:
        InputError: more ranks than devices
    """

    def __init__(
        self,
        machine: Machine,
        *,
        world: int,
        per_node: int,
        year: float,
        calibration: RehearsalCalibration | None = None,
    ) -> None:
        nodes = -(-world // per_node)
        if per_node > machine.node.devices or nodes > max(1, machine.nodes):
            raise InputError(
                f"{world} ranks, {per_node} to a node, were rehearsed; {machine.node.title} has {machine.node.devices} "
                f"devices to a node and {max(1, machine.nodes)} nodes: name a cluster of {nodes} nodes with {per_node}",
                code="rehearse.cluster-too-small",
                world=world,
                per_node=per_node,
            )
        self._machine, self._world, self._per_node, self._year = machine, world, per_node, year
        self._factors = calibration.collectives if calibration is not None else {}
        self._crossings: dict[tuple[str, tuple[int, ...]], frozenset[LinkUse]] = {}
        self._known: dict[tuple[str, tuple[int, ...], int], Transfer] = {}

    def transfer(self, collective: Collective, members: Sequence[int], *, source: int, target: int) -> Transfer:
        """Price of a collective or a message when no other of its members runs.

        Args:
            collective: what is asked for
            members: global ranks of its group
            source: of a message, the rank that sends
            target: of a message, the rank that receives

        Returns:
            It, with one name in `links`: what limits it on each of its ranks, "inside" or "network".
        """
        operation = collective.operation.removesuffix("_object")
        asked = _PRICED_AS.get(operation, operation)
        ranks = (source, target) if asked == "send_recv" else tuple(sorted(members))
        key = (operation, ranks, collective.nbytes)
        if key not in self._known:
            self._known[key] = self._priced(operation, asked, ranks, collective.nbytes)
        return self._known[key]

    def _priced(self, operation: str, asked: str, ranks: tuple[int, ...], nbytes: int) -> Transfer:
        if len(set(ranks)) < 2:
            return Transfer(latency_s=0.0, flow_s=0.0, links=(), low=0.0, high=0.0, source="analytic: one rank")
        crossings = self._crossings.get((asked, ranks))
        if crossings is None:
            find = self._message_crossings if asked == "send_recv" else self._group_crossings
            crossings = self._crossings[asked, ranks] = find(asked, ranks)
        cost, latency = (self._slowest(asked, size, crossings) for size in (nbytes, _EMPTY_BYTES))
        factor = self._factors.get(operation, self._factors.get(asked, 1.0))
        latency_s = min(latency.seconds, cost.seconds) * factor
        return Transfer(
            latency_s=latency_s,
            flow_s=cost.seconds * factor - latency_s,
            links=(self._limit(ranks),),
            low=cost.low * factor,
            high=cost.high * factor,
            source=cost.source,
        )

    def _slowest(self, operation: str, nbytes: int, crossings: frozenset[LinkUse]) -> Cost:
        costs = (
            crossing_cost(operation, nbytes, machine=self._machine, crossing=crossing, year=self._year)
            for crossing in crossings
        )
        return max(costs, key=lambda cost: cost.seconds)

    def _device(self, rank: int) -> int:
        return rank // self._per_node * self._machine.node.devices + rank % self._per_node

    def _group_crossings(self, operation: str, ranks: tuple[int, ...]) -> frozenset[LinkUse]:
        members, stride = len(ranks), ranks[1] - ranks[0]
        even = all(after - before == stride for before, after in pairwise(ranks))
        fills = self._world % (members * stride) == 0 and ranks[0] % (members * stride) < stride
        if not (even and fills):
            return frozenset({crossing_of(self._machine, [self._device(rank) for rank in ranks], op=operation)})
        devices = () if self._per_node == self._machine.node.devices else [*map(self._device, range(self._world))]
        return group_crossings(
            self._machine, ranks=self._world, members=members, stride=stride, devices=devices, op=operation
        )

    def _message_crossings(self, operation: str, ranks: tuple[int, ...]) -> frozenset[LinkUse]:
        """Of the messages that go the same way between the nodes of these two, all at once."""
        source, target = ranks
        first, size = source // self._per_node * self._per_node, self._per_node
        senders = np.arange(first, min(first + size, self._world))
        receivers = senders + (target - source)
        alike = (receivers >= 0) & (receivers < self._world) & (receivers // size == target // size)
        pairs = [[self._device(a), self._device(b)] for a, b in zip(senders[alike], receivers[alike], strict=True)]
        return transfer_crossings(self._machine, np.array(pairs, dtype=np.int64), op=operation)

    def _limit(self, ranks: tuple[int, ...]) -> str:
        """What limits a transfer: the links inside a node, or the network."""
        return "network" if len({rank // self._per_node for rank in ranks}) > 1 else "inside"
