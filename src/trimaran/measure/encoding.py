"""What a rank's thread does for a compressed bucket of gradients, while every rank does the same.

    encode    from a complete bucket to what goes on the wire
    decode    from the sums to the bucket, with what PowerSGD computes between its two sums

The codecs are those of the runtime, without a process group: what a codec does takes as long whatever the sums are. Of
PowerSGD one matrix is the unit. Buckets are taken in turn from more memory than most caches hold, as the gradients of a
backward and the errors of the step before are.

Runs inside the ranks; imports torch.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle

import torch
import torch.distributed as dist

from trimaran.costs.tables import Curve, CurveKey
from trimaran.costs.wire import coding_keys
from trimaran.measure.links import synchronize
from trimaran.measure.samples import Rounds, summarize
from trimaran.program.compression import Compression
from trimaran.runtime.compression import Codec, open_codec
from trimaran.runtime.world import World

SIZES = (4 * 1024, 64 * 1024, 1024 * 1024, 4 * 1024 * 1024, 16 * 1024 * 1024)
"""Sizes of a bucket, and of a matrix with PowerSGD [bytes]."""

ROUNDS = 3
_BOX_S = 0.03
_LEAST_REPEATS, _MOST_REPEATS = 3, 20
_WARM_UP = 2
_MATRICES = 4
_MOST_BYTES = 16 * 1024 * 1024
_COLD_BYTES = 32 * 1024 * 1024
_NUMBER_BYTES = 4

_Pass = Callable[[], tuple[float, float]]


def measure_encoding(
    world: World, compressions: Sequence[Compression], *, sizes: Sequence[int] = SIZES
) -> dict[CurveKey, Curve]:
    """Time the encoding and the decoding of each of some compressions.

    Args:
        world: this rank; all ranks call this with the same compressions
        compressions: how gradients may be sent
        sizes: of a bucket, or a matrix, ascending [bytes]

    Returns:
        The curves of rank 0, on every rank.
    """
    places = [(number, nbytes) for number in range(len(compressions)) for nbytes in sizes]
    found: dict[tuple[int, int], tuple[Rounds, Rounds]] = {place: ([], []) for place in places}
    for _ in range(ROUNDS):
        for number, nbytes in places:
            encodes, decodes = _measure_size(world, compressions[number], nbytes)
            found[number, nbytes][0].append(encodes)
            found[number, nbytes][1].append(decodes)
    how = f"{ROUNDS} rounds, {world.size} busy"
    curves: dict[CurveKey, Curve] = {}
    for number, compression in enumerate(compressions):
        for part, key in enumerate(coding_keys(compression)):
            curves[key] = tuple((size, summarize(found[number, size][part], how=how)) for size in sizes)
    return _of_rank_0(curves, world)


def _measure_size(world: World, compression: Compression, nbytes: int) -> tuple[list[float], list[float]]:
    """Durations of encoding and decoding buckets, or matrices, of one size [s, s]."""
    units = max(1, min(_MATRICES, _MOST_BYTES // nbytes)) if compression.method == "powersgd" else 1
    passes = _passes(world, compression, nbytes, units)
    _together(world)
    for _ in range(_WARM_UP):
        next(passes)()
    seconds = sum(next(passes)())
    repeats = max(_LEAST_REPEATS, min(_MOST_REPEATS, int(_BOX_S / max(seconds, 1e-6))))
    _together(world)
    times = [next(passes)() for _ in range(repeats)]
    return [encode_s / units for encode_s, _ in times], [decode_s / units for _, decode_s in times]


def _passes(world: World, compression: Compression, nbytes: int, units: int) -> Iterator[_Pass]:
    """Encodings of one bucket after another, each with its own errors."""
    codec = open_codec(compression, replicas=max(2, world.size), seed=0)
    rows = _rows(nbytes) if compression.method == "powersgd" else 1
    columns = max(1, nbytes // _NUMBER_BYTES // rows)
    places = max(1, min(_COLD_BYTES // (units * nbytes), _MOST_REPEATS))
    generator = torch.Generator().manual_seed(world.rank)
    made = []
    for _ in range(places):
        parameters = [torch.empty(rows, columns, device=world.device) for _ in range(units)]
        gradients = torch.randn(units * rows * columns, generator=generator).to(world.device)
        made.append((gradients, parameters))
    return cycle([_pass(world, codec, gradients, parameters) for gradients, parameters in made])


def _pass(world: World, codec: Codec, gradients: torch.Tensor, parameters: Sequence[torch.Tensor]) -> _Pass:
    def run() -> tuple[float, float]:
        synchronize(world)
        start_s = time.perf_counter()
        rounds = codec.rounds(gradients, parameters)
        next(rounds)
        synchronize(world)
        encoded_s = time.perf_counter()
        for _ in rounds:
            pass
        synchronize(world)
        return encoded_s - start_s, time.perf_counter() - encoded_s

    return run


def _rows(nbytes: int) -> int:
    """Rows of a matrix that is a square, or nearly.

    Example:
        >>> _rows(4096), _rows(8192)
        (32, 32)
    """
    numbers = max(1, nbytes // _NUMBER_BYTES)
    return 1 << ((numbers.bit_length() - 1) // 2)


def _together(world: World) -> None:
    if world.size > 1:
        dist.barrier()


def _of_rank_0(curves: dict[CurveKey, Curve], world: World) -> dict[CurveKey, Curve]:
    if world.size == 1:
        return curves
    shared = [curves]
    dist.broadcast_object_list(shared, src=0)
    return shared[0]
