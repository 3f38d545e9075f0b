"""Laws of the links that members of a transfer cross, and of steps of sharded transformers on them."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.raising import raises

from trimaran.machine.find import find_machine
from trimaran.machine.rings import slowdowns
from trimaran.machine.types import Machine
from trimaran.pricing.analytical.shapes import gpt_shape
from trimaran.pricing.analytical.step_time import (
    MachineExchange,
    TransformerProgram,
    placed,
    rank_traffic,
    step_constants,
    transformer_step,
)
from trimaran.pricing.collectives.algorithms import crossing_cost
from trimaran.pricing.collectives.formulas import OPERATIONS
from trimaran.pricing.collectives.links import LinkUse, cards_of, crossing_of, group_crossings, message_crossings
from trimaran.program.strategy import Axis, Degrees, devices_of_ranks

FABRICS = ("ethernet-1g", "ethernet-10g", "ethernet-25g", "ethernet-100g")
SHAPE = gpt_shape(layers=24, hidden=2304, heads=24, vocabulary=51200)
MACHINES = st.sampled_from(("dgx-h100", "dgx-a100", "dgx1-v100", "p3.16xlarge", "4xv100"))


def slowly(members: list[list[int]], machine: Machine) -> set[LinkUse]:
    """Every group of a machine one by one, and the cards of every node counted."""
    each = machine.node.devices
    count = (machine.fabric or (0, None))[0]
    load: Counter[tuple[int, int]] = Counter()
    used = []
    for group in members:
        cards = {}
        for host in {number // each for number in group}:
            local = [number % each for number in group if number // each == host]
            cards[host] = cards_of(machine.node, count, local) if count else ()
        used.append(cards)
        if len(cards) > 1:
            load.update((host, card) for host, chosen in cards.items() for card in chosen)
    found = set()
    for group, cards in zip(members, used, strict=True):
        alone = crossing_of(machine, group)
        sharing = max((load[host, card] for host, chosen in cards.items() for card in chosen), default=1)
        found.add(replace(alone, sharing=sharing if len(cards) > 1 else 1))
    return found


def essence(found: LinkUse) -> tuple[int, int, int, int]:
    return len(found.local), found.nodes, found.cards, found.sharing


@given(name=MACHINES, fabric=st.sampled_from(("", "@ethernet-25g")), data=st.data())
def test_layouts_that_occur_are_those_of_all_groups_one_by_one(name: str, fabric: str, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, 12))
    members = data.draw(st.integers(1, 40))
    blocks = data.draw(st.integers(1, 9))
    ranks = stride * members * blocks
    machine = find_machine(f"{name}:{max(2, -(-ranks // 4))}{fabric}")
    groups = [
        list(range(block * members * stride + offset, (block + 1) * members * stride, stride))
        for block in range(blocks)
        for offset in range(stride)
    ]
    told = {essence(each) for each in group_crossings(machine, ranks=ranks, members=members, stride=stride)}
    wanted = {essence(each) for each in slowly(groups, machine)}
    # Nodes that are not full have fewer groups, which only share less.
    assert max(sharing for *_, sharing in told) >= max(sharing for *_, sharing in wanted)
    assert {each[:2] for each in told} >= {each[:2] for each in wanted} or stride >= machine.node.devices
    if ranks % machine.node.devices == 0 and stride < machine.node.devices:
        assert told == wanted


@given(
    op=st.sampled_from([op for op in OPERATIONS if op != "send_recv"]),
    nbytes=st.integers(1, 2**32),
    members=st.sampled_from([2, 4, 8]),
    name=st.sampled_from(["dgx-a100", "dgx-h100", "hgx-h200"]),
    fabric=st.sampled_from(FABRICS),
)
def test_a_group_inside_a_node_is_never_dearer_than_across_nodes(
    op: str, nbytes: int, members: int, name: str, fabric: str
) -> None:
    machine = find_machine(f"{name}:8@{fabric}")
    exchange = MachineExchange(machine, ranks=64, year=2024.0)
    inside, *across = [exchange(op, nbytes, members, stride) for stride in (1, 8 // members * 2, 8)]
    assert all(inside <= other * (1 + 1e-9) for other in across)


@given(
    op=st.sampled_from(OPERATIONS),
    nbytes=st.integers(1, 2**34),
    members=st.integers(2, 12),
    stride=st.integers(1, 16),
    name=MACHINES,
)
def test_a_slower_fabric_never_takes_less(op: str, nbytes: int, members: int, stride: int, name: str) -> None:
    ranks = members * stride * 2
    times = [
        MachineExchange(find_machine(f"{name}:{-(-ranks // 4)}@{fabric}"), ranks=ranks, year=2024.0)(
            op, nbytes, members, stride
        )
        for fabric in FABRICS
    ]
    assert all(slow >= fast * (1 - 1e-9) for slow, fast in pairwise(times))


@given(
    tensor=st.sampled_from([1, 2, 3, 4, 6, 8]),
    pipeline=st.sampled_from([1, 2, 4, 8, 12]),
    chunks=st.sampled_from([1, 2]),
    data=st.sampled_from([1, 2, 3, 4]),
)
def test_a_step_that_crosses_nodes_takes_longer_on_each_slower_fabric(
    tensor: int, pipeline: int, chunks: int, data: int
) -> None:
    assume(tensor * pipeline * data > 8)
    degrees = Degrees(
        tp=tensor,
        pp=pipeline,
        chunks=chunks if pipeline > 1 else 1,
        dp=data,
        microbatches=24,
        zero=1 if data > 1 else 0,
    )
    machines = [find_machine(f"dgx-h100:{-(-degrees.devices // 8)}@{fabric}") for fabric in FABRICS]
    steps = [
        transformer_step(
            SHAPE,
            degrees,
            TransformerProgram(),
            device=machine.node.device,
            exchange=MachineExchange(machine, ranks=degrees.devices, year=2024.0),
            constants=step_constants(),
        ).seconds
        for machine in machines
    ]
    assert all(slow > fast for slow, fast in pairwise(steps))


def test_messages_that_leave_a_node_by_one_card_share_it() -> None:
    """Of 8 GPUs each, 8 senders to the next node share one card; with 8 cards each has its own.

    Within 10 %: a smaller share of a card is filled by smaller messages.
    """
    one, eight = (
        max(
            crossing_cost("send_recv", 10**8, machine=machine, crossing=crossing).seconds
            for crossing in message_crossings(machine, ranks=16, stride=8)
        )
        for machine in (find_machine("dgx-h100:2@ethernet-25g"), find_machine("dgx-h100:2@8 ethernet-25g"))
    )
    assert one == pytest.approx(8 * eight, rel=0.1)


LEAVES = ("", ",nodes_per_leaf=4", ",nodes_per_leaf=4,oversubscription=2", ",nodes_per_leaf=4,oversubscription=8")
ORDERS: tuple[tuple[Axis, ...], ...] = (
    ("tp", "cp", "dp", "pp"),
    ("tp", "pp", "cp", "dp"),
    ("tp", "dp", "cp", "pp"),
    ("pp", "cp", "dp", "tp"),
)


def step_seconds(machine: Machine, degrees: Degrees) -> float:
    return transformer_step(
        SHAPE,
        degrees,
        TransformerProgram(),
        device=machine.node.device,
        exchange=MachineExchange(machine, ranks=degrees.devices, year=2024.0),
        constants=step_constants(),
    ).seconds


def any_degrees(draw: st.DataObject) -> Degrees:
    tensor, pipeline, context, data = (
        draw.draw(st.sampled_from(sizes)) for sizes in ([1, 2, 3, 4, 8], [1, 2, 4, 6], [1, 2, 4], [1, 2, 3, 4])
    )
    return Degrees(
        tp=tensor,
        pp=pipeline,
        cp=context,
        dp=data,
        microbatches=12,
        zero=draw.draw(st.sampled_from([0, 1, 2, 3])) if data * context > 1 else 0,
        rank_order=draw.draw(st.sampled_from(ORDERS)),
    )


@given(data=st.data(), rails=st.booleans())
def test_more_oversubscription_is_never_faster(data: st.DataObject, rails: bool) -> None:
    degrees = any_degrees(data)
    end = ",rails" if rails else ""
    nodes = max(2, -(-degrees.devices // 8))
    steps = [
        step_seconds(find_machine(f"dgx-h100:{nodes}@8 ib-ndr{leaves}{end if leaves else ''}"), degrees)
        for leaves in LEAVES
    ]
    # A leaf as wide as its cards is no slower than none; rail by rail, messages to one card may come from several.
    assert steps[0] == pytest.approx(steps[1], rel=1e-12) or (rails and steps[0] < steps[1])
    assert all(slow >= fast * (1 - 1e-12) for fast, slow in pairwise(steps))


@given(data=st.data())
def test_one_gigabit_ethernet_never_equals_infiniband_where_messages_cross_nodes(data: st.DataObject) -> None:
    degrees = any_degrees(data)
    machine, slow = (
        find_machine(f"dgx-h100:{max(2, -(-degrees.devices // 8))}@{cards}") for cards in ("8 ib-ndr", "ethernet-1g")
    )
    traffic = rank_traffic(degrees, MachineExchange(machine, ranks=degrees.devices, year=2024.0))
    crosses = any(each.nodes > 1 for each in traffic)
    assert crosses or degrees.devices <= 8
    if crosses:
        assert step_seconds(slow, degrees) > step_seconds(machine, degrees)
    else:
        assert step_seconds(slow, degrees) == step_seconds(machine, degrees)


@given(data=st.data(), seed=st.randoms(use_true_random=False))
def test_a_permutation_of_equal_nodes_changes_nothing(data: st.DataObject, seed: Random) -> None:
    degrees = any_degrees(data)
    nodes = max(2, -(-degrees.devices // 8))
    machine = find_machine(f"dgx-h100:{nodes}@4 ib-hdr")
    order = list(range(nodes))
    seed.shuffle(order)
    natural = devices_of_ranks(degrees)
    moved = [order[number // 8] * 8 + number % 8 for number in natural]
    each, other = (
        MachineExchange(machine, ranks=degrees.devices, year=2024.0, devices=devices) for devices in (natural, moved)
    )
    for op, members, near in (
        ("all_reduce", degrees.tp, 1),
        ("all_to_all", degrees.cp, degrees.tp),
        ("all_gather", degrees.cp * degrees.dp, degrees.tp),
        ("send_recv", degrees.pp, degrees.devices // degrees.pp),
    ):
        assert each(op, 1e8, members, near) == other(op, 1e8, members, near)


def test_a_list_of_devices_is_a_mapping_too() -> None:
    machine = find_machine("dgx-h100:4@8 ib-ndr")
    degrees = Degrees(tp=2, pp=4, dp=4, rank_order=("tp", "pp", "dp"))
    listed = MachineExchange(machine, ranks=32, year=2024.0, devices=devices_of_ranks(degrees))
    ordered = MachineExchange(machine, ranks=32, year=2024.0).placed(degrees)
    reversed_nodes = [(3 - number // 8) * 8 + number % 8 for number in range(32)]
    moved = MachineExchange(machine, ranks=32, year=2024.0, devices=reversed_nodes).placed(degrees)
    for question in (("all_reduce", 1e8, 2, 1), ("all_reduce", 1e8, 4, 2), ("send_recv", 1e8, 4, 8)):
        assert listed(*question) == ordered(*question) == moved(*question)
    for wrong in ([0] * 32, range(31), range(1, 33)):
        with raises("analytical.bad-devices", ranks=32):
            MachineExchange(machine, ranks=32, year=2024.0, devices=list(wrong))


def test_only_ranks_that_take_part_share_cards() -> None:
    """Ten ranks in pairs five apart: two pairs are on both nodes. Of twenty, four more have the second node's card."""
    machine = find_machine("dgx-h100:3@ethernet-25g")
    degrees = Degrees(tp=5, dp=2)
    all_ranks, few = (MachineExchange(machine, ranks=ranks, year=2024.0) for ranks in (20, 10))
    assert max(each.sharing for each in all_ranks.crossings("all_reduce", 2, 5)) == 6
    assert rank_traffic(degrees, all_ranks)[1].sharing == rank_traffic(degrees, few)[1].sharing == 2
    question = ("all_reduce", 1e8, 2, 5)
    assert placed(all_ranks, degrees)(*question) == few(*question) < all_ranks(*question)


def test_prices_of_as_many_ranks_are_found_once_whoever_asks() -> None:
    machine = find_machine("dgx-h100:3@ethernet-25g")
    many = MachineExchange(machine, ranks=20, year=2024.0)
    few = many.placed(Degrees(tp=5, dp=2))
    assert many.of_ranks(24).placed(Degrees(tp=2, dp=5)) is few
    assert few.of_ranks(20) is many
    with raises("analytical.bad-devices", ranks=25):
        many.placed(Degrees(dp=25))


def test_stages_that_are_nearest_send_inside_nodes_and_replicas_pay_for_it() -> None:
    machine = find_machine("dgx-h100:16@8 ib-ndr")
    exchange = MachineExchange(machine, ranks=128, year=2024.0)
    usual = Degrees(tp=2, pp=4, dp=16)
    nearest = replace(usual, rank_order=("tp", "pp", "dp"))
    assert [each.nodes for each in rank_traffic(usual, exchange)] == [1, 4, 2]
    assert [each.nodes for each in rank_traffic(nearest, exchange)] == [1, 16, 1]
    stage = exchange.placed(nearest)("send_recv", 1e8, 4, 32)
    assert stage < exchange("send_recv", 1e8, 4, 32) / 4
    assert exchange.placed(nearest)("all_reduce", 1e9, 16, 2) > exchange("all_reduce", 1e9, 16, 2)


def test_an_order_without_a_machine_to_price_it_on_is_refused() -> None:
    degrees = Degrees(tp=2, dp=2, rank_order=("dp", "tp", "cp", "pp"))
    with raises("analytical.order-needs-machine"):
        transformer_step(
            SHAPE,
            degrees,
            TransformerProgram(),
            device=find_machine("dgx-h100").node.device,
            exchange=lambda op, nbytes, members, near: 0.0,
            constants=step_constants(),
        )
    with raises("rank-order.incomplete", missing=("dp",)):
        devices_of_ranks(replace(degrees, rank_order=("tp", "pp")))


@pytest.mark.parametrize(
    ("members", "stride", "times"), [(2, 1, 1.0), (2, 2, 2.0), (2, 4, 4.0), (4, 2, 2.0), (8, 1, 1.0)]
)
def test_groups_over_pcie_share_switches_and_sockets(members: int, stride: int, times: float) -> None:
    """Eight cards, two on each of four switches, two switches on each of two sockets."""
    machine = find_machine("8xt4")
    found = group_crossings(machine, ranks=8, members=members, stride=stride)
    assert {each.inside for each in found} == {times}
    alone = crossing_cost(
        "all_reduce", 10**9, machine=machine, crossing=crossing_of(machine, range(0, members * stride, stride))
    ).seconds
    together = MachineExchange(machine, ranks=8, year=2024.0)("all_reduce", 10**9, members, stride)
    assert together == pytest.approx(times * alone, rel=0.1)


@given(name=st.sampled_from(("8xt4", "8xl4", "dgx1-v100", "dgx1-p100", "4xv100-pcie")), data=st.data())
def test_other_groups_inside_a_node_never_make_one_faster(name: str, data: st.DataObject) -> None:
    node = find_machine(name).node
    devices = data.draw(st.permutations(range(node.devices)))
    sizes = data.draw(st.lists(st.integers(2, 4), min_size=1, max_size=node.devices // 2))
    groups = [tuple(devices[sum(sizes[:index]) : sum(sizes[: index + 1])]) for index in range(len(sizes))]
    groups = [group for group in groups if len(group) > 1]
    for count in range(1, len(groups)):
        fewer, more = slowdowns(node, groups[:count]), slowdowns(node, groups[: count + 1])
        assert all(1.0 <= one <= other for one, other in zip(fewer, more, strict=False))
    assert not groups or slowdowns(node, groups[:1]) == (1.0,)
