"""Devices of a machine that a job may have; what is known of a device of this host."""

import pytest
from tests import builders
from tests.raising import raises

from trimaran.machine.detect import Processor, cpu_devices, measured_machine
from trimaran.machine.find import find_machine

PROCESSOR = Processor(name="x", cores=2, memory_bytes=10_000)


def test_of_a_device_of_this_host_only_its_memory_is_known() -> None:
    (device,) = cpu_devices(PROCESSOR, 1)
    assert (device.kind, device.usable_bytes) == ("cpu", 10_000)
    assert "not measured" in device.bandwidth.source
    with raises("device.bandwidth-unknown", device="1 thread of x"):
        _ = device.sustained_bytes_per_s
    with raises("device.precision-unsupported", precision="fp32"):
        device.check_computes("fp32")


def test_this_host_may_have_devices_that_differ() -> None:
    small, large = builders.device(name="small", memory_bytes=10), builders.device(name="large", memory_bytes=30)
    found = measured_machine((small, large, small), PROCESSOR).allocate()
    assert found.devices == (small, large, small)
    assert found.memory_bytes == (10, 30, 10)
    assert found.ordered((1, 2)).devices == (large, small)
    assert found.ordered((1, 2)).memory_bytes == (30, 10)


def test_of_each_device_a_job_may_use_no_more_than_it_is_given() -> None:
    machine = measured_machine(cpu_devices(PROCESSOR, 2), PROCESSOR)
    assert machine.allocate(memory_bytes=3_000).memory_bytes == (3_000, 3_000)
    assert machine.allocate(memory_bytes=9_000).memory_bytes == (5_000, 5_000)


def test_devices_of_several_nodes_are_counted_node_by_node() -> None:
    found = find_machine("dgx1-v100:2").allocate(9)
    assert found.hosts == (0,) * 8 + (1,)
    assert found.ordered((15, 0)).hosts == (1, 0)
    assert [found.number(rank) for rank in (0, 8)] == [0, 8]
    with raises("cluster.too-few-devices", rank=9, devices=9):
        found.number(9)


@pytest.mark.parametrize(("hosts", "numbers"), [((0, 0), (0, 1, 2, 3)), ((0, 0, 1, 1), (0, 1, 4, 5, 6, 7))])
def test_devices_that_are_added_sit_beside_the_last_one(hosts: tuple[int, ...], numbers: tuple[int, ...]) -> None:
    """Two more, on the last node: devices of later nodes move up."""
    before = builders.cluster(hosts=hosts, memory_bytes=7)
    after = before.grown(len(hosts) + 2)
    assert after.numbers == numbers
    assert after.hosts == (*hosts, *hosts[-1:] * 2)
    assert after.memory_bytes == (7,) * len(numbers)
    assert before.grown(1) is before


def test_a_rate_limit_is_of_the_links_of_a_machine() -> None:
    link = builders.link(bytes_per_s=1e6)
    machine = builders.cluster().machine
    assert machine.rate_limited(link).node.rate_limit == link
    assert machine.rate_limited(link).rate_limited(None) == machine
