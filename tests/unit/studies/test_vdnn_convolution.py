"""Workspaces and speeds of convolutions."""

import pytest

from trimaran_studies.reproduce.vdnn_dynamic import SLOWER, Algorithm, Convolution

SPECTRUM_BYTES = 32 * 17 * 8


def convolution(**changes: int | bool) -> Convolution:
    shape = {"batch": 2, "inputs": 16, "outputs": 32, "height": 28, "width": 28, "window": 3} | changes
    return Convolution(**shape)


def test_one_tile_holds_spectra_of_both_sides_and_of_the_weights():
    assert convolution().workspace_bytes == (2 * 16 + 2 * 32 + 16 * 32) * SPECTRUM_BYTES


def test_many_tiles_hold_spectra_of_what_goes_in_and_of_the_weights():
    """Tiles of 32 with windows of 3 advance by 30: 56 places take 2 of them each way."""
    assert convolution(height=56, width=56).workspace_bytes == (2 * 16 * 4 + 16 * 32) * SPECTRUM_BYTES


@pytest.mark.parametrize(
    "changes",
    [{"strided": True}, {"window": 1}, {"inputs": 3}, {"height": 14, "width": 14}, {"groups": 2}],
    ids=["strided", "window 1", "too few channels", "tile mostly empty", "too few channels in a group"],
)
def test_where_fft_does_not_apply_there_is_no_workspace_and_no_loss(changes: dict[str, int | bool]):
    shape = convolution(**changes)
    assert shape.workspace_bytes == 0
    assert shape.slowdown(Algorithm.MEMORY) == 1.0


def test_the_memory_optimal_algorithm_is_slower_where_fft_applies():
    assert convolution().slowdown(Algorithm.MEMORY) == SLOWER
    assert convolution().slowdown(Algorithm.PERFORMANCE) == 1.0
