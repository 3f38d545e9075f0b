"""What is left of a link to the host when several devices copy at once."""

import numpy
import pytest
from tests.raising import raises

from trimaran.machine.catalog import find_device
from trimaran.pricing.machine_transfers import sharing_device
from trimaran.pricing.offload_costs import MemoryCosts


def test_a_device_that_shares_keeps_everything_but_its_copies() -> None:
    alone = find_device("v100-16gb")
    shared = sharing_device(alone, 4)
    assert shared.copies.to_host_bytes_per_s == alone.copies.to_host_bytes_per_s / 4
    assert shared.copies.to_device_bytes_per_s == alone.copies.to_device_bytes_per_s / 4
    assert shared.copies.latency_s == alone.copies.latency_s
    assert (shared.compute, shared.memory, shared.name) == (alone.compute, alone.memory, alone.name)
    assert "4 devices on one link" in shared.title
    assert "4 devices on one link" in shared.copies.source


def test_a_device_that_shares_nothing_is_the_same() -> None:
    device = find_device("h200")
    assert sharing_device(device, 1) is device


def test_a_copy_takes_as_many_times_longer_as_devices_share() -> None:
    alone, shared = (sharing_device(find_device("titan-x"), n).copies for n in (1, 4))

    def seconds(rate: float) -> float:
        costs = MemoryCosts(
            durations_s=numpy.zeros(1),
            to_host_bytes_per_s=rate,
            to_device_bytes_per_s=rate,
            copy_latency_s=0.0,
            source="test",
        )
        return costs.to_host_s(1 << 30)

    assert seconds(shared.to_host_bytes_per_s) == pytest.approx(4 * seconds(alone.to_host_bytes_per_s))


def test_less_than_one_device_is_refused() -> None:
    with raises("host-path.no-device", sharing=0):
        sharing_device(find_device("h200"), 0)
