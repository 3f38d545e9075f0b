"""Questions that have no answer are refused with what to ask instead."""

import pytest
from tests.raising import raises

from trimaran.features.crossover.find import find_crossover
from trimaran.features.crossover.request import check_request, counts_of, machine_for


def test_a_machine_without_a_number_of_nodes_has_as_many_as_are_needed() -> None:
    name, machine = machine_for("dgx1-v100@ethernet-25g", 1024)
    assert (name, machine.nodes, machine.devices) == ("dgx1-v100:128@ethernet-25g", 128, 1024)
    assert machine_for("dgx1-v100", 8)[0] == "dgx1-v100"


def test_a_counted_machine_stays_as_it_is() -> None:
    with raises("crossover.too-few-devices", match=r'\b16\b.*"dgx1-v100:8"', cluster="dgx1-v100:2", devices=64):
        machine_for("dgx1-v100:2", 64)


def test_fewer_devices_than_a_worker_has() -> None:
    with raises("crossover.width-does-not-divide", match=r"\b2\b.*\b4\b", width=8):
        check_request((2, 4), (2, 4, 8))


def test_counts_that_have_no_equal_workers_are_left_out() -> None:
    assert counts_of((6, 8, 12), 4) == (8, 12)


def test_batches_beyond_the_curve_are_tried_on_request_alone() -> None:
    """A worker of 8 has at most 256 samples, 4 times the job's; the curve begins at 1,632, and `plan` begins there."""
    with raises("crossover.beyond-curve", match=r"\b1632\b.*--local-batch", width=8):
        find_crossover("resnet50", cluster="dgx1-v100", devices=8, widths=(8,), curve="resnet50")


@pytest.mark.parametrize(
    ("widths", "batch", "code"), [((1, 2), None, "crossover.width-too-small"), ((2,), 0, "crossover.empty-worker")]
)
def test_widths_and_batches_that_mean_nothing(widths: tuple[int, ...], batch: int | None, code: str) -> None:
    with raises(code):
        check_request((8,), widths, batch)
