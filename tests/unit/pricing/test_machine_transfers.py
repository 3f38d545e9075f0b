"""Transfers take the links of the very devices that they join."""

import pytest
from tests import builders
from tests.raising import raises

from trimaran.machine.find import find_machine
from trimaran.pricing.collectives.algorithms import collective_cost
from trimaran.pricing.machine_transfers import MESSAGE, machine_transfer
from trimaran.pricing.transfers import transfer_cost
from trimaran.program.types import Instruction, Kind

DGX = find_machine("dgx1-v100:2")
SIZE = 100_000_000


def seconds(kind: str, *members: int) -> float:
    found = machine_transfer(kind, SIZE, members, DGX)
    return found.latency_s + found.flow_s


def test_two_links_are_twice_as_fast_as_one() -> None:
    """42.6e9 and 21.3e9 B/s of a DGX-1's links, within 10 % of what messages keep of them."""
    assert seconds(MESSAGE, 0, 1) / seconds(MESSAGE, 0, 3) == pytest.approx(2.0, rel=0.1)
    assert SIZE / seconds(MESSAGE, 0, 3) == pytest.approx(42.6e9, rel=0.1)


def test_a_pair_without_links_goes_over_the_tree() -> None:
    found = machine_transfer(MESSAGE, SIZE, (0, 5), DGX)
    assert found.links == ("n0 gpu0>plx0", "n0 plx0>cpu0", "n0 cpu1>plx2", "n0 plx2>gpu5")
    assert seconds(MESSAGE, 0, 5) > 4 * seconds(MESSAGE, 0, 3)


def test_both_directions_of_a_pair_have_links_of_their_own() -> None:
    there, back = (machine_transfer(MESSAGE, SIZE, pair, DGX).links for pair in ((0, 3), (3, 0)))
    assert not set(there) & set(back)


def test_nodes_are_joined_by_the_cards_that_the_devices_reach() -> None:
    """Four cards for eight devices: devices 0 and 1 share the first, 2 has the second."""
    links = [machine_transfer(MESSAGE, SIZE, pair, DGX).links for pair in ((0, 8), (1, 10))]
    assert links == [("n0 card0 out", "n1 card0 in"), ("n0 card0 out", "n1 card1 in")]


def test_a_collective_is_that_of_its_own_devices() -> None:
    """Devices 4 to 7 are joined like 0 to 3; 0, 1, 4 and 5 go around a square of single links."""
    assert seconds("AR", 4, 5, 6, 7) == pytest.approx(seconds("AR", 0, 1, 2, 3))
    assert seconds("AR", 0, 1, 4, 5) > 1.2 * seconds("AR", 0, 1, 2, 3)


def test_a_collective_of_whole_nodes_is_that_of_the_machine() -> None:
    whole = collective_cost("all_reduce", SIZE, machine=DGX, devices=16, nodes=2)
    assert seconds("AR", *range(16)) == pytest.approx(whole.seconds)


def test_the_ranks_of_a_cluster_have_the_devices_that_it_says() -> None:
    table = builders.cost_table(
        fingerprint=builders.fingerprint(device="V100", kind="cuda", torch="", threads=1, ranks=1, cores=1)
    )
    send = Instruction(kind=Kind.SEND_FORWARD, rank=0, segment=0, microbatch=0, peer=1, peer_segment=1, nbytes=SIZE)
    cluster = DGX.allocate(16)
    assert transfer_cost(send, table, cluster.ordered((0, 3))).links == ("n0 gpu0>gpu3",)
    assert transfer_cost(send, table, cluster).links == ("n0 gpu0>gpu1",)


def test_one_device_has_nothing_to_exchange() -> None:
    assert machine_transfer("AR", SIZE, (3,), DGX).flow_s == 0.0


def test_a_device_that_is_not_there_is_refused() -> None:
    with raises("transfer.no-such-device", match=r"\b0\b.*\b15\b"):
        machine_transfer(MESSAGE, SIZE, (0, 16), DGX)


def test_a_link_that_every_two_devices_have_for_themselves_goes_before_the_link_graph() -> None:
    """1 ms + 100 MB at 1 GB/s between devices 0 and 5."""
    own = builders.link(bytes_per_s=1e9, latency_s=1e-3)
    table = builders.cost_table(fingerprint=builders.fingerprint(kind="cuda"))
    send = Instruction(kind=Kind.SEND_FORWARD, rank=0, segment=0, microbatch=0, peer=1, peer_segment=1, nbytes=SIZE)
    found = transfer_cost(send, table, builders.linked(DGX.allocate().ordered((0, 5, 6)), joint=own))
    assert (found.latency_s, found.flow_s, found.links) == (pytest.approx(1e-3), pytest.approx(0.1), ("0-5",))
