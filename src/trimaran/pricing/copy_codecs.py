"""Codecs on the way to the host and back: how many bytes cross the link, and what the coding takes.

To copy b bytes over a link of B bytes/s takes b / B; coded to a part 1/r of them at a rate K, b / K + b / (r B). So

    coding pays where K > B / (1 - 1/r)

| codec | exact | how many times fewer bytes | what it takes of a GPU: times that each byte is read or written |
|---|---|---|---|
| `sparse` | yes | as measured, or assumed, of what comes after a ReLU; nothing else is coded | 7 |
| `bf16` | no: 16 of 32 bits are dropped | 2, of fp32 | 1.5 |

A slot on the host keeps its full size: coding saves time on the link, not room on the host. Coding comes before the
copy and after the copy back, on the same lane. That it takes memory bandwidth from the operations is left out.

Source:
    Rhu et al., "Compressing DMA Engine", HPCA 2018: 2.6 times fewer bytes on average for trained networks on ImageNet,
    with an engine in hardware next to the link. Networks trained here on digits have 1.7 to 1.8
    (benchmarks/results/compression.json); 1.7 is what is taken where a user says nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from trimaran.graph.trace.types import StepTrace, Value
from trimaran.machine.types import Device
from trimaran.program.memory import BF16, SPARSE, CodecChoice

GPU_PASSES: Mapping[str, float] = {SPARSE: 7.0, BF16: 1.5}
"""Times that a GPU that codes with ordinary operations reads or writes each byte. "sparse": compare (1.25), number what
is there (0.25 and 2), pick it (1 and 2, and what comes out). "bf16": read 4 bytes, write 2."""


def gpu_coding_rates(device: Device) -> dict[str, float]:
    """Rates at which a GPU codes with ordinary operations, or undoes it, by codec and by bytes that go in [bytes/s].

    Args:
        device: of the catalog
    """
    rate = device.bandwidth.bytes_per_s * device.bandwidth.fraction
    return {name: rate / passes for name, passes in GPU_PASSES.items()}


_MAKES_ZEROS = ("aten.relu", "aten.threshold", "aten.clamp_min", "aten.hardtanh")
_PASSES_ZEROS = ("aten.max_pool", "aten.native_dropout", "aten._adaptive_avg_pool", "aten.avg_pool")


@dataclass(frozen=True, kw_only=True, eq=False)
class CopyCodec:
    """A codec for the copies of a step.

    Attributes:
        name: "sparse" or "bf16"
        is_exact: bits come back as they were; otherwise nothing is recomputed from what was coded
        coding_bytes_per_s: of coding, and of undoing it, by bytes that go in [bytes/s]
        ratios: of each storage that it codes, how many times fewer bytes there are
    """

    name: str
    is_exact: bool
    coding_bytes_per_s: float
    ratios: Mapping[int, float]

    def seconds(self, number: int, nbytes: int, link_bytes_per_s: float) -> float:
        """Time of a coded copy without its fixed part; infinite for what is not coded [s].

        Args:
            number: of the storage
            nbytes: its size [bytes]
            link_bytes_per_s: of the link [bytes/s]

        Example:
            12 GB at 48 GB/s, then 3 GB at 12 GB/s.

            >>> codec = CopyCodec(name="sparse", is_exact=True, coding_bytes_per_s=48e9, ratios={7: 4.0})
            >>> codec.seconds(7, 12_000_000_000, 12e9), codec.seconds(8, 1, 12e9)
            (0.5, inf)
        """
        ratio = self.ratios.get(number)
        if ratio is None:
            return math.inf
        return nbytes / self.coding_bytes_per_s + nbytes / (ratio * link_bytes_per_s)


def copy_codec(choice: CodecChoice, trace: StepTrace, *, coding_bytes_per_s: float) -> CopyCodec:
    """The codec for a step.

    Args:
        choice: of the user
        trace: of the step
        coding_bytes_per_s: of coding, by bytes that go in [bytes/s]
    """
    coded = after_relu(trace) if choice.name == SPARSE else in_fp32(trace)
    return CopyCodec(
        name=choice.name,
        is_exact=choice.is_exact,
        coding_bytes_per_s=coding_bytes_per_s,
        ratios=dict.fromkeys(sorted(coded), choice.ratio),
    )


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


def in_fp32(trace: StepTrace) -> frozenset[int]:
    """Movable storages that autograd packs as fp32 only.

    Args:
        trace: of the step
    """
    kinds: dict[int, set[str]] = {}
    for tick in trace.packs:
        kinds.setdefault(tick.storage, set()).add(tick.view.dtype)
    return frozenset(one.number for one in trace.movable if kinds.get(one.number) == {"float32"})
