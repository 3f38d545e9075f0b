"""What joins a group, and the answer to a question put badly."""

from typing import Any

import pytest
from tests.raising import raises

from trimaran.machine.find import find_machine
from trimaran.pricing.collectives.algorithms import collective_cost, crossing_cost, crossing_seconds
from trimaran.pricing.collectives.links import crossing_of, first_devices, group_of
from trimaran.pricing.collectives.prediction import as_measured


def test_an_exchange_on_a_mesh_waits_for_its_narrowest_pair() -> None:
    """4 V100: each sends a quarter over one link of 20.2 GB/s to some other, three quarters in all: 60.6 GB/s."""
    group = group_of(find_machine("dgx1-v100"), 4)
    assert group.ring_bytes_per_s == pytest.approx(80.8e9)
    assert group.exchange_bytes_per_s == pytest.approx(60.6e9)


def test_a_switch_gives_every_link_to_every_pair() -> None:
    group = group_of(find_machine("hgx-h200"), 3)
    assert (group.kind, group.ring_bytes_per_s) == ("nvswitch", group.exchange_bytes_per_s)


def test_nodes_are_joined_by_their_cards() -> None:
    """4 EDR cards a node of 10.1 GB/s."""
    group = group_of(find_machine("dgx1-v100:4"), 32, 4)
    assert (group.card_kind, group.cards, group.per_node) == ("infiniband", 4, 8)
    assert group.cards_bytes_per_s == pytest.approx(40.4e9)


@pytest.mark.parametrize(("devices", "nodes"), [(9, 2), (10, 2), (31, 4)])
def test_devices_are_taken_node_by_node_as_a_plan_takes_them(devices: int, nodes: int) -> None:
    machine = find_machine("p3dn.24xlarge:4")
    cost = collective_cost("all_reduce", 10**8, machine=machine, devices=devices, nodes=nodes)
    in_order = crossing_of(machine, range(devices))
    assert cost == crossing_cost("all_reduce", 10**8, machine=machine, crossing=in_order)
    # Five devices on each of two nodes of eight have no ring of NVLinks.
    even = collective_cost("all_reduce", 10**8, machine=machine, devices=8 * nodes, nodes=nodes)
    assert cost.seconds <= even.seconds


def test_cards_in_no_box_get_the_one_they_were_measured_in() -> None:
    plain = group_of(find_machine("8xl4"), 8)
    assert (plain.node, plain.kind) == ("8xl4", "host")
    assert (as_measured(plain).node, as_measured(plain).kind) == ("gcp-l4", "virtual")
    assert as_measured(group_of(find_machine("dgx-a100"), 8)).node == "dgx-a100"


def test_one_device_has_nothing_to_exchange() -> None:
    assert collective_cost("all_reduce", 10**9, machine=find_machine("dgx-a100"), devices=1).seconds == 0.0


def test_an_empty_exchange_launches_nothing_and_an_empty_sum_does() -> None:
    machine = find_machine("dgx-a100")
    times = [
        collective_cost(op, 0, machine=machine, devices=8, library="nccl-tests").seconds
        for op in ("all_to_all", "all_reduce")
    ]
    assert times[0] < 5e-6 < 15e-6 < times[1]


@pytest.mark.parametrize(
    ("op", "nbytes", "devices", "nodes", "library", "code", "figures"),
    [
        ("all_sum", 1, 2, 1, "", "collective.unknown-operation", {"op": "all_sum"}),
        ("all_reduce", -1, 2, 1, "", "collective.negative-bytes", {"match": r"\b0\b", "nbytes": -1}),
        ("all_reduce", 1, 9, 1, "", "collective.too-many-devices-on-node", {"match": r"\b8\b.*\b2\b", "devices": 9}),
        ("all_reduce", 1, 10, 4, "", "collective.uneven-nodes", {"devices": 10, "nodes": 4}),
        ("all_reduce", 1, 2, 1, "mpi", "collective.unknown-library", {}),
    ],
)
def test_bad_questions(
    op: str, nbytes: int, devices: int, nodes: int, library: str, code: str, figures: dict[str, Any]
) -> None:
    with raises(code, **figures):
        collective_cost(op, nbytes, machine=find_machine("dgx-a100"), devices=devices, nodes=nodes, library=library)


@pytest.mark.parametrize("op", ["all_reduce", "all_to_all", "send_recv"])
def test_a_time_without_its_interval_is_the_same(op: str) -> None:
    machine = find_machine("dgx-h100:2")
    crossing = first_devices(machine, 2, 2, op=op)
    whole = crossing_cost(op, 3e6, machine=machine, crossing=crossing)
    assert crossing_seconds(op, 3e6, machine=machine, crossing=crossing) == whole.seconds
    assert whole.low < whole.seconds < whole.high
