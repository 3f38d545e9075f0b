"""Transfers between hosts that have one uplink each: what leaves a host shares it. 1e6 bytes/s, 1 MB."""

import dataclasses

import pytest
from tests import builders
from tests.builders import curve, network, table_for
from tests.raising import raises

from trimaran.pricing.tables import CostTable
from trimaran.pricing.transfers import transfer_cost
from trimaran.program.types import Instruction, Kind

LINK = builders.link(bytes_per_s=1e8)
UPLINK = builders.link(bytes_per_s=1e6)
CLUSTER = builders.cluster(hosts=(0, 0, 1, 1), kind="cuda", link=LINK, uplink=UPLINK)
MEGABYTE = 1_000_000


def table() -> CostTable:
    """Starts of 1 ms, then 1e8 bytes/s."""
    curves = {builders.curve_key(kind, 2): curve(1e-3, 1e8) for kind in ("AR", "SEND")}
    return dataclasses.replace(table_for(network()), curves=curves)


def all_reduce(*group: int) -> Instruction:
    return Instruction(kind=Kind.ALL_REDUCE, rank=group[0], group=group, label="b0", nbytes=MEGABYTE)


def test_a_sum_of_one_rank_of_each_host_takes_the_uplink_both_ways() -> None:
    """Two ranks send the whole buffer once: 1 s, on links that the sum of the other two ranks takes too."""
    first, second = (transfer_cost(all_reduce(*pair), table(), CLUSTER) for pair in ((0, 2), (1, 3)))
    assert first.latency_s + first.flow_s == pytest.approx(1.0, rel=0.01)
    assert set(first.links) == {"out of host 0", "into host 0", "out of host 1", "into host 1"} == set(second.links)
    assert first.low <= first.latency_s + first.flow_s <= first.high


def test_a_message_takes_one_direction_of_each_uplink() -> None:
    message = Instruction(
        kind=Kind.SEND_FORWARD, rank=1, segment=0, microbatch=0, peer=2, peer_segment=1, nbytes=MEGABYTE
    )
    found = transfer_cost(message, table(), CLUSTER)
    assert found.links == ("out of host 0", "into host 1")
    assert found.flow_s == pytest.approx(1.0, rel=0.01)


def test_within_a_host_nothing_leaves_it() -> None:
    """1 MB at 1e8 bytes/s and a start of 1 ms: 11 ms."""
    found = transfer_cost(all_reduce(2, 3), table(), CLUSTER)
    assert found.latency_s + found.flow_s == pytest.approx(0.011)
    assert not any("host" in link for link in found.links)


def test_a_ring_over_both_hosts_sends_three_halves_of_the_buffer_through_each_uplink() -> None:
    found = transfer_cost(all_reduce(0, 1, 2, 3), table(), CLUSTER)
    assert found.flow_s == pytest.approx(1.5, rel=0.01)


def test_hosts_that_nothing_joins_are_refused() -> None:
    apart = builders.cluster(hosts=(0, 0, 1, 1), kind="cuda")
    with raises("cluster.no-link", match=r"\b0\b.*\b2\b"):
        transfer_cost(all_reduce(0, 2), table(), apart)
