"""Codes what is offloaded, so that fewer bytes cross the link to the host. Nothing is coded unless someone asks for it.

    sparse    exact    a bit for each word, and the words that are not all zero bits; for what comes after a ReLU
    bf16      lossy    float32 rounded to bfloat16: half the bytes, and other gradients

    word      0    1.5  0    0    -0.0 2.5  0    NaN        "sparse": 8 words of 4 bytes become 1 byte of bits and 4
    bit       0    1    0    0    1    1    0    1          words, 17 bytes in place of 32
    kept           1.5            -0.0 2.5       NaN

Bits decide what is zero, not values: -0.0 and NaN come back as they were.

The copy threads of a CPU do the coding. On a GPU it would need a kernel that packs without telling the host how much
came out; what such a kernel has to reach for it to pay is in `costs.compression`.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

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
    exact = True

    def __init__(self, word_bytes: int = 4) -> None:
        if word_bytes not in _WORDS:
            raise InputError(f"words have 1, 2, 4 or 8 bytes, not {word_bytes}", word_bytes=word_bytes)
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


class Bf16Codec:
    """float32 rounded to bfloat16, to the nearest and ties to even. Gradients are not those of plain autograd.

    Example:
        >>> from trimaran.runtime.memory.coding import Coding
        >>> codec, host, back = Bf16Codec(), np.empty(8, np.uint8), np.empty(8, np.uint8)
        >>> coding = Coding(codec)
        >>> coding.save(np.array([1.5, 3.14159], np.float32).view(np.uint8), host), coding.load(host, back)
        (None, None)
        >>> coding.nbytes, back.view(np.float32).tolist()
        (4, [1.5, 3.140625])
    """

    name = "bf16"
    exact = False

    def __init__(self) -> None:
        self.traffic = Traffic()

    def takes(self, views: Sequence[View], start: int) -> bool:
        """Storages that are float32 and nothing else."""
        return bool(views) and start % 4 == 0 and all(view.dtype == "float32" for view in views)

    def encode(self, source: Bytes, target: Bytes) -> int:
        """Half the bytes."""
        if len(source) % 4:
            return 0
        rounded = torch.from_numpy(source.view(np.float32)).to(torch.bfloat16)
        target[: len(source) // 2] = rounded.view(torch.uint8).numpy()
        return len(source) // 2

    def decode(self, source: Bytes, target: Bytes) -> None:
        """Widen."""
        rounded = torch.from_numpy(np.frombuffer(source.tobytes(), np.int16).copy()).view(torch.bfloat16)
        target[:] = rounded.to(torch.float32).view(torch.uint8).numpy()


_WORDS: Mapping[int, np.dtype[np.unsignedinteger]] = {size: np.dtype(f"u{size}") for size in (1, 2, 4, 8)}
