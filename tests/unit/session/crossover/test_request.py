"""Questions that have no answer are refused with what to ask instead."""

import pytest
from tests import builders

from trimaran.errors import InputError
from trimaran.session.crossover.request import check_request, counts_of, machine_for


def test_a_machine_without_a_number_of_nodes_has_as_many_as_are_needed() -> None:
    name, machine = machine_for("dgx1-v100@ethernet-25g", 1024)
    assert (name, machine.nodes, machine.devices) == ("dgx1-v100:128@ethernet-25g", 128, 1024)
    assert machine_for("dgx1-v100", 8)[0] == "dgx1-v100"


def test_a_counted_machine_stays_as_it_is() -> None:
    with pytest.raises(InputError, match='"dgx1-v100:2" has 16 devices, and 64 are asked for: ask for "dgx1-v100:8"'):
        machine_for("dgx1-v100:2", 64)


def test_fewer_devices_than_a_worker_has() -> None:
    with pytest.raises(InputError, match="workers of 8 devices need a multiple of 8 devices, got 2, 4"):
        check_request(builders.crossover_request(cluster="dgx1-v100", devices=(2, 4)))


def test_counts_that_have_no_equal_workers_are_left_out() -> None:
    assert counts_of((6, 8, 12), 4) == (8, 12)


@pytest.mark.parametrize(
    ("widths", "batch", "message"), [((1, 2), None, "two devices or more"), ((2,), 0, "at least one sample")]
)
def test_widths_and_batches_that_mean_nothing(widths: tuple[int, ...], batch: int | None, message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_request(builders.crossover_request(cluster="dgx1-v100", devices=(8,), widths=widths, local_batch=batch))
