"""What is left of a link to the host when several devices copy at once; figures of machines that are built so."""

from typing import Any

import numpy
import pytest
from tests.raising import raises

from trimaran.machine.catalog import find_device
from trimaran.pricing.machine_transfers import HostPath, shared_bytes_per_s, sharing_device
from trimaran.pricing.offload_costs import MemoryCosts

PCIE3, PCIE4, PCIE5 = 12.4e9, 26.2e9, 55.4e9  # sustained by x16 in one direction [bytes/s]


@pytest.mark.parametrize(
    ("link", "path", "expected"),
    [
        # One device with everything for itself.
        (PCIE5, HostPath(), PCIE5),
        # DGX-1: two V100 on a switch, four on a socket of four channels of DDR4-2400: 76.8 / (2 × 4) is 9.6, so the
        # uplink decides with 6.2.
        (PCIE3, HostPath(sharing=2, socket_sharing=4, memory_bytes_per_s=76.8e9), 6.2e9),
        # Four V100 behind one switch with one x16: 12.4 / 4.
        (PCIE3, HostPath(sharing=4, socket_sharing=4, memory_bytes_per_s=119.2e9), 3.1e9),
        # Eight PCIe 5.0 cards, each with lanes of its own, four on a socket of eight channels of DDR5-4800: here the
        # memory decides, 307.2 / (2 × 4).
        (PCIE5, HostPath(socket_sharing=4, memory_bytes_per_s=307.2e9), 38.4e9),
        # A switch whose uplink is half as wide as the devices' links.
        (PCIE4, HostPath(sharing=2, uplink_bytes_per_s=13.1e9), 6.55e9),
        # Without a number for the socket, those of the uplink meet in its memory: 80 / (2 × 2).
        (PCIE5, HostPath(sharing=2, memory_bytes_per_s=80e9), 20e9),
    ],
)
def test_the_narrowest_part_is_shared(link: float, path: HostPath, expected: float) -> None:
    assert shared_bytes_per_s(link, path) == pytest.approx(expected)


def test_a_device_that_shares_keeps_everything_but_its_copies() -> None:
    alone = find_device("v100-16gb")
    shared = sharing_device(alone, HostPath(sharing=4))
    assert shared.copies.to_host_bytes_per_s == alone.copies.to_host_bytes_per_s / 4
    assert shared.copies.to_device_bytes_per_s == alone.copies.to_device_bytes_per_s / 4
    assert shared.copies.latency_s == alone.copies.latency_s
    assert (shared.compute, shared.memory, shared.name) == (alone.compute, alone.memory, alone.name)
    assert "4 devices on one link" in shared.title
    assert "4 devices on one link" in shared.copies.source


def test_a_device_that_shares_nothing_is_the_same() -> None:
    device = find_device("h200")
    assert sharing_device(device, HostPath()) is device


def test_a_copy_takes_as_many_times_longer_as_devices_share() -> None:
    alone, shared = (sharing_device(find_device("titan-x"), HostPath(sharing=n)).copies for n in (1, 4))

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


@pytest.mark.parametrize(
    ("wrong", "code", "figures"),
    [
        ({"sharing": 0}, "host-path.no-device", {}),
        ({"sharing": 4, "socket_sharing": 2}, "host-path.socket-below-uplink", {}),
        ({"uplink_bytes_per_s": 0.0}, "host-path.bad-rate", {"match": "uplink_bytes_per_s"}),
        ({"memory_bytes_per_s": -1.0}, "host-path.bad-rate", {"match": "memory_bytes_per_s"}),
    ],
)
def test_what_makes_no_sense_is_refused(wrong: dict[str, float], code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures):
        HostPath(**wrong)  # type: ignore[arg-type]
