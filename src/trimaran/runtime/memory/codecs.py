"""Codes what is offloaded, so that fewer bytes cross the link to the host. Nothing is coded unless someone asks for it.

A bit for each word, and the words that are not all zero bits: for what comes after a ReLU, and exact.

    word      0    1.5  0    0    -0.0 2.5  0    NaN        8 words of 4 bytes become 1 byte of bits and 4
    bit       0    1    0    0    1    1    0    1          words, 17 bytes in place of 32
    kept           1.5            -0.0 2.5       NaN

Bits decide what is zero, not values: -0.0 and NaN come back as they were.

The copy threads of a CPU do the coding. On a GPU it would need a kernel that packs without telling the host how much
came out; what such a kernel has to reach for it to pay is in `costs.compression`.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from trimaran.errors import InputError
from trimaran.graph.trace.types import View
from trimaran.runtime.memory.coding import Bytes, Traffic


class SparseCodec:
    """A bit for each word, and the words that are not all zero bits.

    Args:
        word_bytes: 4 for float32, 2 for half precisions

    Example:
        >>> from trimaran.runtime.memory.coding import Coding
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
        self.traffic = Traffic()

    def takes(self, views: Sequence[View], start: int) -> bool:
        """Always: what has few zeros stays as it is."""
        return True

    def encode(self, source: Bytes, target: Bytes) -> int:
        """Bits, then words, then what is left beside whole words."""
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


_WORDS: Mapping[int, np.dtype[np.unsignedinteger]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
