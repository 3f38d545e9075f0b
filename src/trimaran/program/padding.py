"""Bytes of parameters that are split over replicas along their first dimension.

The first dimension is padded so that it divides, as `fully_shard` does it.
"""

from collections.abc import Sequence

from trimaran.graph.types import Parameter


def padded_bytes(parameters: Sequence[Parameter], replicas: int) -> int:
    """Bytes of parameters whose first dimension has been padded so that it divides.

    Args:
        parameters: of a unit
        replicas: ranks that share them

    Example:
        >>> bias = Parameter(name="bias", shape=(10,), dtype="float32", nbytes=40)
        >>> padded_bytes([bias], 4)  # 12 of 4 bytes
        48
    """
    return sum(replicas * shard_bytes(parameter, replicas) for parameter in parameters)


def shard_bytes(parameter: Parameter, replicas: int) -> int:
    """Bytes of the largest shard of a parameter: it is split along its first dimension.

    Example:
        >>> shard_bytes(Parameter(name="weight", shape=(5, 3), dtype="float32", nbytes=60), 2)  # 3 of 5 rows
        36
    """
    rows = parameter.shape[0] if parameter.shape else 1
    return -(-rows // replicas) * (parameter.nbytes // rows) if rows else 0
