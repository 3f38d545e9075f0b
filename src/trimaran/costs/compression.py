"""What coding of offloaded storages brings: fewer bytes on the link, for time on the device.

Whether coding is worth its time is a matter of two rates. To copy b bytes takes b / B; coded to a part 1/r of them at a
rate K, b / K + b / (r B). So

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
