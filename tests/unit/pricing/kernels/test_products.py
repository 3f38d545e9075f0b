import numpy
import pytest

from trimaran.pricing.kernels.durations import Tiling, product_seconds


def _one(value: float) -> numpy.ndarray:
    return numpy.array([float(value)])


def _tiling(processors: float, *, rounding: float = 1.0, depth: float = 0.0, fill_s: float = 0.0) -> Tiling:
    return Tiling(
        bytes_per_s=_one(1e30),
        multiprocessors=_one(processors),
        intensity=_one(0.0),
        depth=depth,
        fill_s=fill_s,
        rounding=rounding,
    )


def _seconds(m: float, n: float, k: float, tiling: Tiling) -> float:
    return float(product_seconds(_one(m), _one(n), _one(k), _one(1), _one(1e12), tiling)[0])


def test_a_product_of_whole_tiles_takes_its_operations_over_the_peak() -> None:
    """512 × 512 × 1024: 2 × 2^28 = 536,870,912 FLOP on 16 processors, one tile of 128 × 128 each: 0.537 ms at 10^12."""
    assert _seconds(512, 512, 1024, _tiling(16)) == pytest.approx(536_870_912 / 1e12)


def test_what_sticks_out_of_a_tile_is_computed_too() -> None:
    """One row more than the largest of many small tiles holds: 33 rows of 32 take as long as 64."""
    assert _seconds(33, 32, 4096, _tiling(2)) == pytest.approx(_seconds(64, 32, 4096, _tiling(2)))


def test_the_last_wave_is_rounded_up_as_far_as_asked() -> None:
    """17 tiles of 32 × 32 of depth 1 on 16 processors: 2 waves rounded up, 17/16 not; the tile takes 2,048 FLOP."""
    tile_s = 2 * 32 * 32 / (1e12 / 16)
    assert _seconds(17 * 32, 32, 1, _tiling(16, rounding=1.0)) == pytest.approx(2 * tile_s)
    assert _seconds(17 * 32, 32, 1, _tiling(16, rounding=0.0)) == pytest.approx(17 / 16 * tile_s)


def test_a_deep_product_with_a_small_result_is_split() -> None:
    """32 × 32 × 65,536 is one tile; in 64 parts it keeps 64 of 80 processors busy and takes a 64th."""
    alone = 2 * 32 * 32 * 65_536 / (1e12 / 80)
    assert _seconds(32, 32, 65_536, _tiling(80)) == pytest.approx(alone / 64)


def test_filling_costs_once_a_wave() -> None:
    plain, filled = _seconds(64, 64, 64, _tiling(64)), _seconds(64, 64, 64, _tiling(64, fill_s=1e-6))
    assert filled - plain == pytest.approx(1e-6, rel=1e-6)
