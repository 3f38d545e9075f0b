"""Time of a training step of a sharded transformer.

    microbatch   (device^p + host^p)^(1/p)     kernels back to back against a host that has to ask for them
    device       products / (peak · share) + attention / (peak · share) + bytes / bandwidth + exchanges inside a layer;
                 products of experts take at least as long as reading and writing their matrices
    pipeline     (m - 1) · slowest stage + one pass through all stages, of which interleaved chunks leave 1 / V;
                 sends between stages are waited for (1F1B), or V times as many overlap (interleaved)
    data         gradients reduced and parameters gathered, as far as the backward does not overlap them
    update       about 30 bytes a parameter of this rank, read and written
    slowest      ranks wait for the slowest of them: the more there are, the longer

Under DTensor the device also puts together what was exchanged along the sequence (`_joined_bytes`).

Source:
    Narayanan et al., SC 2021, section 2, for the bubble `(P - 1) / (V m)`; Korthikanti et al., 2022, section 4, for the
    exchanges of a layer; Rajbhandari et al., SC 2020, for those of sharded states.

Collectives between ranks of a sharded step, priced on a machine: ranks are numbered in the order tensor, context, data,
pipeline, and experts with their replicas in place of context and data. They have the devices in that order, or in
another one (`Degrees.rank_order`). `collectives.links` says which links the groups of a kind cross, all at the same
time; the slowest group counts.

How long a sharded step waits for exchanges: inside layers, between stages, between replicas.

    tensor      4 sums of the residual stream a layer and microbatch, 6 where layers are recomputed; half of them in
                parallel blocks, whose two sub-layers are summed at once; of a layer whose experts are not shared by
                `tp` ranks only those of attention, and of a shared expert
    context     keys and values of all ranks gathered in the forward and twice in the backward; or heads sent for parts
                of the sequence and back, forward and backward (Ulysses)
    experts     tokens sent to their experts and back, forward and backward; gathered by the ranks that share an expert
    stages      the residual stream, once forward and once backward, for each chunk
    replicas    gradients summed once a step; with optimizers sharded scattered, and parameters gathered; with gradients
                divided too, scattered for each microbatch; with parameters sharded, gathered twice for each as well,
                layer by layer: the forward overlaps gathers, the backward gathers and scatters, and kernels that run
                meanwhile are slower, for the exchange has some of the multiprocessors

Source:
    Korthikanti et al., 2022, section 4, for exchanges of a layer; Narayanan et al., SC 2021, section 2.2, for stages;
    Rajbhandari et al., SC 2020, section 7, for sharded states; Jacobs et al., "DeepSpeed Ulysses", 2023, section 3.2,
    for exchanges of heads; Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2, for hybrid sharding; Liu et al., "MoE
    Parallel Folding", 2025, section 3, for shared experts.
"""

import functools
import math
import statistics
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, TypeVar

from trimaran.base.errors import InputError
from trimaran.base.files import packaged_toml
from trimaran.base.precision import Precision, element_bytes
from trimaran.machine.topology import host_bandwidth
from trimaran.machine.types import Device, Machine
from trimaran.pricing.analytical.layers import (
    GRADIENT_BYTES,
    NATIVE,
    AttentionKernel,
    Eager,
    Operation,
    PassWork,
    Product,
    attended_tokens,
    backward,
    elements,
    expert_elements,
    layer_elements,
    layer_forward,
    operations,
    prediction_operations,
    recomputed_work,
    stage_elements,
    work,
)
from trimaran.pricing.analytical.lengths import Documents, slowest_replica
from trimaran.pricing.analytical.memory import degrees_without_state
from trimaran.pricing.analytical.shapes import (
    TransformerShape,
    alike_on_stage,
    alike_stages,
    key_size,
    layer_kinds,
    query_size,
    stage_ends,
    stream_bytes,
    tokens_of_rank,
    vocabulary_rows,
)
from trimaran.pricing.collectives.algorithms import crossing_seconds
from trimaran.pricing.collectives.links import LinkUse, group_crossings, message_crossings
from trimaran.pricing.kernels.constants import eager_bytes_per_s
from trimaran.program.strategy import RANK_ORDER, Degrees, ZeroStage, devices_of_ranks

# ---------------------------------------------------------------------------------------------------------------------
# Work of a stage for one microbatch, but for its layers


_ELEMENT = 2

Found = TypeVar("Found")


def head_forward(shape: TransformerShape, degrees: Degrees, eager: Eager | None = None) -> PassWork:
    """Forward of the output layer and the loss on one rank: logits written, made 32 bits, reduced and normalized.

    Where one kernel does the loss, it reads logits of 16 bits for their largest and for their sum; backward it reads
    them and writes their gradient. Each module that predicts a further token passes the head once more.
    """
    tokens, rows = tokens_of_rank(shape, degrees), vocabulary_rows(shape, degrees.tp)
    read = tokens * (vocabulary_rows(shape) if eager and eager.whole_loss else rows)
    once = PassWork(
        nbytes=(4.0 if eager and eager.fused_loss else 16.0) * read,
        back=(4.0 if eager and eager.fused_loss else 32.0) * read,
        layers=1.0,
        shapes=(Product(tokens, rows, shape.hidden, cast=False),),
    )
    passes = 1.0 + shape.prediction_layers
    return once.times(passes, passes, passes)


def embedding_forward(shape: TransformerShape, degrees: Degrees) -> PassWork:
    """Forward of the embedding on one rank: rows gathered, positions added, dropped out."""
    moved = 14.0 * tokens_of_rank(shape, degrees) * shape.hidden
    return PassWork(nbytes=moved, back=2.0 * moved, layers=0.5)


# ---------------------------------------------------------------------------------------------------------------------
# The few figures of a step that no shape says: shares of peak, bytes of an update, a host's time for a layer


EIGHT_BITS = 2.0
"""How many times faster units compute in 8 bits than in 16: `machine.types` has the sources."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConstants:
    """Figures of `transformer_step`, shared by all devices and networks.

    Attributes:
        large_products: share of peak that infinitely large products in 16 bits reach, by architecture [0..1]
        tile: elements of a product's result for each multiprocessor that half of the last wave of tiles leaves out
        start: elements of a product's sums that would be added up while a tile starts
        expert_start: elements of a sum of an expert's product that would be added up while a tile starts
        product_share: rate of the products of training, as a share of `large_products` [0..1]
        eight_bit_share: the same in 8 bits, quantization included [0..1]
        attention_share: share of peak in 16 bits that fused attention reaches over infinitely many tokens [0..1]
        attention_length: tokens to attend to over which it reaches half of that
        cudnn_share: the same of the kernel that Transformer Engine has of cuDNN [0..1]
        early_attention_share: the same of kernels before 2024 [0..1]
        unfused_attention_share: the same of batched products [0..1]
        traffic: bytes that elementwise work moves in fused kernels, as a multiple of the counted ones; where each
            operation is a kernel they have the rate of those that are traced (`kernels.constants`)
        expert_traffic: the same of tokens that are put in the order of their experts
        host_layer_s: time of the host for forward and backward of a layer [s]
        host_softmax_s: the same of a softmax that is many kernels [s]
        host_routing_s: time of the host to send the tokens of a layer to experts and back, both ways [s]
        unripe: share of their later rate that products lack when their device comes out [0..1]
        ported_share: rate of fused attention whose kernel was written for units before `NEW_UNITS`, as a share [0..1]
        jitter: standard deviation of the time of a rank's step, as a share
        odd_share: share of `product_share` that products reach where rows are odd, so that no load is aligned [0..1]
        call_s: time of the host to launch a collective inside a layer [s]
        tensor_exposed: share of a layer's exchanges that is waited for where they overlap [0..1]
        data_exposed: share of replicas' exchanges that is waited for where they overlap [0..1]
        sharded_bytes: of a gathered parameter, moved for each microbatch to flatten, cast and scatter it [bytes]
        sharded_exposed: the same of sharded parameters, gathered for each layer while the last one computes [0..1]
        send_exposed: share of sends between stages that is waited for where they overlap [0..1]
        update_bytes: of a parameter's update [bytes]
        sum_bytes: of a parameter's gradient that is added to those of the microbatches before [bytes]
        sharpness: `p` of the sum of device and host
        widths: what the 90 % interval is made of, by name, as logarithms; see `half_width`
        fitted: "frameworks" and "architectures" that figures were fitted on
    """

    large_products: Mapping[str, float]
    tile: float
    start: float
    expert_start: float
    product_share: float
    eight_bit_share: float
    attention_share: float
    attention_length: float
    cudnn_share: float
    early_attention_share: float
    unfused_attention_share: float
    traffic: float
    expert_traffic: float
    host_layer_s: float
    host_softmax_s: float
    host_routing_s: float
    unripe: float
    ported_share: float
    jitter: float
    odd_share: float
    call_s: float
    tensor_exposed: float
    data_exposed: float
    sharded_bytes: float
    sharded_exposed: float
    send_exposed: float
    update_bytes: float
    sum_bytes: float
    sharpness: float
    widths: Mapping[str, float]
    fitted: Mapping[str, Collection[str]]

    def share(self, precision: Precision, device: Device) -> float:
        """Share of the peak in 16 bits that products reach; above 1 in 8 bits, and far below it in 32 bits [0..2]."""
        large = self.large_products.get(device.generation, _UNKNOWN_SHARE)
        if precision == "fp8":
            # An operation of 8 bits takes half the energy, and products reach less of their peak: power is enough.
            return EIGHT_BITS * self.eight_bit_share * large
        return self.product_share * large * _of_power(precision, device) * _of_wide(precision, device)

    def head_factor(self, precision: Precision, device: Device, rows: int) -> float:
        """How many times more an output layer in 16 bits costs than the same product in the layers' precision.

        Args:
            precision: of the layers
            device: where it runs
            rows: of the vocabulary on a rank; odd ones leave no load aligned to more than an element
        """
        aligned = self.odd_share if rows % 2 else 1.0
        if precision != "fp8":
            return 1.0 / aligned
        return self.share(precision, device) / (self.share("bf16", device) * aligned)

    def product_rate(self, precision: Precision, device: Device, year: float, *, tuned: bool) -> float:
        """Rate of products; their starts come on top. The maker of a device has its own framework ready [FLOP/s]."""
        return peak_of(device) * self.share(precision, device) * (1.0 if tuned else self.ripeness(device, year))

    def attention_factor(self, tokens: float) -> float:
        """How many times as long fused attention takes as at its rate over infinitely many tokens.

        A block of queries starts and ends once, however many keys it passes: the rate over `s` tokens is
        `s / (s + attention_length)` of the largest.

        Args:
            tokens: that a token attends to, twice their mean under a causal mask
        """
        return 1.0 + self.attention_length / tokens

    def sum_seconds(self, elements: float, device: Device) -> float:
        """Time to add gradients of parameters to those of the microbatches before [s]."""
        return elements * self.sum_bytes / device.sustained_bytes_per_s

    def host_seconds(self, work: PassWork) -> float:
        """Time of a host that asks for a forward and a backward kernel by kernel [s]."""
        seconds = work.layers * self.host_layer_s + work.softmaxes * self.host_softmax_s
        return (seconds + work.routings * self.host_routing_s) / 3.0

    def half_width(
        self,
        shape: TransformerShape,
        program: "TransformerProgram",
        device: Device,
        *,
        not_said: Collection[str] = (),
        measured: bool = False,
    ) -> float:
        """Half of the 90 % interval of a step, as a logarithm: the root of the sum of squares of what is not known.

            base        of every step, whatever is known
            experts     of networks with experts: their balance, and how kernels of a release send tokens
            software    whose kernels are not of the device's maker, or that no figure was fitted on
            device      of an architecture that no figure was fitted on
            cell        for each fact that nobody said and that had to be assumed

        Each is the width that steps ask for whose source or device was left out of the fit, by their mean interval
        score (Gneiting & Raftery, 2007): whoever asks is another source.

        Args:
            shape: the network
            program: that trains it
            device: of each rank
            not_said: what had to be assumed
            measured: a step of the same job was measured, on other degrees or with another batch: what is left is the
                error of rows of one job by another one of them

        Example:
            One fact is assumed: 0.1 and 0.2.

            >>> from dataclasses import replace
            >>> from trimaran.machine.catalog import find_device
            >>> from trimaran.pricing.analytical.shapes import gpt_shape
            >>> widths = {"base": 0.1, "experts": 1.0, "software": 1.0, "device": 1.0, "cell": 0.2}
            >>> constants = replace(step_constants(), widths=widths)
            >>> program, shape = TransformerProgram(framework="nemo"), gpt_shape(layers=1, hidden=512, heads=8)
            >>> round(constants.half_width(shape, program, find_device("h100"), not_said=["year"]), 4)
            0.2236
        """
        widths = self.widths
        parts = [widths["base"], *[widths["cell"]] * len(not_said)]
        parts += [widths["experts"]] if shape.experts is not None else []
        known = program.tuned and program.framework in self.fitted["frameworks"]
        parts += [] if known else [widths["software"]]
        parts += [widths["device"]] if device.generation not in self.fitted["architectures"] else []
        return min(math.hypot(*parts), widths["measured"] if measured else math.inf)

    def ripeness(self, device: Device, year: float) -> float:
        """Share of their later rate that products of a year reach on a device: libraries learn a device in some years.

        It starts at `1 - unripe` when the device comes, in the middle of its year, and the rest closes by 1 / e a year.

        Example:
            >>> from dataclasses import replace
            >>> from trimaran.machine.catalog import find_device
            >>> constants = replace(step_constants(), unripe=0.2)
            >>> [round(constants.ripeness(find_device("a100-80gb"), year), 3) for year in (2020.5, 2021.5, 2025.0)]
            [0.8, 0.926, 0.998]
        """
        age = max(0.0, year - device.year - 0.5)
        return 1.0 - self.unripe * math.exp(-age) if device.year else 1.0

    def slowest_factor(self, ranks: int) -> float:
        """How many times as long as one rank's mean the slowest of equal ranks takes.

        Times of ranks vary by `jitter` around their mean, independently and as a normal distribution, and a step ends
        with its last rank. The expected largest of `n` normal variates is about the quantile `(n - 3/8) / (n + 1/4)`.

        Source:
            Blom, "Statistical Estimates and Transformed Beta-Variables", 1958, for the quantile.

        Example:
            The largest of 8 is 1.43 standard deviations above the mean, that of 1,024 is 3.23:

            >>> from dataclasses import replace
            >>> constants = replace(step_constants(), jitter=0.01)
            >>> [round(constants.slowest_factor(ranks), 4) for ranks in (1, 8, 1024)]
            [1.0, 1.0143, 1.0323]
        """
        return 1.0 + self.jitter * _NORMAL.inv_cdf((ranks - 0.375) / (ranks + 0.25))

    def device_seconds(
        self,
        work: PassWork,
        precision: Precision,
        *,
        kernel: AttentionKernel,
        fused: bool,
        device: Device,
        year: float,
        tuned: bool = True,
    ) -> float:
        """Time of a device's kernels, back to back [s]."""
        peak = peak_of(device)
        late = self.cudnn_share if kernel == "cudnn" else self.attention_share
        attention = late if year >= LATE_KERNELS else self.early_attention_share
        if kernel == "math":
            attention = self.unfused_attention_share
        elif kernel not in NATIVE and device.generation in NEW_UNITS:
            attention *= self.ported_share
        attention *= _of_wide(precision, device)
        at_once = work.nbytes * self.traffic if fused else 0.0
        moved = (at_once + work.routed * self.expert_traffic) * element_bytes(precision) / _ELEMENT
        if precision == "fp8" and not fused:
            # Fused norms and activations write eight bits in place of sixteen.
            moved += sum(product.cast_bytes for product in work.shapes)
        rate = self.product_rate(precision, device, year, tuned=tuned)
        # Units that multiply eight bits in the time of sixteen wait as long for the start of a tile.
        start = self.start * (EIGHT_BITS if precision == "fp8" else 1.0)
        tile = self.tile * device.multiprocessors
        operand_bytes, result_bytes = 1.0 if precision == "fp8" else element_bytes(precision), element_bytes(precision)
        lost = 0.0
        for product in work.shapes:
            # Rows of experts in eight bits are gathered in half the time: as many elements as in sixteen.
            more = product.overhead(tile, start, self.expert_start)
            if product.experts:
                # An expert of few tokens takes as long as reading its weights and writing their gradients.
                moving = product.moved(operand_bytes, result_bytes) * rate / device.sustained_bytes_per_s
                more = max(more, moving - product.flops)
            lost += more
        seconds = (
            (work.products + lost) / rate + work.attention / (peak * attention) + moved / device.sustained_bytes_per_s
        )
        if not fused:
            seconds += work.nbytes * element_bytes(precision) / _ELEMENT / eager_bytes_per_s(device, "layer")
        return seconds


FOREACH_BYTES = 84.0
"""Of a parameter in 32 bits that AdamW of `torch.optim` updates, an operation a list of tensors, as a trace counts."""

AUTOCAST_BYTES = 12.0
"""Of a parameter that products read under `torch.autocast`, in each microbatch: itself and its gradient are cast (4 + 2
each)."""

NEW_UNITS = ("hopper", "blackwell")
"""Architectures whose units have instructions that kernels of Ampere do not use."""

_NORMAL = statistics.NormalDist()

LATE_KERNELS = 2024.0
"""Year from which fused attention is that of second or later generation."""


@functools.cache
def step_constants() -> StepConstants:
    """The figures as fitted."""
    document = packaged_toml("trimaran.pricing.analytical", "constants.toml")
    tables = {name: document[name] for name in ("large_products", "widths", "fitted")}
    return StepConstants(**tables, **document["constants"])


_UNKNOWN_SHARE = 0.6

_WATTS: Mapping[str, float] = {
    # Board power over peak in 16 bits of the device whose products are known [W / (TFLOP/s)].
    "volta": 300 / 125,
    "turing": 70 / 65,
    "ampere": 400 / 312,
    "ada": 350 / 362,
    "hopper": 700 / 989,
    "blackwell": 700 / 989,  # made in the process of Hopper, so that an operation of 16 bits takes its energy
}


_ENERGY = {"fp32": 3.0, "tf32": 2.0}
"""Of an operation, in those of 16 bits: a multiplication and an addition take 4.6 pJ in fp32, 1.5 pJ in fp16; TF32 has
half the rate of 16 bits at the same power. Source: Horowitz, "Computing's Energy Problem", ISSCC 2014."""


def _of_power(precision: Precision, device: Device) -> float:
    """Share of the rate of a short run of products that a card of fewer watts sustains: it grows as their square root.

    Clocks fall with voltage, and power with the square of voltage times clocks, so half the power costs less than half
    of the rate.
    """
    usual = _WATTS.get(device.generation, 0.0)
    if not usual or not device.power_w:
        return 1.0
    peak = peak_of(device) * _of_wide(precision, device) * _ENERGY.get(precision, 1.0)
    return min(1.0, math.sqrt(device.power_w / (peak / 1e12) / usual))


def peak_of(device: Device) -> float:
    """Peak of a device's units in 16 bits [FLOP/s]."""
    peaks = device.compute
    known = peaks.get("bf16") or peaks.get("fp16") or peaks["fp32"]
    return known.flops_per_s


def _of_wide(precision: Precision, device: Device) -> float:
    """Peak of products and attention in 32 bits, as a share of that in 16 bits; 1 in 16 and in 8 bits."""
    if element_bytes(precision) == _ELEMENT:
        return 1.0
    return device.compute[precision].flops_per_s / peak_of(device)


# ---------------------------------------------------------------------------------------------------------------------
# Time of the step


Exchange = Callable[[str, float, int, int], float]
"""Time [s] of a collective: its name, its bytes, devices of each group, and how many ranks its neighbours are apart. Of
"send_recv": of a message to the rank so far on, each in a chain of ranks so far apart."""


def _check_devices(machine: Machine, ranks: int, devices: Sequence[int]) -> None:
    known = set(devices) & set(range(machine.devices))
    if len(devices) != ranks or len(known) != ranks:
        raise InputError(
            f"{ranks} ranks need as many of the devices 0 to {machine.devices - 1}, each once; got {len(devices)}, of "
            f"which {len(known)} are there: name one for each rank",
            code="analytical.bad-devices",
            ranks=ranks,
            devices=len(devices),
        )


class MachineExchange:
    """Prices collectives of groups of ranks on a machine, all groups of a kind at the same time.

    Args:
        machine: nodes and fabric
        ranks: in all, on the first devices of the machine
        year: of the library
        devices: the device of each rank in the usual order, any ones; empty: the first ones, node by node

    Raises:
        InputError: not a device of this machine for each rank

    Example:
        Two ranks that share tensors, on one node, and on two.

        >>> from trimaran.machine.find import find_machine
        >>> machine = find_machine("dgx-h100:2@ethernet-10g")
        >>> near, far = (MachineExchange(machine, ranks=2, year=2024.0, devices=each) for each in ((0, 1), (0, 8)))
        >>> far("all_reduce", 1e8, 2, 1) > 50 * near("all_reduce", 1e8, 2, 1)
        True
    """

    def __init__(self, machine: Machine, *, ranks: int, year: float, devices: Sequence[int] = ()) -> None:
        if len(devices):
            _check_devices(machine, ranks, devices)
        self.machine, self.ranks, self.year = machine, ranks, year
        self._devices = devices
        self._known: dict[tuple[str, float, int, int], float] = {}
        self._crossings: dict[tuple[str, int, int], frozenset[LinkUse]] = {}
        self._placed: dict[tuple[object, ...], MachineExchange] = {}
        self._usual: dict[int, MachineExchange] = {} if len(devices) else {ranks: self}

    def __call__(self, op: str, nbytes: float, members: int, near: int) -> float:
        """Time [s] of the slowest group, by the name of the collective, its bytes, members and distance in ranks."""
        if members <= 1 or nbytes <= 0:
            return 0.0
        key = (op, nbytes, members, near)
        if key not in self._known:
            self._known[key] = max(
                crossing_seconds(op, nbytes, machine=self.machine, crossing=crossing, year=self.year)
                for crossing in self.crossings(op, members, near)
            )
        return self._known[key]

    def crossings(self, op: str, members: int, near: int) -> frozenset[LinkUse]:
        """Links that the groups of a kind cross at the same time; arguments as of a call."""
        # What crosses the spine is the same for all collectives but an exchange of all with all.
        op = op if op in ("send_recv", "all_to_all") else "all_reduce"
        key = (op, members, near)
        if key not in self._crossings:
            ranks, devices = self.ranks, self._devices
            if op == "send_recv":
                found = message_crossings(self.machine, ranks=ranks, stride=near, members=members, devices=devices)
            else:
                found = group_crossings(self.machine, ranks=ranks, members=members, stride=near, devices=devices, op=op)
            self._crossings[key] = found
        return self._crossings[key]

    def placed(self, degrees: Degrees) -> "MachineExchange":
        """The same for ranks that have the devices in the order of these degrees."""
        if degrees.rank_order == RANK_ORDER and not len(self._devices):
            return self.of_ranks(degrees.devices)
        key = (degrees.tp, degrees.cp, degrees.dp, degrees.pp, degrees.rank_order)
        if key not in self._placed:
            order = devices_of_ranks(degrees)
            if self._devices:
                _check_devices(self.machine, degrees.devices, self._devices)
                order = tuple(self._devices[number] for number in order)
            natural = order == (tuple(self._devices) or tuple(range(self.ranks)))
            self._placed[key] = (
                self if natural else MachineExchange(self.machine, ranks=degrees.devices, year=self.year, devices=order)
            )
        return self._placed[key]

    def of_ranks(self, ranks: int) -> "MachineExchange":
        """The same for another number of ranks, node by node; there is one for each number."""
        if ranks not in self._usual:
            if ranks > self.machine.devices:
                _check_devices(self.machine, ranks, range(self.machine.devices))
            other = MachineExchange(self.machine, ranks=ranks, year=self.year)
            self._usual[ranks], other._usual = other, self._usual
        return self._usual[ranks]


def placed(exchange: Exchange, degrees: Degrees) -> Exchange:
    """Prices for as many ranks as degrees have, which have the devices in their order.

    Args:
        exchange: for ranks in the usual order
        degrees: with the order

    Raises:
        InputError: another order, and prices that know of no machine, or degrees that the order leaves out
    """
    if isinstance(exchange, MachineExchange) and exchange.ranks != degrees.devices:
        return exchange.placed(degrees)
    if degrees.rank_order == RANK_ORDER:
        return exchange
    if not isinstance(exchange, MachineExchange):
        raise InputError(
            f"ranks in the order {'-'.join(degrees.rank_order)} are priced on a machine: give its exchange "
            "(`MachineExchange`), or leave the order out",
            code="analytical.order-needs-machine",
            order=degrees.rank_order,
        )
    return exchange.placed(degrees)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTraffic:
    """Links that ranks of a kind cross when they exchange, the largest figure of any of their groups.

    Attributes:
        kind: of ranks: "tp", "cp", "dp" (with cp), "pp" (messages to the next stage), "ep", "expert dp"
        members: of a group; of "pp" stages
        nodes: that a group sits on; of "pp" 2 where a message goes to another node
        cards: of each node that a group sends by; 0 inside a node
        sharing: groups that send by the same card at the same time
        uplinks: as of `LinkUse`; 0: nothing crosses the spine
    """

    kind: str
    members: int
    nodes: int
    cards: int
    sharing: int
    uplinks: float

    def __str__(self) -> str:
        if self.nodes == 1:
            return f"{self.kind} stays inside nodes"
        if self.kind == "pp":
            where = "pp messages cross nodes"
        else:
            cards = f"{self.cards} card{'s' if self.cards > 1 else ''}"
            where = f"{self.kind} crosses {self.nodes} nodes by {cards} of each"
        shared = f", {self.sharing} at a time on a card" if self.sharing > 1 else ""
        slowed = f", waiting {self.uplinks:.2g} times as long for the spine" if self.uplinks > self.sharing else ""
        return f"{where}{shared}{slowed}"


def rank_traffic(degrees: Degrees, exchange: MachineExchange) -> tuple[RankTraffic, ...]:
    """Which ranks' messages cross nodes, by kind of rank; kinds of one member are left out.

    Args:
        degrees: of the ranks, with their order
        exchange: of their machine

    Example:
        >>> from trimaran.machine.find import find_machine
        >>> prices = MachineExchange(find_machine("dgx-h100:4"), ranks=32, year=2024.0)
        >>> [str(each) for each in rank_traffic(Degrees(tp=4, dp=8), prices)]
        ['tp stays inside nodes', 'dp crosses 4 nodes by 2 cards of each']
        >>> stages_near = Degrees(tp=4, pp=2, dp=4, rank_order=("tp", "pp", "dp"))
        >>> [str(each) for each in rank_traffic(stages_near, prices)][1:]
        ['dp crosses 4 nodes by 1 card of each', 'pp stays inside nodes']
    """
    exchange = exchange.placed(degrees)
    experts = degrees.expert_ranks
    kinds = (
        ("tp", "all_reduce", degrees.tp, 1),
        ("cp", "all_gather", degrees.cp, degrees.tp),
        ("ep", "all_to_all", degrees.ep, experts),
        ("dp", "all_reduce", degrees.dp * degrees.cp if degrees.dp > 1 else 1, degrees.tp),
        ("expert dp", "all_reduce", degrees.expert_data if degrees.ep > 1 else 1, degrees.ep * experts),
        ("pp", "send_recv", degrees.pp, degrees.devices // degrees.pp),
    )
    found = []
    for kind, op, members, near in kinds:
        if members > 1:
            crossings = exchange.crossings(op, members, near)
            found.append(
                RankTraffic(
                    kind=kind,
                    members=members,
                    nodes=max(each.nodes for each in crossings),
                    cards=max(each.cards for each in crossings),
                    sharing=max(each.sharing for each in crossings),
                    uplinks=max(each.uplinks for each in crossings),
                )
            )
    return tuple(found)


# ---------------------------------------------------------------------------------------------------------------------
# Settings of the training program that the time of a step depends on


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerProgram:
    """Settings of the training program that a step's time depends on.

    Attributes:
        framework: that trains, by a name of `programs.FRAMEWORKS`; "": not known
        precision: of products
        attention: kind of kernel
        fused: norms, sums and activations run in kernels made for them
        overlaps: exchanges of gradients and parameters overlap the backward
        tensor_overlaps: exchanges of `tensor` ranks overlap products
        frozen: weights have no gradients, but for few that are added (LoRA)
        gradient_bytes: of a gradient that is exchanged, unless a strategy says its type [bytes]
        flat_sums: a sum over replicas takes its bytes over the bandwidth of a bus, however many replicas there are
        send_bytes_per_s: rate of sends between stages; 0: the sustained rate of their link [bytes/s]
        year: of its kernels
        tuned: kernels are written for the units of their device, as those of its maker are
        once_a_node: devices of a node to which tokens are sent once, however many of their experts it has (DeepSeek-AI,
            "DeepSeek-V3 Technical Report", 2024, section 3.2.2); 0: a copy for each expert
        stops_early: a forward that the backward repeats ends with the last tensor that it needs
        eager: what modules of PyTorch keep; None: as Megatron's
        keeps_weight_gradients: of the weights of products one gradient of each shape stays
        documents: of which sequences consist; None: of one document each, as long as the sequence
        sequence: that was asked for with documents, where the shape has the mean length of padded ones; 0: the shape's
    """

    framework: str = ""
    precision: Precision = "bf16"
    attention: AttentionKernel = "cudnn"
    fused: bool = True
    overlaps: bool = True
    tensor_overlaps: bool = False
    frozen: bool = False
    gradient_bytes: int = 4
    flat_sums: bool = False
    send_bytes_per_s: float = 0.0
    year: float = 2024.0
    tuned: bool = True
    stops_early: bool = False
    eager: Eager | None = None
    keeps_weight_gradients: bool = False
    once_a_node: int = 0
    documents: Documents | None = None
    sequence: int = 0

    def __hash__(self) -> int:
        """By the figures in which programs differ most: a search asks for it very often."""
        return hash((self.framework, self.precision, self.year, self.sequence))

    @property
    def element_bytes(self) -> int:
        """Of an element of an activation, and of a parameter that is gathered [bytes]."""
        return element_bytes(self.precision)


def as_packed(
    shape: TransformerShape, degrees: Degrees, program: TransformerProgram
) -> tuple[TransformerShape, TransformerProgram]:
    """A shape with the sequences that a microbatch has on average, and a program that knows the others.

    Args:
        shape: with the sequence that was asked for
        degrees: say how many sequences a microbatch has
        program: may say the documents
    """
    if program.documents is None:
        return shape, program
    length = program.documents.length(shape.sequence, degrees.microbatch)
    return replace(shape, sequence=length), replace(program, sequence=shape.sequence)


def _attention_work(shape: TransformerShape, degrees: Degrees, program: TransformerProgram, layer: int) -> float:
    """Attention of a layer by that of sequences without documents."""
    if program.documents is None:
        return 1.0
    return program.documents.attention(
        program.sequence or shape.sequence, degrees.microbatch, window=shape.window(layer), chunked=shape.chunked
    )


def unequal_seconds(
    shape: TransformerShape,
    degrees: Degrees,
    documents: Documents,
    *,
    microbatch_s: float,
    attention_s: float,
) -> float:
    """Wait for the replica whose documents take longest [s].

    Replicas that shard gradients or parameters exchange them for each microbatch, and those that hold different experts
    tokens in each layer: they wait for each other in each microbatch.

    Args:
        shape: with the sequence that was asked for
        degrees: of it
        documents: of the sequences
        microbatch_s: forward and backward of the slowest stage [s]
        attention_s: of it, attention [s]
    """
    together = (
        degrees.dp if degrees.zero >= 2 else math.gcd(degrees.dp, max(1, degrees.ep // (degrees.tp * degrees.cp)))
    )
    fill = (degrees.pp - 1) / degrees.chunks
    found = slowest_replica(
        documents,
        shape.sequence,
        replicas=degrees.dp,
        microbatches=degrees.microbatches,
        microbatch=degrees.microbatch,
        fill=fill,
        together=together,
        # In steps of a twentieth, so that few of them are computed.
        square=1.0 if documents.packing == "packed" else round(20.0 * attention_s / microbatch_s) / 20.0,
    )
    varying_s = attention_s if documents.packing == "packed" else microbatch_s
    return (found.ratio - 1.0) * (degrees.microbatches + fill) * varying_s


def tensor_seconds(
    shape: TransformerShape,
    degrees: Degrees,
    program: TransformerProgram,
    exchange: Exchange,
    constants: StepConstants,
    *,
    layer: int = 0,
    again: bool | None = None,
) -> float:
    """Exchanges of one layer and one microbatch, as far as they are waited for [s].

    Args:
        shape: the network
        degrees: of it
        program: whether exchanges overlap products
        exchange: prices collectives
        constants: the share of overlapped exchanges that is waited for
        layer: which one: it may have experts
        again: its forward is recomputed; None: as `degrees` says of all layers
    """
    again = "layers" in degrees.recomputed if again is None else again
    tokens = tokens_of_rank(shape, degrees)
    overlaps = program.tensor_overlaps if degrees.tensor_overlap is None else degrees.tensor_overlap
    waited = constants.tensor_exposed if overlaps else 1.0
    seconds = 0.0
    if degrees.tp > 1:
        each = exchange("all_reduce", tokens * shape.hidden * _stream_bytes(program), degrees.tp, 1)
        seconds += sum_count(shape, degrees, layer=layer, again=again) * each * waited
    if degrees.cp > 1 and degrees.ulysses:
        seconds += (3 if again else 2) * exchange(
            "all_to_all", _heads_bytes(shape, degrees, program), degrees.cp, degrees.tp
        )
    elif degrees.cp > 1:
        keys = 2 * key_size(shape, degrees.tp) * program.element_bytes * tokens * degrees.cp
        each = exchange("all_gather", keys, degrees.cp, degrees.tp)
        seconds += 3 * each * constants.tensor_exposed
    if shape.experts is not None and shape.has_experts(layer):
        passes = 3 if again or "feed_forward" in degrees.recomputed else 2
        # The busiest rank receives more than it sends on the way there, and sends as much more on the way back.
        row = tokens * shape.hidden * program.element_bytes * shape.experts.load(degrees.ep)
        row /= degrees.tp if degrees.sequence_parallel else 1
        share = degrees.expert_ranks
        if degrees.ep > 1:
            # Sent and brought back in each pass: forward, backward, and the forward that is computed again.
            sent = row * _copies(shape.experts.active, degrees, program.once_a_node)
            seconds += 2 * passes * exchange("all_to_all", sent, degrees.ep, share) * waited
        if share > 1 and _folds(degrees):
            # Each rank that shares an expert needs the tokens of all of them, and their sums go back.
            visits = row * shape.experts.active
            seconds += 2 * passes * exchange("all_gather", visits * share, share, 1) * waited
    return seconds


def _stream_bytes(program: TransformerProgram) -> float:
    """Bytes of an element of the residual stream that ranks of a layer exchange.

    Under autocast results of products have 16 bits, and what products read, with its gradient, has 32: half of the
    exchanges are of each.
    """
    if program.eager is not None and program.eager.autocast:
        return (program.element_bytes + _STREAM_BYTES) / 2
    return program.element_bytes


_STREAM_BYTES = 4


def _copies(active: int, degrees: Degrees, node: int) -> float:
    """Copies of a token that are sent: one for each of its experts, or one for each node that has some of them.

    Of `k` experts chosen evenly from `n` nodes, `n (1 - (1 - 1/n)^k)` nodes have at least one.

    Example:
        Eight experts on two nodes of eight: nearly always both have some. On one node every expert gets a copy.

        >>> round(_copies(8, Degrees(dp=16, ep=16), 8), 2), _copies(8, Degrees(dp=8, ep=8), 8)
        (1.99, 8.0)
    """
    nodes = -(-degrees.ep * degrees.expert_ranks // node) if node else 1
    return nodes * (1.0 - (1.0 - 1.0 / nodes) ** active) if nodes > 1 else float(active)


def _heads_bytes(shape: TransformerShape, degrees: Degrees, program: TransformerProgram) -> int:
    """Bytes that a rank exchanges for one pass of attention by heads: queries, keys, values, and its output."""
    queries, keys = query_size(shape, degrees.tp), key_size(shape, degrees.tp)
    # Fewer heads of keys and values than ranks are copied, one for each rank.
    keys = max(keys, degrees.cp * shape.head_size)
    return tokens_of_rank(shape, degrees) * program.element_bytes * (2 * queries + 2 * keys)


def _folds(degrees: Degrees) -> bool:
    """Whether tokens of experts are exchanged apart: parts of the residual stream are routed."""
    return degrees.sequence_parallel or degrees.tp == 1 or degrees.expert_ranks != degrees.tp


def sum_count(shape: TransformerShape, degrees: Degrees, *, layer: int = 0, again: bool | None = None) -> int:
    """Sums of the residual stream over `tensor` ranks, in one layer and for one microbatch.

    One after attention and one after the feed-forward network, in each pass, and where they are recomputed; a parallel
    block has one for both. Tokens that are routed to experts are exchanged otherwise; a shared expert is an ordinary
    network.

    Source:
        Korthikanti et al., 2022, section 4; Wang & Komatsuzaki, "GPT-J-6B", 2021, for parallel blocks.

    Args:
        shape: the network
        degrees: of it
        layer: which one: it may have experts
        again: its forward is recomputed; None: as `degrees` says of all layers

    Example:
        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=1, hidden=512, heads=8)
        >>> sum_count(shape, Degrees(tp=2)), sum_count(replace(shape, parallel=True), Degrees(tp=2))
        (4, 2)
        >>> sum_count(shape, Degrees(tp=2), again=True)
        6
        >>> sum_count(shape, Degrees(tp=2, recomputed=frozenset({"feed_forward"})))
        5
    """
    again = "layers" in degrees.recomputed if again is None else again
    table = operations(shape, degrees, layer)
    return sum(row.sums * (3 if again or row.again & degrees.recomputed else 2) for row in table if row.sums)


def send_seconds(degrees: Degrees, sends: float, constants: StepConstants) -> float:
    """Wait of a stage for the sends of one microbatch once the pipeline is full.

    1F1B sends between two computations and has no other work meanwhile: each stage waits for one of the two
    directions. Interleaved chunks send as often as there are chunks, but another chunk computes meanwhile; so do passes
    of the other direction in DualPipe, and in DualPipeV each stage has two parts.

    Args:
        degrees: stages and chunks
        sends: a microbatch's stream to a neighbour and its gradient back [s]
        constants: the share that overlapped sends leave

    Returns:
        The wait [s].
    """
    if degrees.pp == 1:
        return 0.0
    parts = {"dualpipe": 1, "dualpipev": 2}.get(degrees.schedule, degrees.chunks if degrees.chunks > 1 else 0)
    return sends * parts * constants.send_exposed if parts else sends / 2.0


def filling_share(schedule: str, *, chunks: int, backward: float, weights: float, stages: int) -> float:
    """Idle time of a full pipeline, as a multiple of the passes of all stages but one.

    With `F`, `B` and `W` the times of a forward, a backward and its gradients of weights (part of `B`), T = F + B:

        1f1b           (P - 1) T
        interleaved    (P - 1) T / V
        zero-bubble    (P - 1) (T - 2 W)                   ZB-H1: gradients of weights fill the end
        dualpipe       (P / 2 - 1) (T + B - 3 W)           microbatches from both ends; forward and backward at once
        dualpipev      (P - 1) (T + B - 3 W) / 2           the same of 2 P stages of half the size

    Source:
        Narayanan et al., SC 2021, section 2.2; Qi et al., "Zero Bubble Pipeline Parallelism", ICLR 2024, table 2 (its B
        has no W); DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024, table 2; deepseek-ai/DualPipe, README.

    Args:
        schedule: of the pipeline
        chunks: `V`
        backward: B / T [0..1]
        weights: W / T [0..1]
        stages: `P`

    Returns:
        Times `(P - 1) T` it is the idle time.

    Example:
        A backward of two thirds, half of it for weights: a third of the bubble is left by ZB-H1. Of 8 stages DualPipe
        leaves 3 · 2/3 of 7 passes, and DualPipeV a third.

        >>> third = {"chunks": 1, "backward": 2 / 3, "weights": 1 / 3, "stages": 8}
        >>> [round(filling_share(name, **third), 3) for name in ("1f1b", "zero-bubble", "dualpipe", "dualpipev")]
        [1.0, 0.333, 0.286, 0.333]
    """
    if schedule == "zero-bubble":
        return max(0.0, 1.0 - 2.0 * weights)
    if schedule == "dualpipe":
        return (stages / 2.0 - 1.0) / (stages - 1.0) * max(0.0, 1.0 + backward - 3.0 * weights)
    if schedule == "dualpipev":
        return max(0.0, 1.0 + backward - 3.0 * weights) / 2.0
    return 1.0 / chunks


def data_seconds(
    degrees: Degrees,
    program: TransformerProgram,
    stage: "StageStep",
    exchange: Exchange,
    constants: StepConstants,
    copy_s: float = 0.0,
) -> float:
    """Exchanges between replicas, as far as they are waited for [s].

    Args:
        degrees: of the network
        program: whether exchanges overlap, and the bytes of a gradient
        stage: what exchanges may overlap, and what it holds
        exchange: prices collectives
        constants: the share of overlapped exchanges that is waited for
        copy_s: time to flatten, cast and scatter a sharded parameter of this rank [s]
    """
    if program.frozen:
        return 0.0

    microbatch_s = stage.seconds

    def waits(seconds: float, meanwhile_s: float = microbatch_s, exposed: float = constants.data_exposed) -> float:
        # The longer of the two counts, and a share of the shorter one.
        if not program.overlaps:
            return seconds
        return max(0.0, seconds - meanwhile_s) + exposed * min(seconds, meanwhile_s)

    forward_s = microbatch_s / (4.0 if _all_again(degrees) else 3.0)
    backward_s = microbatch_s - forward_s
    held, experts = stage.dense, stage.experts
    # Ranks that hold the same experts stand as far apart as there are ranks with others.
    apart = degrees.ep * degrees.expert_ranks
    dense_ranks = degrees.dp * degrees.cp, degrees.state_ranks
    expert_ranks = degrees.expert_data, degrees.expert_state_ranks
    if degrees.zero == 3:
        units = stage.layers + 1
        gathered = scattered = once = 0.0
        for count, ranks, near in ((held, dense_ranks, degrees.tp), (experts, expert_ranks, apart)):
            if ranks[0] > 1 and count:
                each_unit = count / units
                gradients = each_unit * _gradient_bytes(degrees, program)
                gathered += units * exchange("all_gather", each_unit * program.element_bytes, ranks[1], near)
                scattered += units * exchange("reduce_scatter", gradients, ranks[1], near)
                once += _between_copies(count, ranks, near, degrees, program, exchange)
        each = waits(gathered, forward_s, constants.sharded_exposed)
        each += waits(gathered + scattered, backward_s, constants.sharded_exposed)
        # Nothing computes during the first gather and the last scatter.
        alone = (gathered + scattered) / units if program.overlaps else 0.0
        # Copies are summed in the last backward, too.
        last = waits(gathered + scattered + once, backward_s, constants.sharded_exposed)
        last -= waits(gathered + scattered, backward_s, constants.sharded_exposed)
        return degrees.microbatches * (each + alone + (held + experts) * copy_s) + last
    everywhere, once = _replica_exchanges(held, dense_ranks, degrees.tp, degrees, program, exchange)
    more, more_once = _replica_exchanges(experts, expert_ranks, apart, degrees, program, exchange)
    if degrees.zero < 2:
        return waits(once + more_once)
    # Gradients are scattered in each backward, and parameters gathered in the forward that follows.
    each = waits(everywhere + more, backward_s) + (held + experts) * copy_s
    return degrees.microbatches * each + waits(once + more_once, forward_s)


def _replica_exchanges(
    held: int, ranks: tuple[int, int], near: int, degrees: Degrees, program: TransformerProgram, exchange: Exchange
) -> tuple[float, float]:
    """Exchanges of parameters that replicas share: for each microbatch, and once a step [s].

    Args:
        held: parameters of a rank, before replicas shard them
        ranks: replicas, and of them those that share one copy of sharded state; the other copies are summed once a step
        near: ranks between neighbours
        degrees: of the network
        program: bytes of a gradient
        exchange: prices collectives
    """
    replicas, shared = ranks
    if replicas <= 1 or not held:
        return 0.0, 0.0
    gradients = held * _gradient_bytes(degrees, program)
    if degrees.zero and shared < replicas:
        inner, once = _replica_exchanges(held, (shared, shared), near, degrees, program, exchange)
        return inner, once + _between_copies(held, ranks, near, degrees, program, exchange)
    if degrees.zero == 0:
        ring = 2.0 * (replicas - 1) / replicas if program.flat_sums else 1.0
        return 0.0, exchange("all_reduce", gradients, replicas, near) / ring
    gather = exchange("all_gather", held * program.element_bytes, replicas, near)
    scatter = exchange("reduce_scatter", gradients, replicas, near)
    return (scatter, gather) if degrees.zero == 2 else (0.0, gather + scatter)


def _between_copies(
    held: int, ranks: tuple[int, int], near: int, degrees: Degrees, program: TransformerProgram, exchange: Exchange
) -> float:
    """Sum of gradients over the copies of sharded state, once a step [s]; arguments as of `_replica_exchanges`."""
    replicas, shared = ranks
    if shared >= replicas:
        return 0.0
    return exchange("all_reduce", held * _gradient_bytes(degrees, program) / shared, replicas // shared, near * shared)


def _gradient_bytes(degrees: Degrees, program: TransformerProgram) -> int:
    """Of a gradient that is exchanged [bytes]."""
    return GRADIENT_BYTES[degrees.gradients] if degrees.gradients else program.gradient_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerStep:
    """Time of a step, by part.

    Attributes:
        compute_s: products, attention and elementwise work of all microbatches on the slowest stage [s]
        tensor_s: exchanges inside layers, as far as they are waited for [s]
        bubble_s: wait while the pipeline fills and drains [s]
        send_s: exchanges between stages, as far as they are waited for [s]
        data_s: exchanges between replicas, as far as they are waited for [s]
        update_s: the optimizer [s]
        slowest_s: what the slowest of all ranks takes longer than their mean, for which the others wait [s]
        unequal_s: wait for the replica whose documents take longest [s]
    """

    compute_s: float
    tensor_s: float
    bubble_s: float
    data_s: float
    update_s: float
    send_s: float = 0.0
    slowest_s: float = 0.0
    unequal_s: float = 0.0

    @property
    def seconds(self) -> float:
        """The whole step [s]."""
        parts = self.compute_s + self.tensor_s + self.bubble_s + self.send_s + self.data_s + self.update_s
        return parts + self.unequal_s + self.slowest_s

    def times(self, factor: float) -> "TransformerStep":
        """The same, each part of it longer by a factor."""
        return TransformerStep(**{entry.name: factor * getattr(self, entry.name) for entry in fields(self)})


class StageStep(NamedTuple):
    """A stage in a step.

    Attributes:
        seconds: forward and backward of one microbatch [s]
        dense: parameters that all replicas hold
        experts: parameters of its experts
        layers: that it has
    """

    seconds: float
    dense: int
    experts: int
    layers: int


@dataclass(frozen=True, slots=True)
class ReplicaStep:
    """What a step takes in one replica, without exchanges with others and without the update.

    Attributes:
        stages: one of each kind
        slowest_s: of the slowest stage [s]
        inside_s: of it, exchanges inside layers [s]
        slowest_at: which stage
        bubble_s: wait while the pipeline fills and drains [s]
        send_s: wait for exchanges between stages [s]
        bound_s: no step of it is shorter [s]
    """

    stages: tuple[StageStep, ...]
    slowest_s: float
    inside_s: float
    slowest_at: int
    bubble_s: float
    send_s: float
    bound_s: float


def _replica_step(
    shape: TransformerShape,
    degrees: Degrees,
    program: TransformerProgram,
    device: Device,
    exchange: Exchange,
    constants: StepConstants,
) -> ReplicaStep:
    alike = alike_stages(shape, degrees)
    known = {
        stage: (
            _stage_seconds(shape, degrees, program, stage, device, constants),
            _inside_seconds(shape, degrees, program, stage, exchange, constants),
        )
        for stage in dict.fromkeys(alike)
    }
    stages = [known[stage] for stage in alike]
    if degrees.schedule == "dualpipe":
        # Half of the microbatches enter from the other end, where a rank has another stage.
        stages = [((a + c) / 2, (b + d) / 2) for (a, b), (c, d) in zip(stages, reversed(stages), strict=True)]
    per_stage = [alone + inside for alone, inside in stages]
    slowest = max(per_stage)
    slowest_at = per_stage.index(slowest)
    inner = stages[slowest_at][1]
    bubble_s = send_s = 0.0
    if degrees.pp > 1:
        filling = _filling(shape, degrees, program, slowest_at, slowest, device, constants)
        bubble_s = (sum(per_stage) - slowest) * filling
        sends = _both_ways(shape, degrees, program, exchange)
        send_s = sends * (degrees.pp - 1) + degrees.microbatches * send_seconds(degrees, sends, constants)
    seconds = degrees.microbatches * slowest + bubble_s + send_s
    return ReplicaStep(
        stages=tuple(
            StageStep(
                sum(both),
                *stage_elements(shape, degrees, stage),
                sum(number for _, number, _ in alike_on_stage(shape, degrees, stage)),
            )
            for stage, both in known.items()
        ),
        slowest_s=slowest,
        inside_s=inner,
        slowest_at=slowest_at,
        bubble_s=bubble_s,
        send_s=send_s,
        # Sums of floats in another order may be less.
        bound_s=seconds * _slowest_factor(constants, degrees.devices) * (1.0 - 1e-9),
    )


def _both_ways(shape: TransformerShape, degrees: Degrees, program: TransformerProgram, exchange: Exchange) -> float:
    """A microbatch's stream to the next stage, and its gradient back [s]."""
    stream = stream_bytes(shape, degrees, program.element_bytes)
    one_way = stream / program.send_bytes_per_s if program.send_bytes_per_s else 0.0
    return 2.0 * (one_way or exchange("send_recv", stream, degrees.pp, degrees.devices // degrees.pp))


def transformer_step(
    shape: TransformerShape,
    degrees: Degrees,
    program: TransformerProgram,
    *,
    device: Device,
    exchange: Exchange,
    constants: StepConstants,
    host_update_s: float = 0.0,
    alone: ReplicaStep | None = None,
) -> TransformerStep:
    """Time of a step.

    Args:
        shape: the network
        degrees: of it and of its batch
        program: settings of the training program
        device: each rank's
        exchange: prices collectives between ranks
        constants: shares of peak and overheads
        host_update_s: update of a parameter of each rank by the host (`host_update_seconds`) [s]
        alone: the step of a replica, where it is known; None: it is not

    Returns:
        By part.
    """
    if alone is None:
        alone = replica_step(shape, degrees, program, device=device, exchange=exchange, constants=constants)
    asked, documents = shape, program.documents
    shape, program = as_packed(shape, degrees, program)
    exchange = placed(exchange, degrees)
    slowest, inner, slowest_at = alone.slowest_s, alone.inside_s, alone.slowest_at
    # Buffers of the device maker's frameworks are exchanged where they are.
    copy_s = 0.0 if program.tuned else constants.sharded_bytes / device.sustained_bytes_per_s
    after = [
        (data_seconds(degrees, program, stage, exchange, constants, copy_s=copy_s), _updated(degrees, stage))
        for stage in alone.stages
    ]
    # A stage whose exchange takes longest need not be the one that computes longest, as where it has the embedding.
    data_s, updated = (max(values) for values in zip(*after, strict=True))
    each_s = constants.update_bytes / device.sustained_bytes_per_s
    if program.eager is not None and program.eager.foreach:
        each_s = FOREACH_BYTES / eager_bytes_per_s(device, "optimizer")
    update_s = updated * (host_update_s if degrees.offload else each_s)
    unequal = 0.0
    if documents is not None:
        without = _stage_seconds(shape, degrees, program, slowest_at, device, constants, attention=0.0)
        attention = max(0.0, slowest - inner - without)
        unequal = unequal_seconds(asked, degrees, documents, microbatch_s=slowest, attention_s=attention)
    parts = {
        "compute_s": degrees.microbatches * (slowest - inner),
        "tensor_s": degrees.microbatches * inner,
        "bubble_s": alone.bubble_s,
        "send_s": alone.send_s,
        "data_s": data_s,
        "update_s": 0.0 if program.frozen else update_s,
        "unequal_s": unequal,
    }
    slowest_s = TransformerStep(**parts).seconds * (_slowest_factor(constants, degrees.devices) - 1.0)
    return TransformerStep(**parts, slowest_s=slowest_s)


def replica_step(
    shape: TransformerShape,
    degrees: Degrees,
    program: TransformerProgram,
    *,
    device: Device,
    exchange: Exchange,
    constants: StepConstants,
) -> ReplicaStep:
    """What a step takes in one replica, which strategies that differ in what they shard of the state have in common.

    Arguments as of `transformer_step`.
    """
    shape, program = as_packed(shape, degrees, program)
    exchange = placed(exchange, degrees)
    return _once(
        ("replica", shape, program, degrees_without_state(degrees)),
        (device, exchange, constants),
        lambda: _replica_step(shape, degrees, program, device, exchange, constants),
    )


def _slowest_factor(constants: StepConstants, ranks: int) -> float:
    return _once(("slowest", ranks), (constants,), lambda: constants.slowest_factor(ranks))


def _updated(degrees: Degrees, stage: StageStep) -> float:
    """Parameters that a rank of a stage updates."""
    if degrees.zero == 0:
        return stage.dense + stage.experts
    return stage.dense / degrees.state_ranks + stage.experts / degrees.expert_state_ranks


_HOST_ADAM_S = 2.57e-10
"""Update of a parameter by Adam on all cores of a host of two Xeon 8168: 2.57 s for 10 billion (Ren et al.,
"ZeRO-Offload", USENIX ATC 2021, table 5). What another host takes is not known."""


def host_update_seconds(machine: Machine, *, ranks: int, gradient_bytes: int) -> float:
    """Update of one parameter of each rank where the optimizer's state is in the memory of the host [s].

    Its gradient is copied to the host, its weight back in 16 bits; all ranks of a node copy at once, and its cores
    update the parameters of all of them. Nothing of it overlaps.

    Source:
        Ren et al., "ZeRO-Offload: Democratizing Billion-Scale Model Training", USENIX ATC 2021, sections 3 and 5.

    Args:
        machine: nodes and their links to devices
        ranks: in all, on the first devices
        gradient_bytes: of a gradient that is copied [bytes]

    Raises:
        InputError: rates of copies between the host and the devices are not known

    Example:
        On a DGX-1 a device copies 6.2 GB/s while the 8 copy: 6 bytes, and 8 parameters are updated.

        >>> from trimaran.machine.find import find_machine
        >>> seconds = host_update_seconds(find_machine("dgx1-v100"), ranks=8, gradient_bytes=4)
        >>> round((seconds - 8 * 2.57e-10) * 6.2e9, 3)
        6.0
    """
    devices = min(ranks, machine.node.devices)
    rate = min(host_bandwidth(machine.node, range(devices)).values(), default=0.0)
    if rate <= 0:
        raise InputError(
            f"{machine.node.title}: how fast devices copy to their host is not known, so an optimizer there has no "
            "price: leave offload out",
            code="analytical.no-host-rate",
            machine=machine.node.name,
        )
    return (gradient_bytes + 2) / rate + devices * _HOST_ADAM_S


def least_seconds(
    shape: TransformerShape,
    degrees: Degrees,
    program: TransformerProgram,
    *,
    device: Device,
    exchange: Exchange,
    constants: StepConstants,
    filling: float = 1.0,
) -> float:
    """A step with all stages equally loaded, without bubble, exchanges of replicas and update [s].

    No schedule, sharding or choice of layers for stages makes a step of these degrees faster: with `m` microbatches the
    slowest stage computes `m` times, and one microbatch passes through the others, of which a schedule leaves a part
    idle: `1 / v` where stages have `v` chunks. That is least where all `p` are equal: `m + (p - 1) / v` times the mean.

    Args:
        shape: the network
        degrees: of it and of its batch
        program: settings of the training program
        device: each rank's
        exchange: prices collectives between ranks
        constants: shares of peak and overheads
        filling: least share of the pass through the other stages that is idle (`filling_share`) [0..1]
    """
    shape, program = as_packed(shape, degrees, program)
    exchange = placed(exchange, degrees)
    whole = degrees
    if degrees.pp > 1:
        whole = replace(degrees, pp=1, chunks=1, segment_layers=(), schedule="1f1b")
    alone = _stage_seconds(shape, whole, program, 0, device, constants) / degrees.pp
    inside = _inside_seconds(shape, whole, program, 0, exchange, constants) / degrees.pp
    return (degrees.microbatches + (degrees.pp - 1) * filling) * (alone + inside)


def least_send_seconds(
    shape: TransformerShape,
    degrees: Degrees,
    program: TransformerProgram,
    *,
    exchange: Exchange,
    constants: StepConstants,
    plain: bool = True,
) -> float:
    """Wait of a step for sends between stages, at least [s].

    Args:
        shape: the network
        degrees: of it and of its batch, whatever its schedule and chunks
        program: settings of the training program
        exchange: prices messages between stages
        constants: the share that overlapped sends leave
        plain: the schedule is 1f1b or interleaved; else any
    """
    if degrees.pp == 1:
        return 0.0
    shape, program = as_packed(shape, degrees, program)
    sends = _both_ways(shape, degrees, program, placed(exchange, degrees))
    kinds = [Degrees(pp=2), Degrees(pp=2, chunks=2)]
    kinds += [] if plain else [Degrees(pp=2, schedule="dualpipe")]
    waited = min(send_seconds(kind, sends, constants) for kind in kinds)
    return degrees.microbatches * waited + (degrees.pp - 1) * sends


def least_replica_seconds(
    shape: TransformerShape,
    degrees: Degrees,
    program: TransformerProgram,
    *,
    exchange: Exchange,
    sharding: Sequence[tuple[ZeroStage, int | None]],
) -> float:
    """Exchanges between replicas of a step, overlapped or not, at least [s].

    All levels of ZeRO exchange what level 1 does once a step, or more.

    Args:
        shape: the network
        degrees: of it, with ranks of experts
        program: bytes of parameters and gradients
        exchange: prices collectives
        sharding: levels of ZeRO, with the ranks that share a copy of state
    """
    if program.frozen or degrees.dp * degrees.cp * degrees.tp == 1:
        return 0.0
    exchange, apart = placed(exchange, degrees), degrees.ep * degrees.expert_ranks
    dense, experts = least_held(shape, degrees.pp, degrees.tp, degrees.ep, degrees.expert_ranks)
    found = []
    for zero, ranks in {(min(zero, 1), ranks) for zero, ranks in sharding}:
        one = replace(degrees, zero=zero, shard_ranks=ranks)
        once = _replica_exchanges(dense, (one.dp * one.cp, one.state_ranks), one.tp, one, program, exchange)
        ranks_of_experts = one.expert_data, one.expert_state_ranks
        more = _replica_exchanges(experts, ranks_of_experts, apart, one, program, exchange)
        found.append(sum(once) + sum(more))
    return min(found, default=0.0)


@functools.lru_cache(maxsize=4096)
def least_held(shape: TransformerShape, stages: int, tensor: int, expert: int, expert_tensor: int) -> tuple[int, int]:
    """Parameters that a rank of some stage holds at least: those that all replicas hold, and those of its experts.

    Some stage has as many layers as stages have in the mean, or more, of which at least those have experts that are
    more than the stack's layers without; and some stage has as many layers with experts as stages have of them in the
    mean, or more. The one of the two that holds more is taken.

    Args:
        shape: the network
        stages: of the pipeline
        tensor: ranks that share a layer
        expert: ranks with different experts
        expert_tensor: ranks that share each of them

    Example:
        Of 61 layers the first three have no experts. On 24 stages one has at least three of the others.

        >>> from trimaran.pricing.analytical.shapes import Experts, gpt_shape
        >>> experts = Experts(count=8, active=1, ffn=64, dense_layers=3)
        >>> shape = replace(gpt_shape(layers=61, hidden=64, heads=4), experts=experts)
        >>> least_held(shape, 24, 1, 8, 1)[1] == 3 * expert_elements(shape, 60, expert=8, expert_tensor=1)
        True
    """
    kinds = layer_kinds(shape, (range(shape.layers),))
    dense = min(layer_elements(shape, layer, tensor=tensor) for layer, _ in kinds)
    experts = max(expert_elements(shape, layer, expert=expert, expert_tensor=expert_tensor) for layer, _ in kinds)
    sparse = sum(count for layer, count in kinds if shape.has_experts(layer))
    most, most_sparse = -(-shape.layers // stages), -(-sparse // stages)
    either = ((most, max(0, most - (shape.layers - sparse))), (most_sparse, most_sparse))
    return max(((layers * dense, with_experts * experts) for layers, with_experts in either), key=sum)


def _ends(degrees: Degrees, stage: int) -> tuple[bool, bool]:
    """Whether a pass of a stage has the embedding, and the output layer."""
    if degrees.schedule == "dualpipe":
        return stage == 0, stage == degrees.pp - 1
    return stage_ends(degrees, stage)


def _inside_seconds(
    shape: TransformerShape,
    degrees: Degrees,
    program: TransformerProgram,
    stage: int,
    exchange: Exchange,
    constants: StepConstants,
) -> float:
    """Exchanges of one microbatch inside the layers of a stage, and of its logits, as far as waited for [s]."""
    layers, logits_s = alike_on_stage(shape, degrees, stage), 0.0
    if _ends(degrees, stage)[1] and shape.prediction_layers:
        layers = (*layers, (shape.layers - 1, shape.prediction_layers, _all_again(degrees)))
    if _ends(degrees, stage)[1] and degrees.tp > 1 and program.eager is not None and program.eager.whole_loss:
        logits = tokens_of_rank(shape, degrees) * vocabulary_rows(shape) * program.element_bytes
        logits_s = (1 + shape.prediction_layers) * exchange("all_gather", logits, degrees.tp, 1)
    return logits_s + sum(
        number * tensor_seconds(shape, degrees, program, exchange, constants, layer=layer, again=again)
        for layer, number, again in layers
    )


def _all_again(degrees: Degrees) -> bool:
    """Whether all layers are recomputed as a whole."""
    return "layers" in degrees.recomputed and degrees.recompute_layers is None


def _filling(
    shape: TransformerShape,
    degrees: Degrees,
    program: TransformerProgram,
    stage: int,
    slowest: float,
    device: Device,
    constants: StepConstants,
) -> float:
    """Idle time of the pipeline's filling, as `filling_share`; B and W are kernels of the slowest stage."""
    if degrees.schedule not in ("zero-bubble", "dualpipe", "dualpipev"):
        return 1.0 / degrees.chunks

    kernels = _Kernels(program, device, constants, 1.0)
    forward = PassWork()
    for layer, number, _ in alike_on_stage(shape, degrees, stage):
        each = layer_forward(shape, degrees, attention=program.attention, layer=layer, eager=program.eager)
        forward = forward + each.times(number, number, number)
    # Gradients of weights are one product for each product of the forward.
    rate = constants.product_rate(program.precision, device, program.year, tuned=program.tuned)
    weights = forward.products / rate / slowest
    return filling_share(
        degrees.schedule,
        chunks=degrees.chunks,
        backward=max(0.0, 1.0 - kernels.seconds(forward)[0] / slowest),
        weights=min(weights, 1 / 3),
        stages=degrees.pp,
    )


_MOST_KNOWN = 100_000
"""Times that are kept; a search asks for fewer."""

_KNOWN: dict[tuple[Hashable, ...], tuple[tuple[object, ...], Any]] = {}


def _once(key: tuple[Hashable, ...], same: tuple[object, ...], find: Callable[[], Found]) -> Found:
    """Computes once what strategies of a search have in common.

    Args:
        key: what it depends on, with a name
        same: what is known by being the same object, which what is kept holds on to: a device has figures by name
        find: computes it
    """
    key = (*key, *map(id, same))
    known = _KNOWN.get(key)
    if known is None:
        if len(_KNOWN) >= _MOST_KNOWN:
            _KNOWN.clear()
        known = _KNOWN[key] = (same, find())
    found: Found = known[1]
    return found


@dataclass(frozen=True, slots=True)
class _Kernels:
    """Times of the device and of the host for the kernels of passes.

    Attributes:
        program: settings of the training program
        device: each rank's
        constants: shares of peak and overheads
        attention: share of attention that is computed
    """

    program: TransformerProgram
    device: Device
    constants: StepConstants
    attention: float

    def seconds(self, work: PassWork) -> tuple[float, float]:
        """Of any work, on the device and on the host [s]."""
        program = self.program
        device_s = self.constants.device_seconds(
            work,
            program.precision,
            kernel=program.attention,
            fused=program.fused,
            device=self.device,
            year=program.year,
            tuned=program.tuned,
        )
        return device_s, self.constants.host_seconds(work)

    def of_layer(self, shape: TransformerShape, degrees: Degrees, layer: int, *, again: bool) -> tuple[float, float]:
        """Of forward and backward of a layer, and of what is recomputed for it [s].

        Strategies of a search differ in stages and replicas, so each kind of layer is computed once.
        """
        # Ranks of experts matter where there are some.
        spread = (degrees.ep, degrees.expert_ranks) if shape.has_experts(layer) else ()
        key = ("layer", layer, again, frozenset() if again else degrees.recomputed - {"layers"}, *spread)
        return self._once(shape, degrees, key, lambda: self._of_layer(shape, degrees, layer, again=again))

    def of_ends(self, shape: TransformerShape, degrees: Degrees, *, first: bool, last: bool) -> tuple[float, float]:
        """The same of the embedding, where a stage is the first, and of what comes after the layers, where the last."""
        predicted = last and shape.prediction_layers > 0
        spread = (degrees.ep, degrees.expert_ranks, degrees.recomputed, _all_again(degrees)) if predicted else ()
        key = ("ends", first, last, *spread)
        return self._once(shape, degrees, key, lambda: self._of_ends(shape, degrees, first=first, last=last))

    def _once(
        self,
        shape: TransformerShape,
        degrees: Degrees,
        key: tuple[Hashable, ...],
        find: Callable[[], tuple[float, float]],
    ) -> tuple[float, float]:
        shares = degrees.tp, degrees.cp, degrees.sequence_parallel, degrees.microbatch
        return _once((*key, *shares, shape, self.program, self.attention), (self.device, self.constants), find)

    def _of_ends(self, shape: TransformerShape, degrees: Degrees, *, first: bool, last: bool) -> tuple[float, float]:
        program, rest = self.program, PassWork()
        if last and shape.prediction_layers:
            table = prediction_operations(shape, degrees, attention=program.attention, eager=program.eager)
            module = self._passes(table, shape, degrees, shape.layers - 1, again=_all_again(degrees))
            rest = rest + module.times(*[float(shape.prediction_layers)] * 3)
        if first:
            rest = rest + self._both(embedding_forward(shape, degrees))
        if last:
            # The head stays in 16 bits where layers compute in 8.
            rows = vocabulary_rows(shape, degrees.tp)
            factor = self.constants.head_factor(program.precision, self.device, rows)
            rest = rest + self._both(head_forward(shape, degrees, program.eager)).times(factor, 1.0, 1.0)
        return self.seconds(rest)

    def _both(self, forward: PassWork) -> PassWork:
        return forward + backward(forward, attention=self.program.attention, frozen=self.program.frozen)

    def _of_layer(self, shape: TransformerShape, degrees: Degrees, layer: int, *, again: bool) -> tuple[float, float]:
        table = operations(shape, degrees, layer, attention=self.program.attention, eager=self.program.eager)
        return self.seconds(self._passes(table, shape, degrees, layer, again=again))

    def _passes(
        self, table: Sequence[Operation], shape: TransformerShape, degrees: Degrees, layer: int, *, again: bool
    ) -> PassWork:
        """Forward and backward of the rows of a layer, and what is recomputed: all of it, or what degrees say."""
        tokens = tokens_of_rank(shape, degrees)
        attention = self.attention * _attention_work(shape, degrees, self.program, layer)
        if self.program.attention != "math" and not shape.is_linear(layer):
            attention *= self.constants.attention_factor(attended_tokens(shape, layer))
        forward = work(table, tokens)
        repeated = recomputed_work(table, tokens, degrees.recomputed)
        if again:
            repeated = forward.without_last if self.program.stops_early else forward
        return (self._both(forward) + repeated).times(1.0, attention, 1.0)


def _stage_seconds(
    shape: TransformerShape,
    degrees: Degrees,
    program: TransformerProgram,
    stage: int,
    device: Device,
    constants: StepConstants,
    *,
    attention: float = 1.0,
) -> float:
    """Forward and backward of one microbatch on a stage, with attention or a share of it [s].

    Strategies of a search differ in replicas, chunks and sharded state, so each kind of stage is computed once.
    """
    key = (
        ("stage", shape, program, attention),
        (degrees.tp, degrees.cp, degrees.ep, degrees.expert_tp, degrees.sequence_parallel, degrees.microbatch),
        (degrees.microbatches > 1, degrees.recomputed, _all_again(degrees)),
        (alike_on_stage(shape, degrees, stage), _ends(degrees, stage)),
    )
    kernels = _Kernels(program, device, constants, attention)
    return _once(key, (device, constants), lambda: _of_stage(shape, degrees, stage, kernels))


def _of_stage(shape: TransformerShape, degrees: Degrees, stage: int, kernels: _Kernels) -> float:
    program, device, constants = kernels.program, kernels.device, kernels.constants
    device_s, host_s, held, calls = 0.0, 0.0, 0, 0
    first, last = _ends(degrees, stage)
    for layer, number, again in alike_on_stage(shape, degrees, stage):
        each = kernels.of_layer(shape, degrees, layer, again=again)
        device_s, host_s = device_s + number * each[0], host_s + number * each[1]
        held += number * layer_elements(shape, layer, tensor=degrees.tp)
        calls += number * sum_count(shape, degrees, layer=layer, again=again) if degrees.tp > 1 else 0
    if last and shape.prediction_layers:
        held += shape.prediction_layers * elements(prediction_operations(shape, Degrees(tp=degrees.tp)))[0]
        again = _all_again(degrees)
        calls += shape.prediction_layers * sum_count(shape, degrees, layer=shape.layers - 1, again=again)
    if first or last:
        each = kernels.of_ends(shape, degrees, first=first, last=last)
        device_s, host_s = device_s + each[0], host_s + each[1]
    if not program.frozen and degrees.microbatches > 1:
        device_s += constants.sum_seconds(held, device)
    if program.eager is not None and program.eager.autocast:
        cast = held + last * vocabulary_rows(shape, degrees.tp) * shape.hidden
        device_s += AUTOCAST_BYTES * cast / eager_bytes_per_s(device, "copy")
    if program.eager is not None and degrees.tp > 1 and degrees.sequence_parallel:
        device_s += calls * _joined_bytes(shape, degrees, program) / device.sustained_bytes_per_s
    host_s += calls * constants.call_s if degrees.tp > 1 else 0.0
    power = constants.sharpness
    return float((device_s**power + host_s**power) ** (1.0 / power))


def _joined_bytes(shape: TransformerShape, degrees: Degrees, program: TransformerProgram) -> float:
    """What DTensor moves for each sum of the residual stream that is split along the sequence [bytes].

    A collective joins what it exchanges along the batch. So what was gathered is put together along the sequence by a
    copy, read and written, and so is what will be scattered.

    Source:
        pytorch/pytorch, torch/distributed/_functional_collectives.py, `all_gather_single`, `reduce_scatter_single`.

    Example:
        1,024 tokens of h = 512 in 16 bits, four times.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=1, hidden=512, heads=8)
        >>> _joined_bytes(shape, Degrees(tp=2, sequence_parallel=True), TransformerProgram()) == 4 * 2 * 1024 * 512
        True
    """
    return 4.0 * tokens_of_rank(shape, degrees) * shape.hidden * program.element_bytes
