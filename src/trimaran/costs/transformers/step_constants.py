"""The few figures of a step that no shape says: shares of peak, bytes of an update, a host's time for a layer."""

import functools
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from trimaran.cluster.catalog import CatalogDevice
from trimaran.costs.transformers.activations import AttentionKernel
from trimaran.costs.transformers.stage_work import PassWork

_EIGHT_BITS = 2.0
"""How many times faster units compute in 8 bits than in 16: a fact of Hopper and Blackwell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepConstants:
    """Figures of `divided_step`, shared by all devices and networks.

    Attributes:
        large_products: share of peak that large products in 16 bits reach, by architecture [0..1]
        product_share: what products of training reach of `large_products` [0..1]
        eight_bit_share: the same in 8 bits, quantization included [0..1]
        attention_share: share of peak in 16 bits that fused attention reaches [0..1]
        early_attention_share: the same of kernels before 2024 [0..1]
        unfused_attention_share: the same of batched products [0..1]
        traffic: bytes that elementwise work moves, as a multiple of what is counted, in kernels made for them
        eager_traffic: the same where each operation is a kernel
        host_layer_s: what a host needs for forward and backward of a layer [s]
        host_softmax_s: the same of a softmax that is many kernels [s]
        odd_share: of `product_share`, what products reach where rows are odd, so that no load is aligned [0..1]
        call_s: what a host needs to ask for a collective inside a layer [s]
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

    def share(self, precision: str, device: CatalogDevice) -> float:
        """Share of the peak in 16 bits that products reach; above 1 in 8 bits [0..2]."""
        large = self.large_products.get(device.architecture, _UNKNOWN_SHARE) * _of_power(device)
        if precision == "float8":
            return _EIGHT_BITS * self.eight_bit_share * large
        return self.product_share * large

    def head_factor(self, precision: str, device: CatalogDevice, rows: int) -> float:
        """How many times more an output layer in 16 bits costs than the same product in the layers' precision.

        Args:
            precision: of the layers
            device: where it runs
            rows: of the vocabulary on a rank; odd ones leave no load aligned to more than an element
        """
        aligned = self.odd_share if rows % 2 else 1.0
        return self.share(precision, device) / (self.share("bfloat16", device) * aligned)

    def sum_seconds(self, elements: float, device: CatalogDevice) -> float:
        """Time to add gradients of parameters to those of the microbatches before [s]."""
        return elements * self.sum_bytes / (device.bandwidth.bytes_per_s * device.bandwidth.fraction)

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
        device: CatalogDevice,
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
            + moved / (device.bandwidth.bytes_per_s * device.bandwidth.fraction)
        )


_LATE_KERNELS = 2024.0
"""Year from which fused attention is that of second or later generation."""


@functools.cache
def step_constants() -> StepConstants:
    """The figures as fitted."""
    text = resources.files("trimaran.costs.transformers").joinpath("constants.toml").read_text(encoding="utf-8")
    document = tomllib.loads(text)
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


def _of_power(device: CatalogDevice) -> float:
    """Share of an architecture's usual rate that a card of fewer watts sustains: it grows as their square root.

    Clocks fall with voltage, and power with the square of voltage times clocks, so half the power costs less than half
    of the rate.
    """
    usual = _WATTS.get(device.architecture, 0.0)
    if not usual or not device.power_w:
        return 1.0
    watts = device.power_w / (peak_of(device) / 1e12)
    return min(1.0, math.sqrt(watts / usual))


def peak_of(device: CatalogDevice) -> float:
    """Peak of a device's units in 16 bits [FLOP/s]."""
    peaks = device.compute
    known = peaks.get("bfloat16") or peaks.get("float16") or peaks["float32"]
    return known.flops_per_s
