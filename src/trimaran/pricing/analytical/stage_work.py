"""Work of a stage of a sharded transformer for one microbatch: FLOP of products and of attention, bytes moved.

For each token of a layer, forward, on one of `t` ranks:

    products     2 (h (q + 2k) + q h + g h f + f h) / t       g: inner products of the feed-forward network, 1 or 2
    attention    4 s q / t                                     half of it where a fused kernel skips masked tokens
    elementwise  8 h (two norms) + 14 h (two sums with dropout) + 2 (g + 1) f / t (activation), read and written
    experts      12 e h: tokens put in the order of the `e` experts that each visits, and back
    unfused      20 a s / t in all three passes: scores scaled, masked and normalized (2 + 2; backward 4 + 2), dropped
                 out (2 + 3; backward 3 + 2); three times 20 a s / t more where the kernel that does the first three
                 at once cannot run (`softmax_kernel_fits`), for the same in 32 bits, one after another

A host that asks for kernels one by one walks through layers; head and loss have the number of one layer, the embedding
as half of one.
The backward of a product is two of its size, that of fused attention two and a half (it computes probabilities again).

Source:
    Narayanan et al., SC 2021, appendix, for FLOP of a layer; Dao, "FlashAttention-2", 2023, for fused attention.
"""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.base.files import packaged_toml
from trimaran.machine.types import Device
from trimaran.pricing.analytical.activations import AttentionKernel, tokens_of_rank
from trimaran.pricing.analytical.shapes import TransformerShape, key_size, query_size
from trimaran.program.strategy import Degrees

_ELEMENT = 2
_FUSED_BACKWARD = 2.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PassWork:
    """Work of one pass of one microbatch.

    Attributes:
        products: of weights [FLOP]
        attention: products of queries, keys and values [FLOP]
        nbytes: moved by all else [bytes]
        layers: that host code has to walk through
        softmaxes: of them, those whose softmax is many kernels instead of one
    """

    products: float = 0.0
    attention: float = 0.0
    nbytes: float = 0.0
    layers: float = 0.0
    softmaxes: float = 0.0

    def __add__(self, other: "PassWork") -> "PassWork":
        return PassWork(
            products=self.products + other.products,
            attention=self.attention + other.attention,
            nbytes=self.nbytes + other.nbytes,
            layers=self.layers + other.layers,
            softmaxes=self.softmaxes + other.softmaxes,
        )

    def times(self, products: float, attention: float, rest: float) -> "PassWork":
        """The same with its parts multiplied."""
        return PassWork(
            products=self.products * products,
            attention=self.attention * attention,
            nbytes=self.nbytes * rest,
            layers=self.layers * rest,
            softmaxes=self.softmaxes * rest,
        )


def layer_forward(
    shape: TransformerShape, degrees: Degrees, *, attention: AttentionKernel, layer: int, causal: bool = True
) -> PassWork:
    """Forward of a layer on one rank.

    Example:
        A layer of h = 512 for one sequence of 1,024 tokens: 24 h² for each token, and 4 s h of attention.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> work = layer_forward(gpt_shape(layers=1, hidden=512, heads=8), Degrees(), attention="unfused", layer=0)
        >>> work.products / 1024 == 24 * 512**2, work.attention / 1024 == 4 * 1024 * 512
        (True, True)
    """
    tokens, tensor = tokens_of_rank(shape, degrees), degrees.tp
    queries, keys = query_size(shape, tensor), key_size(shape, tensor)
    gates = 2 if shape.gated else 1
    inner = _inner(shape, degrees, layer)
    projections = shape.hidden * (queries + 2 * keys) + queries * shape.hidden
    if shape.latent is not None:
        latent = shape.latent
        wide = shape.heads // tensor * (latent.head_size + latent.rotary_size)
        value = shape.heads // tensor * (latent.head_size + latent.value_size)
        projections = (
            shape.hidden * (latent.query_rank + latent.key_rank + latent.rotary_size)
            + latent.query_rank * wide
            + latent.key_rank * value
            + shape.heads // tensor * latent.value_size * shape.hidden
        )
        queries = wide
    skipped = 0.5 if attention == "fused" and causal else 1.0
    shared = tensor if degrees.sequence_parallel else 1
    moved = 22 * shape.hidden / shared + 2 * (gates + 1) * inner
    moved += 4 * (queries + keys) if shape.rotary else 0
    if shape.experts is not None and shape.has_experts(layer):
        # Tokens are put in the order of their experts, sent, and put back: read and written, twice each way.
        moved += 12 * shape.experts.active * shape.hidden / shared
    apart = attention == "unfused" and not softmax_kernel_fits(shape, degrees)
    if attention == "unfused":
        moved += (20 / 3 + (20 if apart else 0)) * (shape.heads // tensor) * shape.sequence
    return PassWork(
        products=2.0 * tokens * (projections + (gates + 1) * shape.hidden * inner),
        attention=4.0 * tokens * shape.sequence * queries * skipped,
        nbytes=tokens * moved,
        layers=1.0,
        softmaxes=1.0 if apart else 0.0,
    )


def softmax_kernel_fits(shape: TransformerShape, degrees: Degrees) -> bool:
    """Whether Megatron's kernel for scale, mask and softmax can run.

    A block of it takes four rows of scores at once, so heads of a rank times sequences must be a multiple of four.

    Source:
        NVIDIA/Megatron-LM, megatron/model/fused_softmax.py, `is_kernel_available`.

    Example:
        Sixteen heads on eight ranks: two of one sequence do not fill a block, those of two sequences do.

        >>> from trimaran.pricing.analytical.shapes import gpt_shape
        >>> shape = gpt_shape(layers=1, hidden=1024, heads=16)
        >>> [softmax_kernel_fits(shape, Degrees(tp=8, microbatch=microbatch)) for microbatch in (1, 2)]
        [False, True]
    """
    return degrees.microbatch * (shape.heads // degrees.tp) % 4 == 0 and shape.sequence % 4 == 0


def head_forward(shape: TransformerShape, degrees: Degrees) -> PassWork:
    """Forward of the output layer and the loss on one rank: logits written, made 32 bits, reduced and normalized."""
    tokens, rows = tokens_of_rank(shape, degrees), shape.vocabulary // degrees.tp
    return PassWork(products=2.0 * tokens * shape.hidden * rows, nbytes=16.0 * tokens * rows, layers=1.0)


def embedding_forward(shape: TransformerShape, degrees: Degrees) -> PassWork:
    """Forward of the embedding on one rank: rows gathered, positions added, dropped out."""
    return PassWork(nbytes=14.0 * tokens_of_rank(shape, degrees) * shape.hidden, layers=0.5)


def backward(forward: PassWork, *, attention: AttentionKernel, frozen: bool = False) -> PassWork:
    """Backward of a pass: gradients of inputs and, unless weights are frozen, of weights."""
    core = _FUSED_BACKWARD if attention == "fused" else 2.0
    return forward.times(1.0 if frozen else 2.0, core, 2.0)


def _inner(shape: TransformerShape, degrees: Degrees, layer: int) -> float:
    if shape.experts is None or not shape.has_experts(layer):
        return shape.ffn / degrees.tp
    experts = shape.experts
    return (experts.active * experts.ffn + experts.shared_ffn) / degrees.tp


# ---------------------------------------------------------------------------------------------------------------------
# The few figures of a step that no shape says: shares of peak, bytes of an update, a host's time for a layer


_EIGHT_BITS = 2.0
"""How many times faster units compute in 8 bits than in 16: a fact of Hopper and Blackwell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConstants:
    """Figures of `transformer_step`, shared by all devices and networks.

    Attributes:
        large_products: share of peak that large products in 16 bits reach, by architecture [0..1]
        product_share: rate of the products of training, as a share of `large_products` [0..1]
        eight_bit_share: the same in 8 bits, quantization included [0..1]
        attention_share: share of peak in 16 bits that fused attention reaches [0..1]
        early_attention_share: the same of kernels before 2024 [0..1]
        unfused_attention_share: the same of batched products [0..1]
        traffic: bytes that elementwise work moves in fused kernels, as a multiple of the counted ones
        eager_traffic: the same where each operation is a kernel
        host_layer_s: time of the host for forward and backward of a layer [s]
        host_softmax_s: the same of a softmax that is many kernels [s]
        odd_share: share of `product_share` that products reach where rows are odd, so that no load is aligned [0..1]
        call_s: time of the host to launch a collective inside a layer [s]
        tensor_exposed: share of a layer's exchanges that is waited for where they overlap [0..1]
        data_exposed: share of replicas' exchanges that is waited for where they overlap [0..1]
        send_exposed: share of sends between stages that is waited for where they overlap [0..1]
        update_bytes: of a parameter's update [bytes]
        sum_bytes: of a parameter's gradient that is added to those of the microbatches before [bytes]
        sharpness: `p` of the sum of device and host
        spread: half of the 90 % interval, as a share
        spread_experts: the same of networks with experts
    """

    large_products: Mapping[str, float]
    product_share: float
    eight_bit_share: float
    attention_share: float
    early_attention_share: float
    unfused_attention_share: float
    traffic: float
    eager_traffic: float
    host_layer_s: float
    host_softmax_s: float
    odd_share: float
    call_s: float
    tensor_exposed: float
    data_exposed: float
    send_exposed: float
    update_bytes: float
    sum_bytes: float
    sharpness: float
    spread: float
    spread_experts: float

    def share(self, precision: str, device: Device) -> float:
        """Share of the peak in 16 bits that products reach; above 1 in 8 bits [0..2]."""
        large = self.large_products.get(device.architecture, _UNKNOWN_SHARE) * _of_power(device)
        if precision == "fp8":
            return _EIGHT_BITS * self.eight_bit_share * large
        return self.product_share * large

    def head_factor(self, precision: str, device: Device, rows: int) -> float:
        """How many times more an output layer in 16 bits costs than the same product in the layers' precision.

        Args:
            precision: of the layers
            device: where it runs
            rows: of the vocabulary on a rank; odd ones leave no load aligned to more than an element
        """
        aligned = self.odd_share if rows % 2 else 1.0
        return self.share(precision, device) / (self.share("bf16", device) * aligned)

    def sum_seconds(self, elements: float, device: Device) -> float:
        """Time to add gradients of parameters to those of the microbatches before [s]."""
        return elements * self.sum_bytes / device.sustained_bytes_per_s

    def host_seconds(self, work: PassWork) -> float:
        """Time of a host that asks for a forward and a backward kernel by kernel [s]."""
        return (work.layers * self.host_layer_s + work.softmaxes * self.host_softmax_s) / 3.0

    def device_seconds(
        self,
        work: PassWork,
        precision: str,
        *,
        kernel: AttentionKernel,
        fused: bool,
        device: Device,
        year: float,
    ) -> float:
        """Time of a device's kernels, back to back [s]."""
        peak = peak_of(device)
        attention = self.attention_share if year >= _LATE_KERNELS else self.early_attention_share
        if kernel == "unfused":
            attention = self.unfused_attention_share
        moved = work.nbytes * (self.traffic if fused else self.eager_traffic)
        return (
            work.products / (peak * self.share(precision, device))
            + work.attention / (peak * attention)
            + moved / device.sustained_bytes_per_s
        )


_LATE_KERNELS = 2024.0
"""Year from which fused attention is that of second or later generation."""


@functools.cache
def step_constants() -> StepConstants:
    """The figures as fitted."""
    document = packaged_toml("trimaran.pricing.analytical", "constants.toml")
    return StepConstants(large_products=document["large_products"], **document["constants"])


_UNKNOWN_SHARE = 0.6

_WATTS: Mapping[str, float] = {
    # Board power over peak in 16 bits of the device whose products are known [W / (TFLOP/s)].
    "volta": 300 / 125,
    "turing": 70 / 65,
    "ampere": 400 / 312,
    "ada": 350 / 362,
    "hopper": 700 / 989,
    "blackwell": 1000 / 2250,
}


def _of_power(device: Device) -> float:
    """Share of an architecture's usual rate that a card of fewer watts sustains: it grows as their square root.

    Clocks fall with voltage, and power with the square of voltage times clocks, so half the power costs less than half
    of the rate.
    """
    usual = _WATTS.get(device.architecture, 0.0)
    if not usual or not device.power_w:
        return 1.0
    watts = device.power_w / (peak_of(device) / 1e12)
    return min(1.0, math.sqrt(watts / usual))


def peak_of(device: Device) -> float:
    """Peak of a device's units in 16 bits [FLOP/s]."""
    peaks = device.compute
    known = peaks.get("bf16") or peaks.get("fp16") or peaks["fp32"]
    return known.flops_per_s
