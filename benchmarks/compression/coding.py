"""Coding of offloaded storages: fewer bytes on the link, for time on the device.

Whether coding is worth its time is a matter of two rates. To copy b bytes takes b / B; coded to a part 1/r of them at a
rate K, b / K + b / (r B). So

    coding pays where K > B / (1 - 1/r)

For r = 2.6 that is 1.6 times the link. Copies between two parts of one memory, as on a CPU, are faster than any coding
in plain operations, and it never pays there. A GPU that codes with ordinary operations reads and writes each byte
several times (`pricing.copy_codecs.GPU_PASSES`), at the rate of its memory: with PCIe it pays if those operations are
not in the way, with NVLink-C2C hardly. The output of a ReLU can often be recomputed from its input in two passes: then
nothing need be copied at all, and recomputing is cheaper than coding.

How many bytes of a real step remain when the outputs of ReLU are coded, storage by storage.

Zeros depend on data and on how far a network is trained, so a ratio is measured in a step of the job at hand. A step is
recorded for its trace; a second one on the same batch shows each packed storage to a codec. Nothing is kept.

How far any exact code of single words can get is counted too: with z the share of words that are zero bits, and H the
entropy of the bit that tells them apart and of each of the four bytes of the others,

    bits a word >= H(z) + (1 - z) * (H(byte 0) + H(byte 1) + H(byte 2) + H(byte 3))

The three lower bytes of a float are noise of nearly 8 bits each: z decides.

Source:
    Rhu et al., "Compressing DMA Engine", HPCA 2018: 2.6 times fewer bytes on average for trained networks on ImageNet,
    with an engine in hardware next to the link.
"""

import lzma
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from trimaran.base.errors import ExecutionError
from trimaran.graph.trace.record import Recorder
from trimaran.graph.trace.types import StepTrace, View
from trimaran.memory_hooks.coding import Bytes, Codec, CodecTraffic, Coding, SparseCodec, bytes_at
from trimaran.pricing.copy_codecs import after_relu


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


MakeCodec = Callable[[], Codec]


def measure_coding(
    step: Callable[[], Any], model: torch.nn.Module | None = None, *, make_codec: MakeCodec = SparseCodec
) -> tuple[StepTrace, Mapping[int, CodecTraffic]]:
    """Code what comes after a ReLU in a step.

    Args:
        step: a forward and its backward on the CPU, the same operations each time
        model: for names of modules
        make_codec: makes a codec for each storage

    Returns:
        The trace of the step, and what was coded by number of the storage.

    Raises:
        ExecutionError: the step packs other tensors the second time
    """
    with Recorder(model) as recorder:
        step()
    trace = recorder.recording.trace
    wanted = after_relu(trace)
    found: dict[int, CodecTraffic] = {}
    packs = iter(trace.packs)

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        tick = next(packs, None)
        if tick is None or tuple(tensor.shape) != tick.view.shape:
            raise ExecutionError(
                "the step packs other tensors than when it was recorded: give one that runs the same operations each "
                "time, on another batch",
                code="compression.step-changed",
            )
        if tick.storage in wanted and tick.storage not in found:
            codec = make_codec()
            storage = tensor.untyped_storage()
            device = bytes_at(storage.data_ptr(), storage.nbytes())
            Coding(codec).save(device, np.empty_like(device))
            found[tick.storage] = codec.traffic
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        step()
    return trace, found


@dataclass(slots=True)
class Counting:
    """A codec that codes nothing and counts the words of one storage, for the limit of any exact code of single words.

    Attributes:
        words: of four bytes, how many
        zeros: of them, with no bit set
        bytes_of: of the others, how often each byte has each value; the most significant byte first
        packed_bytes: of `lzma` on the bits of zeros and on each of the four bytes, all words together [bytes]
    """

    name: str = "counting"
    traffic: CodecTraffic = field(default_factory=CodecTraffic)
    words: int = 0
    zeros: int = 0
    bytes_of: np.ndarray = field(default_factory=lambda: np.zeros((4, 256), dtype=np.int64))
    packed_bytes: int = 0

    def takes(self, views: Sequence[View], start: int) -> bool:
        return True

    def encode(self, source: Bytes, target: Bytes) -> int:
        each = source.reshape(-1, 4)[:, ::-1]
        kept = each[each.any(axis=1)]
        self.words += len(each)
        self.zeros += len(each) - len(kept)
        planes = [np.ascontiguousarray(kept[:, place]) for place in range(4)]
        for place, plane in enumerate(planes):
            self.bytes_of[place] += np.bincount(plane, minlength=256)
        for plane in (np.packbits(each.any(axis=1)), *planes):
            self.packed_bytes += min(len(plane), len(lzma.compress(plane.tobytes(), preset=1)))
        return 0

    def decode(self, source: Bytes, target: Bytes) -> None:
        raise AssertionError("it codes nothing")

    @property
    def plane_bits(self) -> list[float]:
        """Entropy of each byte of a word that is not zero, the most significant first [bits]."""
        return [entropy(counts) for counts in self.bytes_of]

    @property
    def bits(self) -> float:
        """Least bits of all words by any exact code of single words."""
        kept = self.words - self.zeros
        return self.words * entropy([self.zeros, kept]) + kept * sum(self.plane_bits)


def entropy(counts: Sequence[int] | np.ndarray) -> float:
    """Of how often each of some values occurs [bits].

    Args:
        counts: of each value

    Example:
        >>> entropy([1, 1, 1, 1]), entropy([5, 0])
        (2.0, 0.0)
    """
    whole = float(sum(counts))
    return sum(-count / whole * math.log2(count / whole) for count in counts if count) + 0.0


def zeros_needed(ratio: float, plane_bits: float) -> float:
    """Share of zeros from which an exact code of single words can reach a ratio [0..1].

    Args:
        ratio: how many times fewer bytes
        plane_bits: entropy of a word that is not zero [bits]

    Example:
        >>> round(zeros_needed(2.6, 26.0), 3)
        0.565
    """
    low, high = 0.5, 1.0
    while high - low > 1e-9:
        share = (low + high) / 2
        bits = entropy([share, 1.0 - share]) + (1.0 - share) * plane_bits  # type: ignore[list-item]  # shares are counts
        low, high = (share, high) if bits > 32.0 / ratio else (low, share)
    return high


def total(traffic: Mapping[int, CodecTraffic]) -> CodecTraffic:
    """All of it together."""
    return CodecTraffic(
        raw_bytes=sum(one.raw_bytes for one in traffic.values()),
        coded_bytes=sum(one.coded_bytes for one in traffic.values()),
    )
