"""A label that is no class of the output is a fault of the data, told with its sample and value."""

import pytest
import torch
from tests.raising import raises

from trimaran.user_code.batches import check_labels


@pytest.mark.parametrize(
    ("shape", "place", "label"),
    [((4, 10), (2,), 10), ((4, 10), (0,), -1), ((2, 5, 3), (1, 2), 7), ((2, 5, 3, 3), (1, 0, 2), 255)],
)
def test_a_label_out_of_range_is_told_with_its_sample(
    shape: tuple[int, ...], place: tuple[int, ...], label: int
) -> None:
    output = torch.zeros(shape)
    expected = torch.zeros((shape[0], *shape[2:]), dtype=torch.int64)
    expected[(0,) * expected.dim()] = -100 if any(place) else 0
    check_labels(output, expected)
    expected[place] = label
    with raises("loss.label-out-of-range", match=f"sample {place[0]} .* label {label}, .* {shape[1]} classes"):
        check_labels(output, expected)


def test_what_has_no_classes_is_left_alone() -> None:
    for expected in (torch.full((4, 10), 99.0), torch.full((4, 10), 99), "text", None):
        check_labels(torch.zeros(4, 10), expected)
