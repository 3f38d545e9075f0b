"""The codec of a compression."""

import torch

from trimaran.program.compression import Compression
from trimaran.runtime.compression.factoring import Factoring
from trimaran.runtime.compression.rounding import Rounding
from trimaran.runtime.compression.types import Codec


def open_codec(compression: Compression, *, replicas: int, seed: int) -> Codec:
    """A codec that has lost nothing yet.

    Args:
        compression: which
        replicas: that add up
        seed: of what it draws; the same on all replicas

    Example:
        >>> codec = open_codec(Compression(method="bf16"), replicas=1, seed=0)
        >>> gradient = torch.tensor([1.0, 1.0009765625])  # bf16 has 8 bits: the second becomes 1
        >>> [round.payload.dtype for round in codec.rounds(gradient, [gradient])], gradient
        ([torch.bfloat16], tensor([1., 1.]))
    """
    if compression.method == "powersgd":
        return Factoring(compression, seed=seed)
    return Rounding(torch.bfloat16 if compression.method == "bf16" else torch.float16, replicas=replicas)
