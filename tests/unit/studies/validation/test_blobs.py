"""Caffe's sum of outputs, on a network small enough to add up by hand."""

from trimaran_studies.validation.memory_traced import blob_bytes


def test_alexnet_counts_every_output_and_those_written_in_place_again() -> None:
    """Convolutions and their ReLU, poolings, three dense layers of which two have a ReLU; images once."""
    outputs = (
        2 * 64 * 55 * 55
        + 64 * 27 * 27
        + 2 * 192 * 27 * 27
        + 192 * 13 * 13
        + 2 * (384 + 256 + 256) * 13 * 13
        + 256 * 6 * 6
        + 2 * 4096
        + 2 * 4096
        + 1000
    )
    assert blob_bytes("alexnet", batch=2, images=False) == outputs * 4 * 2
    assert blob_bytes("alexnet", batch=2, images=True) == (outputs + 3 * 224 * 224) * 4 * 2
