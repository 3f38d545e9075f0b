"""What coding of offloaded storages brings: fewer bytes on the link, for time on the device.

A plan that is made from `coded_trace` sees the bytes that really cross the link. Whether coding is worth its time is a
matter of two rates. To copy b bytes takes b / B; coded to a part 1/r of them at a rate K, b / K + b / (r B). So

    coding pays where K > B / (1 - 1/r)

For r = 2.6 that is 1.6 times the link. Copies between two parts of one memory, as on a CPU, are faster than any coding
in plain operations, and it never pays there. A GPU that codes with ordinary operations reads and writes each byte
several times (`GPU_PASSES`), at the rate of its memory: with PCIe it pays if those operations are not in the way, with
NVLink-C2C hardly. What a ReLU has made can often be made again from its input in two passes: then nothing need be
copied at all, and recomputing is cheaper than coding.

Source:
    Rhu et al., "Compressing DMA Engine", HPCA 2018: 2.6 times fewer bytes on average for trained networks on ImageNet,
    with an engine in hardware beside the link.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

from trimaran.errors import InputError
from trimaran.graph.trace.types import StepTrace, Value

GPU_PASSES = 7.0
"""Bytes that ordinary operations of a GPU read and write to code one: compare (1.25), number what is there (0.25 and
2), pick it (1 and 2, and what comes out)."""

_MAKES_ZEROS = ("aten.relu", "aten.threshold", "aten.clamp_min", "aten.hardtanh")
_PASSES_ZEROS = ("aten.max_pool", "aten.native_dropout", "aten._adaptive_avg_pool", "aten.avg_pool")


def after_relu(trace: StepTrace) -> frozenset[int]:
    """Movable storages whose packed version a ReLU has made, or a pooling or dropout of such.

    Args:
        trace: of the step
    """
    sparse: set[Value] = set()
    for op in trace.ops:
        zeros = op.name.startswith(_MAKES_ZEROS)
        passed = op.name.startswith(_PASSES_ZEROS) and any(value in sparse for value in op.reads)
        if (zeros or passed) and op.writes and "backward" not in op.name:
            sparse.add(op.writes[0])
    return frozenset(one.number for one in trace.movable if (one.number, one.version) in sparse)


def coded_trace(trace: StepTrace, ratios: Mapping[int, float]) -> StepTrace:
    """A trace whose storages cross the link coded. A plan made from it is one of the trace itself.

    Args:
        trace: of the step
        ratios: by storage, how many times fewer bytes; what is missing is not coded

    Raises:
        InputError: a ratio below 1
    """
    for number, ratio in ratios.items():
        if not ratio >= 1:
            raise InputError(f"storage {number} is coded to {ratio} times fewer bytes: give 1 or more", ratio=ratio)
    storages = tuple(
        replace(one, copy_bytes=math.ceil(one.copy_bytes / ratios[one.number])) if one.number in ratios else one
        for one in trace.storages
    )
    return replace(trace, storages=storages)


def sparse_ratio(zeros: float, word_bytes: int = 4) -> float:
    """How many times fewer bytes a bit for each word and the words that are not zero are.

    Args:
        zeros: share of the words that are zero [0..1]
        word_bytes: of each [bytes]

    Returns:
        The ratio; below 1 the bytes stay as they are, so that is 1.

    Example:
        Of words of 32 bits, 60 % zero: one bit and 12.8 bits on average.

        >>> round(sparse_ratio(0.6), 3), sparse_ratio(0.0)
        (2.319, 1.0)
    """
    return max(1.0, 1.0 / (1.0 / (8 * word_bytes) + 1.0 - zeros))


def least_codec_rate(link_bytes_per_s: float, ratio: float) -> float:
    """Rate above which coding pays [bytes/s].

    Args:
        link_bytes_per_s: of the link [bytes/s]
        ratio: how many times fewer bytes

    Example:
        >>> least_codec_rate(12e9, 4.0) / 1e9
        16.0
    """
    return link_bytes_per_s / (1.0 - 1.0 / ratio) if ratio > 1 else math.inf


def saved_s(nbytes: int, *, link_bytes_per_s: float, codec_bytes_per_s: float, ratio: float) -> float:
    """Time that coding saves in one direction; negative where it costs more than it saves [s].

    Args:
        nbytes: to copy [bytes]
        link_bytes_per_s: of the link [bytes/s]
        codec_bytes_per_s: of the coding, by bytes that go in [bytes/s]
        ratio: how many times fewer bytes

    Example:
        >>> round(saved_s(12_000_000_000, link_bytes_per_s=12e9, codec_bytes_per_s=48e9, ratio=4.0), 6)
        0.5
    """
    return nbytes / link_bytes_per_s * (1.0 - 1.0 / ratio) - nbytes / codec_bytes_per_s
