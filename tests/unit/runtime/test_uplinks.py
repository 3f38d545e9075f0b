"""What is told to `ip` and `tc` for ranks on several nodes, and what is refused."""

import pytest
from tests import builders
from tests.raising import raises

from trimaran.emulation.links import Uplink, rate_limited_network, switch, up_end

GIGABIT = builders.link(bytes_per_s=125e6)
SLOW = builders.link(bytes_per_s=25e6)


def test_an_uplink_is_a_port_of_its_switch_held_to_its_own_rate() -> None:
    """Packets of 0.2 ms at 25e6 bytes/s are 5,000 B: 25e6 * 5014 / 4948 bytes/s is 202,667,745 bit/s."""
    commands = up_end(SLOW, packet=5000)
    assert commands.ip == ("link set dev up mtu 5000 gso_max_segs 1 up", "link set dev up master bridge")
    assert commands.tc == ("qdisc add dev up root tbf rate 202667745bit burst 7547 limit 67108864",)


def test_ports_of_either_rate_have_packets_of_one_size() -> None:
    """A bridge divides no packets: one that is larger than the next interface takes would be lost."""
    commands = switch(["/proc/1/fd/7"], GIGABIT, packet=5000)
    assert "link set dev port0 mtu 5000 gso_max_segs 1 up" in commands.ip


@pytest.mark.parametrize("nodes", [1, 3])
def test_ranks_that_cannot_be_dealt_are_refused(nodes: int) -> None:
    with (
        raises("uplink.uneven-ranks", ranks=4, nodes=nodes),
        rate_limited_network(GIGABIT, Uplink(nodes=nodes, link=SLOW), ranks=4),
    ):
        pass
