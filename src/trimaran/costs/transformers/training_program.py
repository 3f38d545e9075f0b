"""What trains a divided transformer, as far as the time of a step depends on it."""

from dataclasses import dataclass

from trimaran.costs.transformers.activations import AttentionKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What trains, as far as a step's time depends on it.

    Attributes:
        precision: of products: "float16", "bfloat16" or "float8"
        attention: kind of kernel
        fused: norms, sums and activations run in kernels made for them
        overlaps: exchanges of gradients and parameters run beside the backward
        tensor_overlaps: exchanges of `tensor` ranks run beside products
        frozen: weights have no gradients, but for few that are added (LoRA)
        gradient_bytes: of a gradient that is exchanged [bytes]
        flat_sums: a sum over replicas takes its bytes over the bandwidth of a bus, however many replicas there are
        send_bytes_per_s: rate of sends between stages; 0: what their link sustains [bytes/s]
        year: of its kernels
    """

    precision: str = "bfloat16"
    attention: AttentionKernel = "fused"
    fused: bool = True
    overlaps: bool = True
    tensor_overlaps: bool = False
    frozen: bool = False
    gradient_bytes: int = 4
    flat_sums: bool = False
    send_bytes_per_s: float = 0.0
    year: float = 2024.0
