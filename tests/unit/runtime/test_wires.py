"""What is told to `ip` and `tc`, and what is said where that cannot be done."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests import builders
from tests.raising import raises

from trimaran.base.errors import EnvironmentProblem
from trimaran.emulation import links as wires
from trimaran.emulation.links import rank_end, rate_limited_network, switch, throttle
from trimaran.machine.types import Link


def link(bytes_per_s: float, latency_s: float = 0.0) -> Link:
    return builders.link(bytes_per_s=bytes_per_s, latency_s=latency_s)


GIGABIT = link(125e6)


def test_the_rate_is_that_of_the_data_and_the_bucket_holds_a_packet_and_what_a_late_timer_lets_pass() -> None:
    """Packets of 0.2 ms: 25,000 B, on the wire 25,014 for 24,948 of data, so 1,002,645,503 bit/s.

    0.1 ms at 125,330,688 bytes/s is 12,533 B, and with a packet 37,547 B.
    """
    (line,) = throttle("wire", GIGABIT)
    assert line == "qdisc add dev wire root tbf rate 1002645503bit burst 37547 limit 67108864"


def test_a_latency_is_put_before_the_bucket() -> None:
    """Packets of 1,500 B: 1e6 * 1514 / 1448 bytes/s is 8,364,641 bit/s."""
    assert throttle("wire", link(1e6), latency_s=0.0025) == (
        "qdisc add dev wire root handle 1: netem delay 2500us limit 100000",
        "qdisc add dev wire parent 1: handle 2: tbf rate 8364641bit burst 1619 limit 67108864",
    )


def test_the_end_of_a_rank_has_an_address_and_packets_that_are_not_joined() -> None:
    commands = rank_end(2, GIGABIT)
    assert commands.ip == (
        "link set dev lo up",
        "addr add 10.0.0.3/24 dev wire",
        "link set dev wire mtu 25000 gso_max_segs 1 up",
    )
    assert commands.tc == throttle("wire", GIGABIT)


def test_a_switch_has_a_port_for_each_rank_held_to_the_rate_without_the_latency() -> None:
    commands = switch(["/proc/1/fd/7", "/proc/1/fd/8"], link(125e6, 0.001))
    assert commands.ip[:2] == ("link add name bridge type bridge", "link set dev bridge up")
    assert commands.ip[5:] == (
        "link add name port1 type veth peer name wire netns /proc/1/fd/8",
        "link set dev port1 mtu 25000 gso_max_segs 1 up",
        "link set dev port1 master bridge",
    )
    assert commands.tc == (*throttle("port0", GIGABIT), *throttle("port1", GIGABIT))


@pytest.mark.parametrize(("held", "ranks"), [(None, 2), (GIGABIT, 1)])
def test_without_a_link_or_alone_ranks_stay_where_their_parent_is(held: Link | None, ranks: int) -> None:
    with rate_limited_network(held, ranks=ranks) as seats:
        assert seats is None


@pytest.mark.parametrize(
    ("held", "ranks", "code", "figures"),
    [
        (link(0.0), 2, "link-limit.bad-rate", {}),
        (link(1e6, -1e-3), 2, "link-limit.bad-rate", {"match": "no negative latency"}),
        (GIGABIT, 251, "link-limit.too-many-ranks", {"match": r"\b250\b", "ranks": 251}),
    ],
)
def test_what_cannot_be_is_refused(held: Link, ranks: int, code: str, figures: dict[str, Any]) -> None:
    with raises(code, **figures), rate_limited_network(held, ranks=ranks):
        pass


@pytest.mark.parametrize("missing", ["ip", "tc"])
def test_a_missing_tool_is_told(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in {"ip", "tc"} - {missing}:
        (tmp_path / name).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(wires, "_SBIN", "")
    with (
        raises("link-limit.missing-tool", EnvironmentProblem, tool=missing) as caught,
        rate_limited_network(GIGABIT, ranks=2),
    ):
        pass
    assert caught.value.exit_code == 4


def test_a_user_who_may_not_make_namespaces_is_told(tmp_path: Path) -> None:
    """In a process of its own, which gives up being root where it is."""
    for name in ("ip", "tc"):
        (tmp_path / name).touch(mode=0o755)
    code = """
import os, sys
from trimaran.machine.types import Link
from trimaran.base.errors import EnvironmentProblem
from trimaran.emulation.links import rate_limited_network
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    with rate_limited_network(Link(bytes_per_s=1e6, latency_s=0.0, source="example"), ranks=2):
        pass
except EnvironmentProblem as error:
    sys.exit(error.message)
"""
    tmp_path.chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "run as root; in a container, with the capabilities SYS_ADMIN and NET_ADMIN" in done.stderr
