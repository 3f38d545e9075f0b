"""What a gradient is on the wire."""

import torch

from trimaran.program.compression import Compression


def wire_bytes(parameter: torch.Tensor, compression: Compression | None) -> int:
    """What a parameter adds to the size of its bucket in a program [bytes].

    Args:
        parameter: whose gradient it is
        compression: of gradients; None: they go as they are

    Example:
        >>> weight = torch.zeros(64, 32)
        >>> wire_bytes(weight, None), wire_bytes(weight, Compression(method="powersgd", rank=2))  # 4 · 2 · (64 + 32)
        (8192, 768)
    """
    if compression is None:
        return parameter.nbytes
    return min(parameter.nbytes, compression.wire_bytes([parameter.shape], itemsize=parameter.itemsize))
