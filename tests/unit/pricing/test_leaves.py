"""Leaves between nodes in the prices of messages, collectives and exchanges of programs."""

import pytest

from trimaran.machine.find import find_machine
from trimaran.pricing.collectives.algorithms import collective_cost
from trimaran.pricing.machine_transfers import MESSAGE, machine_transfer
from trimaran.program.types import Kind

PLAIN = "dgx-h100:4@8 ib-ndr"
NARROW = f"{PLAIN},nodes_per_leaf=2,oversubscription=4"


def test_messages_between_leaves_name_the_link_that_they_share() -> None:
    machine = find_machine(NARROW)
    inside = machine_transfer(MESSAGE, 10**8, (0, 8), machine)
    assert not any(link.startswith("leaf") for link in inside.links)
    # Sixteen cards of a leaf have four links to the spine, in turn.
    across = [machine_transfer(MESSAGE, 10**8, (sender, sender + 16), machine).links for sender in range(16)]
    ups = [link for links in across for link in links if " up" in link]
    assert sorted(set(ups)) == [f"leaf0 up{number}" for number in range(4)]
    assert all(ups.count(link) == 4 for link in ups)
    assert {link for links in across for link in links if " down" in link} == {f"leaf1 down{n}" for n in range(4)}


def test_a_ring_crosses_the_spine_once_for_each_leaf() -> None:
    machine = find_machine(NARROW)
    links = machine_transfer(Kind.ALL_REDUCE, 10**8, tuple(range(0, 32, 8)), machine).links
    assert sorted(link for link in links if link.startswith("leaf")) == [
        "leaf0 down0",
        "leaf0 up0",
        "leaf1 down0",
        "leaf1 up0",
    ]
    assert not [link for link in machine_transfer(Kind.ALL_REDUCE, 10**8, (0, 8), machine).links if "leaf" in link]


def test_rail_by_rail_a_message_leaves_by_the_card_that_it_arrives_on() -> None:
    machine = find_machine(f"{NARROW},rails")
    assert machine_transfer(MESSAGE, 10**8, (0, 11), machine).links == ("n0 card3 out", "n1 card3 in")
    across = machine_transfer(MESSAGE, 10**8, (0, 19), machine).links
    assert across == ("n0 card3 out", "n2 card3 in", "leaf0.3 up0", "leaf1.3 down0")


@pytest.mark.parametrize(("op", "times"), [("all_reduce", 8 / 4), ("all_to_all", (16 * 16 / 4) / (8 * 24 / 8))])
def test_what_crosses_the_spine_takes_its_share_of_the_links_there(op: str, times: float) -> None:
    """Of 32 devices on two leaves with links worth 4 cards each.

    Rings of 8 cards cross them. All with all, each of 16 devices of a leaf sends 16 parts over them, and a node sends
    8 times 24 parts by its 8 cards.
    """
    plain, narrow = (
        collective_cost(op, 10**9, machine=find_machine(name), devices=32, nodes=4).seconds for name in (PLAIN, NARROW)
    )
    assert narrow / plain == pytest.approx(times, rel=0.1)
