"""Time of a product of matrices on units that compute it tile by tile.

A product `m × n × k` is split into tiles of its result, and each tile is one multiprocessor's work:

    tiles = ceil(m / tile rows) × ceil(n / tile columns)             partial tiles are computed in full
    waves = tiles / multiprocessors, at least 1                      and partly rounded up
    time  = waves × (tile's FLOP over depth k + overhead / rate + fill)
    rate  = peak / multiprocessors × I / (I + I0)                    I: operations for each element the tile reads

Overhead and fill are the cost of filling and draining a tile's pipeline, in work and in waiting. The bytes that a
multiprocessor reads in a cycle have stayed the same over generations, its operations have grown, so `I0` is in
proportion to its peak and to the size of an element.

Small tiles fill a device that large ones leave idle, but read more for each operation. Where the result has few tiles
and the depth is large, as in weight gradients, the depth is split and the parts are added in memory. A library tries
the tiles that it has; we take the fastest. Left out: choices of a library that are not the best, which are in the
efficiency, and swizzles that keep tiles in a cache.
"""

from dataclasses import dataclass

import numpy

from trimaran.pricing.kernels.columns import Column

TILES = ((256, 128), (128, 128), (128, 64), (64, 64), (64, 32), (32, 32))
"""Tiles of a result, in elements. Source: those of cuBLAS and CUTLASS kernels, by the names in their profiles."""

SPLITS = (1, 2, 4, 8, 16, 32, 64)
"""In how many parts a library splits the depth."""

PARTIAL_BYTES = 8.0
"""A partial result in float32, written and read once [bytes]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiling:
    """The device and the constants of its tiles.

    Attributes:
        bytes_per_s: of the device's memory, for partial results [bytes/s]
        multiprocessors: of the device
        intensity: `I0`, the operations for an element at which a tile runs at half the rate
        depth: work of filling and draining, as a depth
        fill_s: wait for filling and draining [s]
        rounding: how much of the last wave's idle time is lost [0..1]
    """

    bytes_per_s: Column
    multiprocessors: Column
    intensity: Column
    depth: float
    fill_s: float
    rounding: float


def product_seconds(m: Column, n: Column, k: Column, count: Column, flops_per_s: Column, tiling: Tiling) -> Column:
    """Time that the units need for products, were their operands at hand.

    Args:
        m: rows
        n: columns
        k: depth
        count: products of that shape, at once
        flops_per_s: highest sustained rate of the units [FLOP/s]
        tiling: of the device

    Returns:
        Time of each [s].
    """
    best = numpy.full(numpy.broadcast(m, n, k, flops_per_s).shape, numpy.inf)
    processors = tiling.multiprocessors
    for rows, columns in TILES:
        reads = rows * columns / (rows + columns)
        rate = flops_per_s / processors * reads / (reads + tiling.intensity)
        upright = numpy.ceil(m / rows) * numpy.ceil(n / columns)
        lying = numpy.ceil(m / columns) * numpy.ceil(n / rows)
        tiles = numpy.minimum(upright, lying) * count
        for splits in SPLITS:
            load = tiles * splits / processors
            waves = numpy.maximum(1.0, load + tiling.rounding * (numpy.ceil(load) - load))
            tile_s = 2.0 * rows * columns * (numpy.ceil(k / splits) + tiling.depth) / rate + tiling.fill_s
            seconds = waves * tile_s
            if splits > 1:
                seconds = seconds + PARTIAL_BYTES * m * n * count * splits / tiling.bytes_per_s
            best = numpy.minimum(best, seconds)
    return best
