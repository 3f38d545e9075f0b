"""Codes offloaded bytes, so that fewer cross the link to the host. Nothing is coded unless a user asks for it.

A codec codes each chunk of a slot separately. A chunk that would not get smaller stays as it is, so a code never needs
more room than its slot has. A slot on the host keeps its full size: coding saves bytes on the link, not on the host.

Two codecs can be named. "bf16" rounds fp32 to 16 bits, so it is taken only where a user names it. The sparse codec
keeps a bit for each word, and the words that are not all zero bits: for activations after a ReLU, exact.

    word      0    1.5  0    0    -0.0 2.5  0    NaN        8 words of 4 bytes become 1 byte of bits and 4
    bit       0    1    0    0    1    1    0    1          words, 17 bytes in place of 32
    kept           1.5            -0.0 2.5       NaN

Bits decide what is zero, not values: -0.0 and NaN come back as they were.

The copy threads of a CPU do the coding. On a GPU it would need a kernel that packs without telling the host how much
came out; what such a kernel has to reach for it to pay is in `pricing.copy_codecs`.
"""

import ctypes
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from trimaran.base.errors import InputError
from trimaran.graph.trace.types import View

Bytes = NDArray[np.uint8]

CHUNK_BYTES = 1 << 20


class Codec(Protocol):
    """Codes chunks of bytes.

    Attributes:
        name: as one asks for it
        traffic: bytes into and out of it
    """

    name: str
    traffic: "CodecTraffic"

    def takes(self, views: Sequence[View], start: int) -> bool:
        """Whether it can code a storage.

        Args:
            views: how packed tensors look at it
            start: byte of the storage at which the copy starts [bytes]
        """

    def encode(self, source: Bytes, target: Bytes) -> int:
        """Code a chunk.

        Args:
            source: the chunk
            target: where the code goes; as long as the chunk

        Returns:
            Length of the code [bytes]; 0: it would not be shorter, and nothing is written.
        """

    def decode(self, source: Bytes, target: Bytes) -> None:
        """Undo `encode`.

        Args:
            source: the code
            target: where the chunk goes
        """


@dataclass(slots=True)
class CodecTraffic:
    """Bytes into and out of a codec.

    Attributes:
        raw_bytes: given [bytes]
        coded_bytes: came out [bytes]
    """

    raw_bytes: int = 0
    coded_bytes: int = 0

    @property
    def ratio(self) -> float:
        """Compression ratio; 1 where nothing was coded."""
        return self.raw_bytes / self.coded_bytes if self.coded_bytes else 1.0


class _ChunkCode(NamedTuple):
    """Place of the code of a chunk in the slot; a chunk that could not be coded is its code."""

    start: int
    stop: int
    length: int
    coded: bool


class Coding:
    """The coded chunks of one slot.

    Args:
        codec: codes chunks

    Attributes:
        nbytes: what crossed the link when it was saved [bytes]
    """

    __slots__ = ("_chunks", "_codec", "nbytes")

    _guard = threading.Lock()

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._chunks: tuple[_ChunkCode, ...] = ()
        self.nbytes = 0

    def save(self, device: Bytes, host: Bytes) -> None:
        """Code what is on the device into the slot.

        Args:
            device: bytes of the storage
            host: bytes of the slot, as many
        """
        chunks, place = [], 0
        for start in range(0, len(device), CHUNK_BYTES):
            chunk = device[start : start + CHUNK_BYTES]
            length = self._codec.encode(chunk, host[place : place + len(chunk)])
            if not length:
                host[place : place + len(chunk)] = chunk
            chunks.append(_ChunkCode(place, place + (length or len(chunk)), len(chunk), bool(length)))
            place = chunks[-1].stop
        self._chunks, self.nbytes = tuple(chunks), place
        with self._guard:
            self._codec.traffic.raw_bytes += len(device)
            self._codec.traffic.coded_bytes += place

    def load(self, host: Bytes, device: Bytes) -> None:
        """The way back."""
        start = 0
        for chunk in self._chunks:
            target = device[start : start + chunk.length]
            if chunk.coded:
                self._codec.decode(host[chunk.start : chunk.stop], target)
            else:
                target[:] = host[chunk.start : chunk.stop]
            start += chunk.length


def bytes_at(address: int, nbytes: int) -> Bytes:
    """Memory as an array that shares it; whoever asks keeps that memory alive.

    Args:
        address: of its first byte
        nbytes: size [bytes]
    """
    shared: Bytes = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(address))
    return shared


class SparseCodec:
    """A bit for each word, and the words that are not all zero bits.

    Args:
        word_bytes: 4 for float32, 2 for half precisions

    Example:
        >>> from trimaran.memory_hooks.coding import Coding
        >>> codec, host, back = SparseCodec(), np.empty(256, np.uint8), np.empty(256, np.uint8)
        >>> device = np.array([0.0, -0.0, 3.0, 0.0] * 16, np.float32).view(np.uint8)
        >>> coding = Coding(codec)
        >>> coding.save(device, host), coding.load(host, back)
        (None, None)
        >>> coding.nbytes, bool((back == device).all())  # 64 bits, and 32 words
        (136, True)
    """

    name = "sparse"

    def __init__(self, word_bytes: int = 4) -> None:
        if word_bytes not in _WORDS:
            raise InputError(
                f"words have 1, 2, 4 or 8 bytes, not {word_bytes}", code="codec.bad-word-size", word_bytes=word_bytes
            )
        self._word = _WORDS[word_bytes]
        self.traffic = CodecTraffic()

    def takes(self, views: Sequence[View], start: int) -> bool:
        """Always: what has few zeros stays as it is."""
        return True

    def encode(self, source: Bytes, target: Bytes) -> int:
        """Bits, then words, then the bytes after the last whole word."""
        size = self._word.itemsize
        whole = len(source) // size * size
        words = source[:whole].view(self._word)
        present = words != 0
        bits = -(-len(words) // 8)
        middle = bits + int(np.count_nonzero(present)) * size
        length = middle + len(source) - whole
        if length >= len(source):
            return 0
        target[:bits] = np.packbits(present)
        target[bits:middle] = words[present].view(np.uint8)
        target[middle:length] = source[whole:]
        return length

    def decode(self, source: Bytes, target: Bytes) -> None:
        """Words into their places, zeros between them."""
        size = self._word.itemsize
        count = len(target) // size
        bits, whole = -(-count // 8), count * size
        middle = len(source) - (len(target) - whole)
        words = np.zeros(count, self._word)
        words[np.unpackbits(source[:bits], count=count).view(np.bool_)] = np.frombuffer(
            source[bits:middle].tobytes(), self._word
        )
        target[:whole] = words.view(np.uint8)
        target[whole:] = source[middle:]


class Bf16Codec:
    """The upper half of each fp32 value, rounded to the nearest, ties to even: bfloat16. Not exact.

    NaN stays NaN, infinities stay; values above the largest bfloat16 become infinite, as in any conversion.

    Example:
        >>> from trimaran.memory_hooks.coding import Coding
        >>> codec, host, back = Bf16Codec(), np.empty(16, np.uint8), np.empty(16, np.uint8)
        >>> coding = Coding(codec)
        >>> coding.save(np.array([1.0, -2.5, 1.0039, 0.0], np.float32).view(np.uint8), host), coding.load(host, back)
        (None, None)
        >>> coding.nbytes, back.view(np.float32).tolist()
        (8, [1.0, -2.5, 1.0, 0.0])
    """

    name = "bf16"

    def __init__(self) -> None:
        self.traffic = CodecTraffic()

    def takes(self, views: Sequence[View], start: int) -> bool:
        """Where all that is seen of a storage is fp32."""
        return start % 4 == 0 and all(view.dtype == "float32" for view in views)

    def encode(self, source: Bytes, target: Bytes) -> int:
        """Two bytes for each four; what is no whole value stays as it is."""
        if not len(source) or len(source) % 4:
            return 0
        length = len(source) // 2
        rounded = torch.from_numpy(source).view(torch.float32).to(torch.bfloat16)
        target[:length] = rounded.view(torch.uint8).numpy()
        return length

    def decode(self, source: Bytes, target: Bytes) -> None:
        """Zeros for the lower half."""
        halves = torch.from_numpy(np.frombuffer(source.tobytes(), np.uint8).copy()).view(torch.bfloat16)
        target[:] = halves.to(torch.float32).view(torch.uint8).numpy()


CODECS: Mapping[str, Callable[[], Codec]] = {"sparse": SparseCodec, "bf16": Bf16Codec}
"""Codecs that a plan may name."""

_WORDS: Mapping[int, np.dtype[np.unsignedinteger]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
