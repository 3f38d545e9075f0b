"""How the bytes of a slot are coded: chunk by chunk, each for itself, by a codec.

A chunk that would not get smaller stays as it is. So what is coded never needs more room than a slot has. A slot on the
host keeps its full size: coding takes bytes off the link, not off the host's memory.
"""

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from trimaran.graph.trace.types import View

Bytes = NDArray[np.uint8]

CHUNK_BYTES = 1 << 20


class Codec(Protocol):
    """Codes chunks of bytes.

    Attributes:
        name: as one asks for it
        traffic: what it was given, and what came out
    """

    name: str
    traffic: "Traffic"

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
class Traffic:
    """What a codec was given, and what came out.

    Attributes:
        raw_bytes: given [bytes]
        coded_bytes: came out [bytes]
    """

    raw_bytes: int = 0
    coded_bytes: int = 0

    @property
    def ratio(self) -> float:
        """How many times fewer bytes; 1 where nothing was coded."""
        return self.raw_bytes / self.coded_bytes if self.coded_bytes else 1.0


class _Chunk(NamedTuple):
    """Where the code of a chunk lies in the slot; the code of what could not be coded is the chunk itself."""

    start: int
    stop: int
    length: int
    coded: bool


class Coding:
    """How the bytes of one slot are coded.

    Args:
        codec: codes chunks

    Attributes:
        nbytes: what crossed the link when it was saved [bytes]
    """

    __slots__ = ("_chunks", "_codec", "nbytes")

    _guard = threading.Lock()

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._chunks: tuple[_Chunk, ...] = ()
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
            chunks.append(_Chunk(place, place + (length or len(chunk)), len(chunk), bool(length)))
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
