"""Laws of collectives over cards for the network: known ones, known ones of another rate, and unknown ones."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.raising import raises

from trimaran.features.price import PricedStrategy, Pricing, Setting
from trimaran.jobs.resolve import JobSource
from trimaran.machine.catalog import find_link, network_kinds
from trimaran.machine.find import find_machine
from trimaran.machine.machine_files import read_machine
from trimaran.machine.nccl_topology import card_link
from trimaran.machine.types import Machine
from trimaran.planner.analytical.candidates import AnalyticalCandidate
from trimaran.planning.requests import parse_request
from trimaran.pricing.collectives.algorithms import collective_cost
from trimaran.pricing.collectives.links import group_of
from trimaran.pricing.collectives.prediction import GRID, constants, prior_time
from trimaran.pricing.types import Cost

CARDS = sorted({card.name for each in network_kinds().values() for card in each})
KINDS = ("slingshot", "omni-path", "aries", "tcpx", "infiniband", "roce", "efa", "ethernet", "bxi", "our-own")
NODES = ("perlmutter", "frontier", "alps", "jean-zay", "dgx-h100", "8xrtx-4090")
OPS = st.sampled_from(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"))


def _cost(machine: Machine, op: str, nbytes: float) -> Cost:
    devices = 2 * machine.nodes if op == "send_recv" else machine.devices
    return collective_cost(op, nbytes, machine=machine, devices=devices, nodes=machine.nodes)


@given(
    op=OPS,
    node=st.sampled_from(NODES),
    nodes=st.integers(2, 600),
    card=st.sampled_from((*CARDS, "bxi-200g", "slingshot-400g", "omni-path-400g", "wire-3g")),
    nbytes=st.integers(1, 2**34),
    faster=st.floats(1.0, 10.0),
)
def test_a_faster_card_never_takes_longer(
    op: str, node: str, nodes: int, card: str, nbytes: int, faster: float
) -> None:
    """Also in the ends of the interval, which has the time in it and is no wider than a factor of ten."""
    machine = find_machine(f"{node}:{nodes}@4 {card}")
    assert machine.fabric is not None
    link = machine.fabric[1]
    quick = replace(link, bytes_per_s=link.bytes_per_s * faster, raw_bytes_per_s=link.raw_bytes_per_s * faster)
    slow, fast = (_cost(replace(machine, fabric=(4, one)), op, nbytes) for one in (link, quick))
    for cost in (slow, fast):
        assert 0 < cost.low < cost.seconds < cost.high <= 10 * cost.low
    assert fast.seconds <= slow.seconds * (1 + 1e-9)


@given(card=st.sampled_from((*CARDS, "bxi-200g")), nodes=st.integers(2, 300), more=st.integers(0, 300))
def test_a_small_message_takes_no_less_on_more_nodes(card: str, nodes: int, more: int) -> None:
    """By physics; what measured curves add to it is not ordered by nodes."""
    groups = (group_of(find_machine(f"perlmutter:{n}@4 {card}"), 4 * n, n) for n in (nodes, nodes + more))
    few, many = (prior_time("all_reduce", GRID[:8], one, "stream", constants()["prior"], year=2024.0) for one in groups)
    assert np.all(few <= many * (1 + 1e-9))


@pytest.mark.parametrize("gigabits", [1, 10, 100, 200, 400, 800, 3200])
def test_an_unknown_network_lies_between_the_known_ones(gigabits: int) -> None:
    """Its time is between those of TCP and of InfiniBand at its rate, and both are in its interval up to 400 Gb/s."""
    rate = {"raw_bytes_per_s": gigabits * 1e9 / 8, "bytes_per_s": gigabits * 1e9 / 8}
    machine = find_machine(f"dgx-a100:4@8 bxi-{gigabits}g")
    unknown = _cost(machine, "all_reduce", 10**9)
    tcp, direct = (
        _cost(replace(machine, fabric=(8, replace(find_link(like), **rate))), "all_reduce", 10**9)
        for like in ("ethernet-100g", "ib-hdr")
    )
    assert direct.seconds < unknown.seconds
    assert unknown.low <= direct.seconds
    if gigabits <= 400:
        assert tcp.seconds <= unknown.high
    if gigabits >= 100:
        assert unknown.seconds < tcp.seconds
    assert 1.5 < unknown.high / unknown.low <= 10


@pytest.mark.parametrize(
    "name", ["slingsot-200g", "ethernt-25g", "roc-100g", "nvlink-100g", "ethernet-26g", "bxi", "bxi-0g"]
)
def test_a_slip_of_the_pen_is_no_unknown_network(name: str) -> None:
    with raises("link.unknown", link=name):
        find_machine(f"dgx-a100:4@8 {name}")


def _file(kind: str, extra: str = "") -> Machine:
    return read_machine(
        f"""
[machine]
node = "dgx-a100"
nodes = 4
fabric = "8 ours"
[[links]]
name = "ours"
kind = "{kind}"
raw = "25 GB/s"
sustained = "24 GB/s"
latency = "2 us"
{extra}
source = "measured here"
""",
        file="rack.toml",
    )


def test_a_file_names_an_unknown_network_as_the_command_does() -> None:
    text = '[machine]\nnode = "dgx-a100"\nnodes = 4\nfabric = "8 bxi-200g"\n'
    assert read_machine(text, file="rack.toml") == find_machine("dgx-a100:4@8 bxi-200g")


@pytest.mark.parametrize("kind", KINDS)
def test_a_card_of_a_file_is_used_as_its_kind_or_as_it_says(kind: str) -> None:
    """A kind of the catalog is used as its cards are, another one by a wide interval, until the file says how."""
    said = _cost(_file(kind), "all_reduce", 10**9)
    direct = _cost(_file(kind, 'access = "direct"'), "all_reduce", 10**9)
    host = _cost(_file(kind, 'access = "host"'), "all_reduce", 10**9)
    assert host.seconds > 2 * direct.seconds
    assert direct.seconds <= said.seconds * (1 + 1e-9)
    assert said.seconds <= host.seconds * (1 + 1e-9)
    seen = _cost(_file(kind, 'access = "direct"\nreach = [0.5, 0.9]'), "all_reduce", 10**9)
    assert direct.seconds < seen.seconds < host.seconds
    assert seen.high / seen.low > direct.high / direct.low


@pytest.mark.parametrize(
    ("extra", "key"),
    [('access = "rdma"', "access"), ("reach = [0.9, 0.5]", "reach"), ("reach = 0.5", "reach"), ('hop = "5"', "hop")],
)
def test_a_card_of_a_file_that_says_something_else_is_refused(extra: str, key: str) -> None:
    with raises("machine-file.wrong-value", key=key):
        _file("bxi", extra)


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        ("mlx5_0", "infiniband"),
        ("cxi0", "slingshot"),
        ("hfi1_0", "omni-path"),
        ("bnxt_re1", "roce"),
        ("rdmap16s27", "efa"),
        ("eth0", "ethernet"),
        ("hsn0", "ethernet"),
        ("bxi0", "bxi"),
        ("7", "card"),
    ],
)
def test_nccl_names_its_cards(device: str, kind: str) -> None:
    assumed: list[str] = []
    found = card_link(device, 25e9, assumed)
    assert (found.kind, found.raw_bytes_per_s) == (kind, 25e9)
    assert bool(assumed) == (kind in ("infiniband", "omni-path", "bxi", "card"))


def test_a_step_over_an_unknown_network_may_be_that_over_a_known_one() -> None:
    """Its interval has steps over TCP and over InfiniBand of that rate in it; on one node nothing is added."""
    job = JobSource(reference="llama2:7b")

    def price(cluster: str, strategy: str) -> AnalyticalCandidate:
        found = Pricing(job, parse_request(cluster=cluster)).price(Setting(strategy=strategy))
        assert isinstance(found, PricedStrategy)
        return found.candidate

    low, high = price("dgx-a100:8@8 bxi-200g", "dp64 zero3").interval_s
    for card in ("ethernet-200g", "ib-hdr", "roce-200g", "slingshot-11"):
        known = price(f"dgx-a100:8@8 {card}", "dp64 zero3")
        assert low <= known.step_time_s <= high
        assert known.interval_s[1] / known.interval_s[0] < high / low
    alone = [price(f"dgx-a100:8@8 {card}", "dp8 zero3").interval_s for card in ("bxi-200g", "ib-hdr")]
    assert alone[0] == alone[1]
