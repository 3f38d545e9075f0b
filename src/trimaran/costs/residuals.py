"""What compressing gradients needs of a rank's memory.

    error feedback    what a step lost of each gradient, in 32 bits, until the next one adds it
    PowerSGD          of each gradient matrix, the thin one from which the next step starts
    any               what goes over the wire, from the encoding of a bucket to its decoding

Source:
    Vogels et al., NeurIPS 2019, algorithm 2: the memory of errors, and the right factor that starts the next step.
"""

import math
from collections.abc import Collection, Mapping, Sequence

from trimaran.graph.types import Parameter
from trimaran.program.compression import SMALLEST_BYTES, Compression
from trimaran.program.types import Kind, Program

_NUMBER_BYTES = 4


def kept_bytes(compression: Compression | None, parameters: Sequence[Parameter]) -> int:
    """What is kept from one step to the next [bytes]; nothing of gradients of 16 bits, which go as they are.

    Args:
        compression: how gradients are sent; None: as they are
        parameters: whose gradients this rank sends

    Example:
        Of a matrix of 64 by 32, 2,048 errors; with rank 2 also 2 · 32 numbers. Of its bias nothing is lost.

        >>> matrix = Parameter(name="weight", shape=(64, 32), dtype="float32", nbytes=8192)
        >>> bias = Parameter(name="bias", shape=(64,), dtype="float32", nbytes=256)
        >>> kept_bytes(Compression(method="powersgd", rank=2), [matrix, bias])
        8448
        >>> kept_bytes(Compression(method="bf16"), [matrix, bias])
        8448
    """
    if compression is None:
        return 0
    numbers = 0
    for parameter in parameters:
        whole = math.prod(parameter.shape)
        if not parameter.trainable or parameter.nbytes < SMALLEST_BYTES * whole:
            continue
        if compression.method != "powersgd":
            numbers += whole
        elif compression.factors(parameter.shape):
            rows = parameter.shape[0]
            numbers += whole + min(compression.rank, rows, whole // rows) * (whole // rows)
    return _NUMBER_BYTES * numbers


def with_wire_buffers(
    memory: Mapping[str, tuple[int, int]], program: Program, coded: Collection[str]
) -> dict[str, tuple[int, int]]:
    """What lives and dies with each instruction, with what is on the wire: from its encoding up to the update.

    Args:
        memory: without [bytes]
        program: one step
        coded: ids of the all-reduces of compressed buckets
    """
    found = dict(memory)
    for instructions in program.ranks:
        alive = 0
        for item in instructions:
            if item.id in coded:
                found[item.id] = (item.nbytes, 0)
                alive += item.nbytes
            elif item.kind is Kind.UPDATE:
                born, died = found.get(item.id, (0, 0))
                found[item.id] = (born, died + alive)
    return found
