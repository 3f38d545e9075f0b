import dataclasses

import pytest
from tests import builders
from tests.builders import curve, exact, network, table_for
from tests.raising import raises

from trimaran.base.timeline import COMMUNICATION
from trimaran.machine.types import Allocation, Link
from trimaran.pricing.transfers import HOST_COLLECTIVE, QUEUED, collectives_at_once, handling_seconds, transfer_cost
from trimaran.program.types import Instruction, Kind

BUSY = table_for(network())
TABLE = dataclasses.replace(BUSY, fingerprint=dataclasses.replace(BUSY.fingerprint, cores=8))


def _cluster(hosts: tuple[int, ...], joint: Link | None = None) -> Allocation:
    return builders.cluster(hosts=hosts, joint=joint)


def _send(source: int, target: int, nbytes: int) -> Instruction:
    return Instruction(
        kind=Kind.SEND_FORWARD,
        rank=source,
        segment=0,
        microbatch=0,
        stream=COMMUNICATION,
        peer=target,
        peer_segment=1,
        nbytes=nbytes,
    )


def _all_reduce(group: tuple[int, ...], nbytes: int) -> Instruction:
    return Instruction(kind=Kind.ALL_REDUCE, rank=group[0], stream=COMMUNICATION, group=group, nbytes=nbytes)


_AR = _all_reduce((0, 1), 1_000_000)


def test_ranks_of_one_host_talk_at_what_was_measured() -> None:
    """0.1 ms latency at the smallest size, 1 MB at 1 GB/s: 1 ms more."""
    transfer = transfer_cost(_send(0, 1, 1_000_000), TABLE, _cluster((0, 0)))
    assert transfer.latency_s == pytest.approx(1e-4, rel=1e-4)
    assert transfer.latency_s + transfer.flow_s == pytest.approx(1.1e-3)
    assert transfer.links == ("loopback",)


@pytest.mark.parametrize(("kind", "cores", "at_once"), [("cpu", 2, 1), ("cpu", 8, 2), ("cuda", 8, 1)])
def test_gloo_has_two_collectives_under_way_where_cores_are_spare(kind: str, cores: int, at_once: int) -> None:
    """Two ranks."""
    fingerprint = dataclasses.replace(BUSY.fingerprint, kind=kind, cores=cores)
    assert collectives_at_once(dataclasses.replace(BUSY, fingerprint=fingerprint), _cluster((0, 0))) == at_once


def test_both_ends_of_a_message_cost_the_same() -> None:
    receive = dataclasses.replace(_send(0, 1, 5_000), kind=Kind.RECEIVE_FORWARD, rank=1, peer=0)
    assert transfer_cost(_send(0, 1, 5_000), TABLE, _cluster((0, 0))) == transfer_cost(receive, TABLE, _cluster((0, 0)))


def test_held_links_are_lines_out_of_each_rank() -> None:
    """Messages in opposite directions do not share; both ends of one name the sender's; a collective uses all."""
    cluster = builders.linked(_cluster((0, 0)), link=builders.link(bytes_per_s=25e6, source="asked"))
    there, back = _send(0, 1, 10), _send(1, 0, 10)
    arrival = dataclasses.replace(there, kind=Kind.RECEIVE_FORWARD, rank=1, peer=0)
    assert transfer_cost(there, TABLE, cluster).links == transfer_cost(arrival, TABLE, cluster).links
    assert transfer_cost(there, TABLE, cluster).links == ("out of 0", "into 1")
    assert transfer_cost(back, TABLE, cluster).links == ("out of 1", "into 0")
    assert transfer_cost(_all_reduce((0, 1), 10), TABLE, cluster).links == ("out of 0", "out of 1", "into 0", "into 1")


def test_each_host_has_a_loopback_of_its_own() -> None:
    cluster = _cluster((0, 0, 1, 1))
    assert transfer_cost(_send(0, 1, 10), TABLE, cluster).links == ("loopback0",)
    assert transfer_cost(_send(2, 3, 10), TABLE, cluster).links == ("loopback1",)


def test_a_group_of_another_size_is_scaled_from_the_nearest_that_was_measured() -> None:
    """From 2 to 3 ranks: twice the messages (0.2 ms each way), and 4/3 of a buffer in place of 1: (0.4 + 2.667) ms."""
    transfer = transfer_cost(_all_reduce((0, 1, 2), 1_000_000), TABLE, _cluster((0, 0, 0)))
    assert transfer.latency_s + transfer.flow_s == pytest.approx(4e-4 + 4 / 3 * 2e-3, rel=1e-4)
    assert transfer.source == "analytic: from 2 ranks, measured: by hand"


def test_a_link_of_every_two_devices_is_priced_by_its_closed_form() -> None:
    """1 ms + 1 MB / (100 MB/s) = 11 ms."""
    link = builders.link(bytes_per_s=1e8, latency_s=1e-3, source="datasheet: a switch")
    transfer = transfer_cost(_send(0, 1, 1_000_000), TABLE, _cluster((0, 1), link))
    assert (transfer.latency_s, transfer.flow_s) == pytest.approx((1e-3, 1e-2))
    assert (transfer.links, transfer.source) == (("0-1",), "analytic: datasheet: a switch")


def test_a_collective_occupies_the_links_of_its_ring() -> None:
    """Ring of 3: 4 messages of 1 ms and 4/3 of 3 MB at 100 MB/s: 4 + 40 = 44 ms."""
    cluster = _cluster((0, 1, 2), builders.link(bytes_per_s=1e8, latency_s=1e-3, source="datasheet: a switch"))
    transfer = transfer_cost(_all_reduce((0, 1, 2), 3_000_000), TABLE, cluster)
    assert transfer.latency_s + transfer.flow_s == pytest.approx(0.044)
    assert transfer.links == ("0-1", "1-2", "0-2")


def test_a_group_of_one_has_nothing_to_do() -> None:
    transfer = transfer_cost(_all_reduce((0,), 1_000_000), TABLE, _cluster((0, 0)))
    assert (transfer.latency_s, transfer.flow_s, transfer.links) == (0.0, 0.0, ())


def test_ranks_that_no_link_joins_are_named() -> None:
    with raises("cluster.no-link", match=r"\b0\b.*\b1\b"):
        transfer_cost(_send(0, 1, 10), TABLE, _cluster((0, 1)))


def test_more_ranks_than_devices_are_refused() -> None:
    with raises("cluster.too-few-devices", match='"test"', rank=2, devices=2):
        transfer_cost(_all_reduce((0, 1, 2), 10), TABLE, _cluster((0, 0)))


def test_a_transfer_that_nobody_measured_is_named() -> None:
    table = dataclasses.replace(TABLE, curves={})
    with raises("cost-table.missing-transfer", kind="AR", ranks=2):
        transfer_cost(_all_reduce((0, 1), 10), table, _cluster((0, 0)))


def _homed(kind: Kind, nbytes: int = 1_000_000) -> Instruction:
    return Instruction(kind=kind, rank=0, stream=COMMUNICATION, group=(0, 1), root=1, nbytes=nbytes)


def test_a_reduce_that_nobody_measured_takes_what_an_all_reduce_does_and_says_so() -> None:
    reduce, other = (transfer_cost(item, TABLE, _cluster((0, 0))) for item in (_homed(Kind.REDUCE), _AR))
    assert (reduce.latency_s, reduce.flow_s) == (other.latency_s, other.flow_s)
    assert reduce.source.startswith("assumed: as an all-reduce")


@pytest.mark.parametrize(
    ("kind", "device", "share"),
    [(Kind.ALL_GATHER, "cpu", 0.5), (Kind.REDUCE_SCATTER, "cpu", 1.0), (Kind.REDUCE_SCATTER, "cuda", 0.5)],
)
def test_gathers_that_nobody_measured_take_their_part_of_an_all_reduce(kind: Kind, device: str, share: float) -> None:
    """Half of a ring; gloo scatters a whole all-reduce. 1 MB takes 1.1 ms in all."""
    table = dataclasses.replace(TABLE, fingerprint=dataclasses.replace(TABLE.fingerprint, kind=device))
    scattered = transfer_cost(dataclasses.replace(_AR, kind=kind), table, _cluster((0, 0)))
    whole = transfer_cost(_AR, table, _cluster((0, 0)))
    assert scattered.latency_s + scattered.flow_s == pytest.approx(share * (whole.latency_s + whole.flow_s))
    assert scattered.source.startswith("assumed: ")


def test_what_goes_to_homes_and_back_is_priced_as_one_of_many() -> None:
    """Queued broadcasts of 1 MB at 4 GB/s; one alone, without a root, as before."""
    key = builders.curve_key(f"BC{QUEUED}", 2)
    table = dataclasses.replace(TABLE, curves={**TABLE.curves, key: curve(0.0, 4e9)})
    homed = transfer_cost(_homed(Kind.BROADCAST), table, _cluster((0, 0)))
    alone = dataclasses.replace(_homed(Kind.BROADCAST), root=None)
    assert homed.latency_s + homed.flow_s == pytest.approx(2.5e-4, rel=1e-3)
    assert transfer_cost(alone, table, _cluster((0, 0))) == transfer_cost(alone, TABLE, _cluster((0, 0)))


def test_on_a_link_a_reduce_is_a_tree() -> None:
    """1 MB once over a link of 1 GB/s between two hosts, after 1 ms: 2 ms."""
    link = builders.link(bytes_per_s=1e9, latency_s=1e-3, source="by hand")
    transfer = transfer_cost(_homed(Kind.REDUCE), TABLE, _cluster((0, 1), link))
    assert transfer.latency_s + transfer.flow_s == pytest.approx(2e-3)


def test_posting_is_part_of_what_was_measured_in_a_queue() -> None:
    """A broadcast by itself occupies the thread for 0.5 ms; of a queue, that is in the curve."""
    curves = {**BUSY.curves, builders.curve_key(HOST_COLLECTIVE, 2): ((1, exact(5e-4)), (1000, exact(5e-4)))}
    table = dataclasses.replace(BUSY, curves=curves)
    homed = _homed(Kind.BROADCAST, nbytes=1000)
    assert handling_seconds(homed, table) == pytest.approx(5e-4)
    queued = dataclasses.replace(table, curves={**curves, builders.curve_key(f"BC{QUEUED}", 2): curve(0.0, 4e9)})
    assert handling_seconds(homed, queued) == 0.0
